"""One simulation: drivers that come and go over one state directory, then a calm end, then the laws.

`simulate(seed)` runs the epoch loop that ships, over an exchange, a disk or an object store, sources and
sinks that fail as the seed says. When the faults are over, a driver finishes the job; then what the sinks
hold, the tables, the files of the checkpoints and their number are compared with what they must be.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import tempfile
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

from headrace.base import retry
from headrace.base.errors import (
    ConfigurationError,
    CorruptStateError,
    ExternalError,
    HeadraceError,
    IncompatibleStateError,
    ReplacedError,
    StateInUseError,
)
from headrace.base.retry import Backoff
from headrace.connectors import base as connectors
from headrace.connectors._shared import file_lock
from headrace.connectors.database import sink as database
from headrace.connectors.filesystem import layout
from headrace.connectors.single_file import sink as single_file
from headrace.engine.driver import EpochDriver
from headrace.engine.loop import EpochLoop
from headrace.engine.offsets import EpochSize
from headrace.engine.reports import EpochReport
from headrace.engine.rescaling import Rescaling
from headrace.engine.stages import cut_stages
from headrace.state import backend, generation, references
from headrace.state import cache as state_cache
from headrace.state.backend import ParquetBackend
from headrace.state.files import checkpoint_directory
from headrace.state.inspect import table_rows
from headrace.storage import base as storage_base
from headrace.storage import local, object_store
from headrace.storage.base import Storage
from headrace.storage.open import open_storage, reopen_storage
from tests.simulation.bucket import Bucket, SimulatedObstore
from tests.simulation.disk import ROOT, Disk, SimulatedOs
from tests.simulation.ends import BUCKET, KINDS, REPEATED_BY_REWIND, written_rows
from tests.simulation.exchange import SimulatedExchange
from tests.simulation.flows import FLOWS, Shape, plan_of
from tests.simulation.scene import Scene, draw_lanes, enter
from tests.simulation.world import Actor, NoProgressError, Rates, StopSignal, World

_CALM_LIVES = 12
"""How many drivers may fail one after the other when nothing fails any more: they may stop each other."""
_MOST_OTHERS = 30
"""How many files a state directory may hold besides its checkpoints: claims, marks, waiting rows."""
_BACKOFF = Backoff(first=0.2, factor=5.0, longest=15.0, jitter=0.0)


@dataclass
class Outcome:
    """What a simulation came to; it is good without problems."""

    seed: int
    problems: list[str]
    trace: list[str]
    title: str
    faults: Counter[str] = field(default_factory=Counter)

    def report(self) -> str:
        """Everything a reader needs to understand and repeat a failure."""
        lines = [f"seed {self.seed}: {self.title}", *self.trace]
        lines += [f"seed {self.seed} FAILED: {problem}" for problem in self.problems]
        return "\n".join([*lines, f"replay it: python -m tests.simulation --seed {self.seed}"])


@dataclass(frozen=True)
class Life:
    """How one driver runs."""

    shape: Shape
    parallelism: int
    epoch_rows: int
    restarts: int
    keep: int
    compact_after: int
    max_epochs: int | None
    faults: bool
    rewinds: bool = False
    """Whether it goes back to an earlier checkpoint."""


def simulate(seed: int) -> Outcome:
    """Run the simulation of a seed."""
    simulation = Simulation(seed)
    with simulation.installed():
        try:
            simulation.run()
        finally:
            simulation.world.end()
    return simulation.outcome()


def simulate_all(seeds: range) -> list[tuple[int, list[str], Counter[str]]]:
    """Run several seeds; returns of each its number, its problems, and how often each kind of event was."""
    outcomes = [simulate(seed) for seed in seeds]
    return [(outcome.seed, outcome.problems, outcome.faults) for outcome in outcomes]


def draw_rates(order: random.Random) -> Rates:
    """Which kinds of fault a simulation has, and how often: few kinds each, all kinds over many seeds."""

    def perhaps(share: float, *rates: float) -> float:
        return order.choice(rates) if order.random() < share else 0.0

    return Rates(
        lost=perhaps(0.4, 0.002, 0.01, 0.05),
        unheard=perhaps(0.4, 0.002, 0.01, 0.05),
        slow=perhaps(0.2, 0.01, 0.05),
        crash=perhaps(0.5, 0.002, 0.01),
        crash_at_step=perhaps(0.5, 0.02, 0.1),
        pause=perhaps(0.4, 0.002, 0.01),
        pause_at_step=perhaps(0.4, 0.05, 0.2),
        power_loss=perhaps(0.5, 0.5, 1.0),
        partition=perhaps(0.2, 0.002, 0.01),
        rival=perhaps(0.3, 0.002, 0.01),
        switch=order.choice([0.0, 0.02, 0.2]),
        clock_jump=perhaps(0.2, 0.005),
        damaged_read=perhaps(0.15, 0.02),
        stale_listing=perhaps(0.4, 0.1, 0.5),
        task_lost=perhaps(0.3, 0.1),
        task_repeated=perhaps(0.3, 0.1),
        task_late=perhaps(0.3, 0.05, 0.2),
        epoch_failed=perhaps(0.3, 0.03, 0.1),
        stop=perhaps(0.3, 0.2),
        rewind=perhaps(0.25, 0.3, 0.7),
        rescale=perhaps(0.4, 0.2, 0.7),
    )


@cache
def _scratch() -> Path:
    """Where this process keeps what is not simulated: copies of state files, and databases."""
    memory = Path("/dev/shm")
    directory = tempfile.mkdtemp(
        prefix="headrace-simulation-", dir=memory if os.access(memory, os.W_OK) else None
    )
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


class Simulation:
    """The supervisor of one simulation: starts drivers, and checks the laws in the end."""

    def __init__(self, seed: int) -> None:
        order = random.Random(seed)
        self.seed = seed
        self.world = World(seed, draw_rates(order), order)
        self.is_bucket = order.random() < 0.5
        self.problems: list[str] = []
        self.errors: Counter[str] = Counter()
        self.disk, self.bucket = Disk(self.world), Bucket(self.world)
        self.flow = order.choice(list(FLOWS))
        flow = FLOWS[self.flow]
        if flow.kinds is None:
            kinds = tuple(order.choices(KINDS, (4, 3, 3, 0.4, 2), k=len(flow.checks)))
        else:
            kinds = tuple(order.choices(flow.kinds, k=len(flow.checks)))
        late, first, sources = order.random() < 0.3, 0, {}
        for name in flow.sources:
            sources[name] = draw_lanes(order, first=first, late=late, most=1 if flow.received else 2)
            first += 1000
        self.scene = Scene(self.world, sources)
        self.shape = Shape(
            self.flow,
            kinds,
            bucket=self.is_bucket,
            database=_scratch() / "database.db",
            interval=order.choice(["0", "0", "2s"]),
        )
        self.url = f"{BUCKET}/state" if self.is_bucket else f"{ROOT}/state"
        self.inline_limit = order.choice([64, connectors.INLINE_LIMIT])
        self.lives_left = order.randint(1, 5)
        self.compact_after, self.keep = order.choice([2, 3, 8]), order.choice([1, 2, 3, 10])
        self.drivers: list[Actor] = []
        self.started = 0
        self.is_finished = self.has_rewound = False
        self.world.on_kill = self._on_kill

    @property
    def title(self) -> str:
        store = "object store" if self.is_bucket else "local directory"
        rates = {name: rate for name, rate in vars(self.world.rates).items() if rate}
        return f"{self.flow} to {', '.join(self.shape.kinds)} with state in a {store}; {rates}"

    def outcome(self) -> Outcome:
        return Outcome(self.seed, self.problems, self.world.trace, self.title, self.world.happened)

    # ------------------------------------------------------------------------------ what is replaced

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let this process use the simulated disk, object store, clock and names."""
        world, scratch = self.world, _scratch()
        system = SimulatedOs(self.disk)
        self.shape.database.unlink(missing_ok=True)
        while database._POOL:
            database._POOL.popitem()[1].engine.dispose()
        reopen_storage.cache_clear()
        machines = tempfile.mkdtemp(dir=scratch)

        def private_directory(name: str) -> str:
            machine = "calm" if world.actor is None else world.actor.machine
            directory = Path(machines, machine, name)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return str(directory)

        files = SimpleNamespace(rmtree=system.rmtree, copyfile=shutil.copyfile)
        virtual = SimpleNamespace(
            sleep=world.sleep,
            time=lambda: world.time,
            time_ns=lambda: round(world.time * 1e9),
            monotonic=lambda: world.time,
            clock_gettime=lambda _clock: world.time,
            CLOCK_MONOTONIC=None,
        )
        replaced: list[tuple[Any, str, Any]] = [
            (uuid, "uuid4", world.name),
            (local, "os", system),
            (local, "shutil", files),
            (local, "open", system.open_file),
            (references, "open", system.open_file),
            (single_file, "os", system),
            (file_lock, "fcntl", SimpleNamespace(flock=system.flock, LOCK_EX=2, LOCK_NB=4)),
            (object_store, "load_extra", lambda *_args, **_named: SimulatedObstore(world)),
            (object_store, "_connect", lambda *_args: self.bucket),
            (storage_base, "ThreadPoolExecutor", _OneAtATime),
            (retry, "time", virtual),
            (retry, "_JITTER", world.random),
            (backend, "time", virtual),
            (generation, "time", virtual),
            (layout, "time", virtual),
            (layout, "os", SimpleNamespace(urandom=world.random.randbytes)),
            (generation, "os", SimpleNamespace(getpid=lambda: 1)),
            (state_cache, "private_directory", private_directory),
            (connectors, "INLINE_LIMIT", self.inline_limit),
        ]
        enter(self.scene)
        with contextlib.ExitStack() as stack:
            for module, name, value in replaced:
                stack.enter_context(patch.object(module, name, value, create=name == "open"))
            try:
                yield
            finally:
                reopen_storage.cache_clear()
                shutil.rmtree(machines, ignore_errors=True)

    # ------------------------------------------------------------------------------ the supervisor

    def run(self) -> None:
        """Run drivers until the job is finished, then check the laws."""
        try:
            self._run()
        except NoProgressError as error:
            self.problems.append(f"NO PROGRESS: {error}")
        if not self.problems:
            self.problems += self._broken_laws()

    def _run(self) -> None:
        world, calm_lives = self.world, 0
        while not self.problems:
            self.drivers = [actor for actor in self.drivers if not actor.ended]
            can_start = not self.drivers or (self.is_bucket and self._wants_rival())
            if not self.is_finished and can_start:
                if self.lives_left and not world.calm:
                    self.lives_left -= 1
                    self._start(self._draw_life())
                    continue
                world.calm = True
                if not self.drivers or world.random.random() < 0.3:
                    calm_lives += 1
                    if calm_lives > _CALM_LIVES:
                        raise NoProgressError(f"{calm_lives} drivers failed in turn without a fault")
                    self._start(replace(self._draw_life(), faults=False, max_epochs=None, rewinds=False))
                    continue
            if self.is_finished:
                world.calm = True
            if not world.run_one() and self.is_finished:
                break
        if not self.problems:
            # Whatever woke up late: the job is as finished as before.
            self._start(replace(self._draw_life(), faults=False, max_epochs=None, rewinds=False))
            while world.run_one():
                pass

    def _wants_rival(self) -> bool:
        """Whether another driver is started beside those that live: they seem dead, or by mistake."""
        wanted, self.world.wants_rival = self.world.wants_rival, False
        asleep = all(driver.paused_until > self.world.steps for driver in self.drivers)
        return (wanted or asleep) and len(self.drivers) < 3

    def _draw_life(self) -> Life:
        order = self.world.random
        flow = FLOWS[self.flow]
        if order.random() < 0.15:
            self.shape = replace(self.shape, extra=not self.shape.extra)
        if flow.droppable and order.random() < 0.1:
            self.shape = replace(self.shape, dropped=True)
        return Life(
            self.shape,
            parallelism=order.randint(1, 3),
            epoch_rows=order.choice([3, 8, 20]),
            restarts=order.randint(0, 3),
            keep=self.keep,
            compact_after=self.compact_after,
            max_epochs=order.choice([None, None, 1, 3]),
            faults=True,
            rewinds=bool(self.started) and order.random() < self.world.rates.rewind,
        )

    def _start(self, life: Life) -> None:
        self.started += 1
        name = f"driver{self.started}"
        actor = self.world.spawn(name, lambda actor: self._live(actor, life))
        actor.faults = life.faults
        # A driver that was killed is started again where it was, or on another machine without copies.
        actor.machine = "first" if self.world.random.random() < 0.5 else name
        self.drivers.append(actor)
        self.world.tell(
            f"START {name} on {actor.machine}: parallelism {life.parallelism}, {life.epoch_rows} rows "
            f"per epoch, {life.restarts} restarts, keeps {life.keep}"
            + (", extra operator" if life.shape.extra else "")
            + (", dropped branch" if life.shape.dropped else "")
        )

    def _live(self, actor: Actor, life: Life) -> None:
        """The life of one driver process."""
        world = self.world
        try:
            end = self._run_job(actor, life)
        except HeadraceError as error:
            self.errors[type(error).__name__] += 1
            world.tell(f"ENDED with {type(error).__name__}: {error}")
            if not self._is_expected(actor, error):
                self.problems.append(f"{actor.name} raised {type(error).__name__}: {error}")
            return
        except NoProgressError as error:
            self.problems.append(f"NO PROGRESS: {error}")
            return
        except Exception as error:  # noqa: BLE001 - every error must be typed
            world.tell("".join(traceback.format_exception(error)))
            self.problems.append(f"{actor.name} raised an untyped {type(error).__name__}: {error}")
            return
        world.tell(f"ENDED {end}")
        if end == "finished":
            self.is_finished = True

    def _run_job(self, actor: Actor, life: Life) -> str:
        world = self.world
        storage = open_storage(self.url)
        driver = EpochDriver(
            cut_stages(plan_of(life.shape), parallelism=life.parallelism),
            storage,
            keep_checkpoints=life.keep,
            compact_after=life.compact_after,
            now=actor.clock,
            step=lambda step, epoch: world.point(f"STEP {step} of epoch {epoch}", step=True),
        )
        driver.open(allow_drop=life.shape.dropped, from_epoch=self._rewind(storage) if life.rewinds else None)
        stop, epochs, rescaling = StopSignal(world), 0, Rescaling(life.parallelism)

        def on_epoch(report: EpochReport) -> bool:
            nonlocal epochs
            epochs += 1
            if world.chance(world.rates.stop):
                world.tell("STOP asked for")
                stop.set()
            if world.chance(world.rates.rescale):
                parallelism = world.random.randint(1, 4)
                world.tell(f"RESCALE to {parallelism} subtasks")
                rescaling.request(parallelism)
            return report.finished or epochs == life.max_epochs

        if not driver.finished:
            EpochLoop(
                driver,
                SimulatedExchange(world),
                size=EpochSize(target=0.5, most=life.epoch_rows),
                on_epoch=on_epoch,
                stop=stop,
                restarts=life.restarts,
                question_retries=life.restarts,
                backoff=_BACKOFF,
                wait=lambda _idle: world.sleep(0.05),
                rescaling=rescaling,
            ).run()
        return "finished" if driver.finished else "stopped"

    def _rewind(self, storage: Storage) -> int | None:
        """Which checkpoint a driver goes back to: any that is offered."""
        epochs = ParquetBackend(storage).epochs()
        if not epochs:
            return None
        epoch = self.world.random.choice(epochs)
        self.world.tell(f"REWIND to epoch {epoch} of {epochs}")
        self.has_rewound = True
        return epoch

    def _is_expected(self, actor: Actor, error: HeadraceError) -> bool:
        """Whether a driver may end with this error, after what happened to it."""
        if isinstance(error, StateInUseError | ReplacedError):
            return self.is_bucket and self.started > 1
        # A flipped bit in the number of a format cannot be told from a newer version.
        if isinstance(error, CorruptStateError) or "reads formats up to" in error.message:
            return actor.damaged > 0
        if isinstance(error, IncompatibleStateError) and "has format" in error.message:
            return actor.damaged > 0  # in the number of the format
        if isinstance(error, IncompatibleStateError) and self.shape.dropped:
            # The branch has something to commit: it is dropped later.
            self.shape = replace(self.shape, dropped=False)
            return True
        if isinstance(error, ConfigurationError):
            is_gone = self.is_bucket and "there is no checkpoint of epoch" in error.message
            return actor.faults and ("cannot be written" in error.message or is_gone)
        others = any(other is not actor and not other.ended for other in self.drivers)
        return isinstance(error, ExternalError) and error.retry and (actor.faults or others)

    def _on_kill(self, actor: Actor, power: bool) -> None:
        if power and not self.is_bucket:
            for other in self.world.actors:
                if other is not actor:
                    other.killed = True
            self.disk.lose_power()

    # ------------------------------------------------------------------------------ the laws

    def _broken_laws(self) -> list[str]:
        flow = FLOWS[self.flow]
        rows = [row for lanes in self.scene.sources.values() for lane in lanes.values() for row in lane]
        problems: list[str] = []
        for index, check in enumerate(flow.checks):
            kind, name = self.shape.kinds[index], f"out{index}"
            dropped = self.shape.dropped and index == len(flow.checks) - 1
            # What was written after the checkpoint that a run goes back to is written again.
            repeats = kind == "queue" or (self.has_rewound and kind in REPEATED_BY_REWIND)
            found = written_rows(kind, name, disk=self.disk, bucket=self.bucket, database=self.shape.database)
            problems += [
                f"sink {name} ({kind}): {problem}"
                for problem in check(rows, _once_each(found) if repeats else found)
                if not (dropped and problem.startswith("LOST"))
                if not (repeats and problem.startswith("TOO MUCH") and self.has_rewound)
            ]
        storage = open_storage(self.url)
        problems += self._broken_checkpoints(storage)
        if flow.counts and not self.shape.dropped and not problems:
            table = table_rows(storage, flow.counts, "counts")
            found_counts = dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))
            expected = Counter(row.key for row in rows)
            if found_counts != expected:
                problems.append(f"table counts is {found_counts}, a replay gives {dict(expected)}")
        if flow.windows and not problems and (left := table_rows(storage, flow.windows, "t").num_rows):
            problems.append(f"table t holds {left} windows after the end, a replay holds none")
        return problems

    def _broken_checkpoints(self, storage: Storage) -> list[str]:
        checkpoints = ParquetBackend(storage)
        epochs = checkpoints.epochs()
        problems = [
            f"checkpoint {epoch}: {problem}"
            for epoch in epochs
            for problem in checkpoints.verification(epoch).problems
        ]
        if problems:
            return problems
        # The cleanup of a run that has just started removes what others left behind.
        checkpoints.cleanup(self.keep, epochs[-1])
        epochs = checkpoints.epochs()
        needed = set().union(*(checkpoints.needed_paths(epoch).paths for epoch in epochs))
        strays = [
            path
            for path in storage.list("checkpoints")
            if path not in needed and path < checkpoint_directory(epochs[0])
        ]
        if strays:
            problems.append(f"never removed: {strays}")
        others = [path for path in storage.list("") if not path.startswith("checkpoints/")]
        if len(others) > _MOST_OTHERS + 2 * self.started:  # a killed process may leave what it was writing
            problems.append(
                f"{len(others)} files besides the checkpoints after {self.started} runs: {others}"
            )
        if len(epochs) > self.keep:
            problems.append(f"{len(epochs)} checkpoints are kept, {self.keep} were asked for")
        return problems


def _once_each(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a sink that writes at least once, without repetitions."""
    return list({tuple(row.items()): row for row in rows}.values())


class _OneAtATime:
    """An executor without threads: requests of one actor come one after the other."""

    def __init__(self, _workers: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    @staticmethod
    def map(action: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        return [action(item) for item in items]
