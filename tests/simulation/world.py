"""The world of a simulation: one seed decides who runs, what time it is, and what fails.

Every driver, and every task attempt that nobody waits for any more, is an actor: a thread that runs only
when the scheduler hands over to it. Whatever leaves an actor (a call to a disk, an object store, a sink, a
source, a step of an epoch) passes `World.point` first. There the seed decides whether the actor goes on, is
paused, or was killed. So a process that dies after one call dies before the next one.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from headrace.testing.in_process import CrashError

T = TypeVar("T")

Target = Literal["storage", "sink", "source"]
"""What an actor can be cut off from."""

_CALLS = frozenset({"STEP", "GET", "PUT", "HEAD", "LIST", "COPY", "DELETE"})
START = 1_700_000_000.0


class NoProgressError(Exception):
    """The simulation takes more steps than any correct run needs."""


@dataclass
class Rates:
    """How likely each fault is: at every call, or at every step of an epoch (`…_at_step`)."""

    lost: float = 0.0
    """A call fails before its effect."""
    unheard: float = 0.0
    """A call has its effect, and its caller gets an error."""
    slow: float = 0.0
    crash: float = 0.0
    crash_at_step: float = 0.0
    pause: float = 0.0
    pause_at_step: float = 0.0
    power_loss: float = 0.0
    """How often a crash is one of the machine: unsynced writes are lost."""
    partition: float = 0.0
    rival: float = 0.0
    """A second driver is started while one runs (object store)."""
    switch: float = 0.02
    clock_jump: float = 0.0
    damaged_read: float = 0.0
    stale_listing: float = 0.0
    task_lost: float = 0.0
    task_repeated: float = 0.0
    task_late: float = 0.0
    epoch_failed: float = 0.0
    stop: float = 0.0
    rewind: float = 0.0
    """A driver is started from an earlier checkpoint."""
    rescale: float = 0.0
    """A driver goes on with another parallelism, after an epoch."""


class Actor:
    """A thread that runs only when it is told to, until it hands over, ends or is killed."""

    def __init__(self, world: World, name: str, body: Callable[[Actor], None]) -> None:
        self.world, self.name = world, name
        self.killed = self.ended = False
        self.paused_until = 0
        """The step before which the scheduler passes this actor over."""
        self.skew = 0.0
        """By how much its clock is wrong, in seconds."""
        self.cut_off: dict[Target, int] = {}
        """What it cannot reach, and until which step."""
        self.faults = True
        self.damaged = 0
        """How many damaged reads it was given."""
        self.machine = ""
        self.failure: BaseException | None = None
        self._body = body
        self._turn = threading.Lock()
        self._turn.acquire()
        self._back = threading.Lock()
        self._back.acquire()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        self._turn.acquire()
        try:
            if not self.killed:
                self._body(self)
        except CrashError:
            pass
        except BaseException as error:  # noqa: BLE001 - the simulation reports it
            self.failure = error
        self.ended = True
        self._back.release()

    def resume(self) -> None:
        """Let the actor run until it hands over or ends; called by the scheduler."""
        self._turn.release()
        self._back.acquire()
        if self.ended:
            self._thread.join()

    def hand_over(self) -> None:
        """Let the scheduler choose who runs; called by the actor itself."""
        self._back.release()
        self._turn.acquire()
        if self.killed:
            raise CrashError(self.name)

    def clock(self) -> float:
        """What time this actor's machine says it is."""
        return self.world.time + self.skew


@dataclass
class World:
    """What all actors of a simulation share."""

    seed: int
    rates: Rates
    random: random.Random
    most_steps: int = 60_000
    time: float = START
    steps: int = 0
    calm: bool = False
    """Nothing fails any more."""
    actor: Actor | None = None
    actors: list[Actor] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    """How often each kind of event was."""
    wants_rival: bool = False
    on_kill: Callable[[Actor, bool], None] = lambda _actor, _power: None

    def name(self) -> uuid.UUID:
        """A unique name, the same in every run of the seed."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    def tell(self, text: str) -> None:
        """Add a line to the trace; an event that is no call begins with a word in capitals."""
        word = text.partition(" ")[0]
        if word.isupper() and word not in _CALLS:
            self.happened[word] += 1
        who = "-" if self.actor is None else self.actor.name
        self.trace.append(f"{self.steps:6} {self.time - START:10.3f}s {who:12} {text}")

    def spawn(self, name: str, body: Callable[[Actor], None]) -> Actor:
        """Start an actor; it runs when the scheduler chooses it."""
        actor = Actor(self, name, body)
        self.actors.append(actor)
        return actor

    def chance(self, rate: float) -> bool:
        """Whether a fault of this rate happens now."""
        return bool(rate) and self.faulty and self.random.random() < rate

    @property
    def faulty(self) -> bool:
        return not self.calm and self.actor is not None and self.actor.faults

    # ------------------------------------------------------------------------------ points

    def point(self, what: str, *, step: bool = False) -> None:
        """The actor is about to do something that others can notice, or came past a step of an epoch."""
        actor = self.actor
        if actor is None:
            return
        if actor.killed:
            raise CrashError(actor.name)
        self.steps += 1
        self.time += 0.001
        if self.steps > self.most_steps:
            raise NoProgressError(f"not over after {self.steps} steps")
        self.tell(what)
        rates = self.rates
        if self.faulty:
            if self.chance(rates.crash_at_step if step else rates.crash):
                self.kill(actor, power=self.chance(rates.power_loss))
                raise CrashError(actor.name)
            if self.chance(rates.clock_jump):
                actor.skew += self.random.choice([-3600.0, -5.0, -0.1, 0.1, 5.0, 3600.0])
                self.tell(f"CLOCK is now {actor.skew:+.1f}s off")
            if self.chance(rates.partition):
                self._cut_off(actor)
            if self.chance(rates.pause_at_step if step else rates.pause):
                actor.paused_until = self.steps + self.random.choice([20, 200, 1000, 1_000_000])
                self.tell(f"PAUSED until step {actor.paused_until}, or until nobody else runs")
                actor.hand_over()
                self.tell("RESUMED")
                return
            if self.chance(rates.rival):
                self.wants_rival = True
                self.tell("RIVAL another driver is started")
                actor.hand_over()
                return
        if len(self.actors) > 1 and self.random.random() < rates.switch:
            actor.hand_over()

    def _cut_off(self, actor: Actor) -> None:
        target: Target = self.random.choice(["storage", "sink", "source"])
        actor.cut_off[target] = self.steps + self.random.choice([3, 30, 300])
        self.tell(f"PARTITION from every {target} until step {actor.cut_off[target]}")

    def kill(self, actor: Actor, *, power: bool = False) -> None:
        """Kill an actor; a machine that loses its power loses unsynced writes."""
        actor.killed = True
        self.tell(f"{'POWER LOSS of' if power else 'KILLED'} {actor.name}")
        self.on_kill(actor, power)

    def sleep(self, seconds: float) -> None:
        """Let time pass for whoever runs."""
        self.time += max(0.0, seconds)
        if self.actor is not None:
            self.point(f"sleeps {seconds:.3f}s")
            if len(self.actors) > 1 and not self.actor.killed:
                self.actor.hand_over()

    def call(
        self, target: Target, what: str, effect: Callable[[], T], failure: Callable[[str], Exception]
    ) -> T:
        """Make one call to the outside, which may fail before or after its effect."""
        self.point(what)
        actor = self.actor
        if actor is not None and self.faulty:
            if actor.cut_off.get(target, 0) > self.steps:
                raise failure("unreachable")
            if self.chance(self.rates.slow):
                self.time += 5.0
                self.tell(f"SLOW {what}")
                if len(self.actors) > 1:
                    actor.hand_over()
            if self.chance(self.rates.lost):
                self.tell(f"LOST {what}")
                raise failure("connection refused")
        result = effect()
        if self.chance(self.rates.unheard):
            self.tell(f"UNHEARD {what}: done, and an error returned")
            raise failure("connection reset")
        return result

    # ------------------------------------------------------------------------------ the scheduler

    def run_one(self) -> bool:
        """Let one actor run until it hands over; False if all have ended."""
        self.actors = [actor for actor in self.actors if not actor.ended]
        living = self.actors
        if not living:
            return False
        ready = [actor for actor in living if actor.paused_until <= self.steps]
        if not ready:
            actor = min(living, key=lambda paused: paused.paused_until)
            actor.paused_until = 0
            ready = [actor]
        self.actor = ready[0] if len(ready) == 1 else self.random.choice(ready)
        try:
            self.actor.resume()
        finally:
            self.actor = None
        return True

    def end(self) -> None:
        """End every actor that is left, so that no thread outlives the simulation."""
        for actor in self.actors:
            while not actor.ended:
                actor.killed = True
                self.actor = actor
                actor.resume()
        self.actor, self.actors = None, []


class StopSignal(threading.Event):
    """The event that tells a run to stop, whose waits pass in virtual time."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        """Let the time pass; returns whether the run was told to stop."""
        self._world.sleep(0.0 if timeout is None else timeout)
        return self.is_set()
