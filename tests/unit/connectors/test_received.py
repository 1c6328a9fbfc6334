"""Sources that cannot be asked again: the log, the inbox, and what happens to a connection."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa
import pytest

from headrace.base.errors import (
    BadLineError,
    ConfigurationError,
    CorruptStateError,
    ExternalError,
    RefusedError,
)
from headrace.connectors import received, sample
from headrace.connectors._shared.messages import MessageOptions
from headrace.connectors.base import to_ipc
from headrace.connectors.received import Inbox, Received, ReceivedLog, ReceivedSource
from headrace.model.operator import Finish, Limit, Offset, SourceContext
from headrace.state.received import part_path
from headrace.storage.open import open_storage
from tests.servers.http import Patience
from tests.support import ListCollector, task

Talk = Callable[[Inbox], None]
LIMIT = Limit(10**6, 0)
TALKS: dict[str, Talk] = {}
"""What a source does, by name: it pickles, and this does not."""


class FakeSource(ReceivedSource):
    label = "fake"

    class Options(MessageOptions):
        METADATA: ClassVar = {"place": pa.string()}

        talk: str = "talk"

    options: Options

    @property
    def address(self) -> str:
        return "nowhere"

    def listen(self, inbox: Inbox) -> None:
        TALKS[self.options.talk](inbox)


def make(talk: Talk, storage: Any, **options: Any) -> FakeSource:
    TALKS["talk"] = talk
    source = FakeSource(schema={"n": "int64"}, **options)
    source.open(storage, job_id="job", node="op")
    return source


def put(inbox: Inbox, numbers: Sequence[int], **more: Any) -> None:
    for n in numbers:
        inbox.put(json.dumps({"n": n}).encode(), **more)


def hold(inbox: Inbox) -> None:
    inbox.closed.wait(30)


def sending(numbers: Sequence[int]) -> Talk:
    def talk(inbox: Inbox) -> None:
        put(inbox, numbers)
        hold(inbox)

    return talk


def advance(source: ReceivedSource, start: Offset, limit: Limit = LIMIT) -> Offset:
    """The next offset, however long that takes."""
    for _ in range(600):
        end = source.latest_offset(start, limit, parallelism=2)
        if end != start:
            return end
    raise AssertionError("nothing came")


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def wait_for_puts(source: ReceivedSource, count: int) -> None:
    """Wait until so many messages were put: one that is under way when the run ends is dropped."""
    wait_for(lambda: source._inbox is not None and source._inbox.contacts >= count)


def read(source: ReceivedSource, storage: Any, start: Offset, end: Offset) -> tuple[list[int], Finish]:
    (split,) = source.splits(start, end, parallelism=3)
    ctx, collector = SourceContext(task(), split, storage=storage), ListCollector()
    finish = source.run(ctx, collector)
    return [row["n"] for row in collector.rows], finish


@pytest.fixture
def storage(tmp_path: Path) -> Any:
    return open_storage(str(tmp_path))


# ------------------------------------------------------------------------------------------- the log


def test_a_range_is_read_again_in_any_process_and_gives_the_same_rows(storage: Any) -> None:
    source = make(lambda inbox: put(inbox, range(10)), storage)
    offsets = [source.initial_offset(time=0)]
    while not source.is_finished(offsets[-1]):
        offsets.append(advance(source, offsets[-1], Limit(4, 0)))
    offsets = json.loads(json.dumps(offsets))
    whole = read(source, storage, offsets[0], offsets[-1])
    assert whole == (list(range(10)), Finish.FINAL)
    copy = cloudpickle.loads(cloudpickle.dumps(source))
    assert read(copy, storage, offsets[0], offsets[-1]) == whole
    parts = [read(copy, storage, *pair) for pair in itertools.pairwise(offsets)]
    assert [n for rows, _ in parts for n in rows] == list(range(10))
    assert all(len(rows) <= 4 for rows, _ in parts)
    assert [finish for _, finish in parts[:-1]] == [Finish.GRACEFUL] * (len(parts) - 1)
    assert read(source, storage, offsets[0], offsets[0])[0] == []
    assert source.latest_offset(offsets[-1], LIMIT, parallelism=1) == offsets[-1]


def test_what_was_kept_and_not_read_is_read_first_by_the_next_run(storage: Any) -> None:
    first = make(sending(range(5)), storage)
    start = first.initial_offset(time=0)
    advance(first, start)
    wait_for_puts(first, 5)
    first.close()
    second = make(sending(range(5, 8)), storage)
    end = second.latest_offset(start, LIMIT, parallelism=1)
    assert read(second, storage, start, end)[0][:1] == [0]
    after = end
    while read(second, storage, start, after)[0][-1] < 7:
        after = advance(second, after)
    assert read(second, storage, start, after)[0] == list(range(8))
    second.close()


def test_a_file_that_a_crash_left_half_written_is_no_part(storage: Any) -> None:
    log = ReceivedLog(storage, "op")
    assert log.last() == 0
    assert log.resume(0) is None
    log.append(1, [pa.record_batch({"a": [1]})], ended=False, resume={"x": 1})
    storage.write("received/op/.53ae5b31", b"half")
    storage.write("received/op/.53ae5b31.arrow", b"half")
    assert (log.last(), log.ends(1), log.resume(1)) == (1, False, {"x": 1})
    assert [batch.to_pydict() for batch in log.read(1)] == [{"a": [1]}]


def test_parts_that_no_checkpoint_needs_are_removed_and_no_others(storage: Any) -> None:
    turns = threading.Semaphore(0)

    def talk(inbox: Inbox) -> None:
        for n in range(20):
            turns.acquire(timeout=30)
            put(inbox, [n])
        hold(inbox)

    source = make(talk, storage)
    offset = source.initial_offset(time=0)
    offsets = [offset]
    for _ in range(20):
        turns.release()
        offset = advance(source, offset)
        offsets.append(offset)
    assert len(list(storage.list("received/op/"))) == 20
    source.expired(offsets[8])
    source.expired(offsets[15])
    source.close()
    assert offset["received"]["parts"] == 20
    # The part that was read last says where the connector goes on.
    assert sorted(storage.list("received/op/")) == [part_path("op", part) for part in range(15, 21)]
    again = make(hold, storage)
    assert again.latest_offset(offsets[15], LIMIT, parallelism=1) == offset
    again.expired(offsets[18])
    again.close()
    assert sorted(storage.list("received/op/")) == [part_path("op", part) for part in range(18, 21)]


def test_a_log_that_could_not_be_read_at_first_is_taken_up_with_what_it_says_of_its_messages(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ReceivedLog(storage, "op").append(1, [pa.record_batch({"a": [1]})], ended=False, resume=7)
    source, resume = make(hold, storage), ReceivedLog.resume

    def failing(*_: Any) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(ReceivedLog, "resume", failing)
    start = source.initial_offset(time=0)
    with pytest.raises(OSError, match="no answer"):
        source.latest_offset(start, LIMIT, parallelism=1)
    monkeypatch.setattr(ReceivedLog, "resume", resume)
    source.latest_offset(start, LIMIT, parallelism=1)
    source.close()
    assert source._resume == 7


def test_messages_that_could_not_be_written_are_written_by_the_end_of_the_run(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(sending(range(3)), storage)
    start, kept = source.initial_offset(time=0), ReceivedLog.append

    def failing(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(ReceivedLog, "append", failing)
    with pytest.raises(OSError, match="no room"):
        advance(source, start)
    monkeypatch.setattr(ReceivedLog, "append", kept)
    wait_for_puts(source, 3)
    source.close()
    again = make(hold, storage)
    end = again.latest_offset(start, LIMIT, parallelism=1)
    assert read(again, storage, start, end)[0] == [0, 1, 2]


def test_messages_that_could_not_be_written_are_not_acknowledged_before_they_are(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged: list[int] = []

    def talk(inbox: Inbox) -> None:
        for n in range(4):
            put(inbox, [n], token=n)
        while not inbox.closed.wait(0.005):
            acknowledged.extend(inbox.take_logged_tokens())

    source = make(talk, storage)
    start = source.initial_offset(time=0)

    def failing(*_: Any, **__: Any) -> bool:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(ReceivedLog, "append", failing)
        with pytest.raises(OSError, match="no room"):
            advance(source, start, Limit(2, 0))
    end = advance(source, start, Limit(2, 0))
    wait_for(lambda: acknowledged)
    assert read(source, storage, start, end)[0] == acknowledged
    source.close()


def test_of_two_runs_neither_overwrites_what_the_other_has_logged(storage: Any) -> None:
    """One run was suspended, and does not know yet that another has taken over."""
    awake, acknowledged, resumed = threading.Event(), list[int](), list[Any]()

    def first_talk(inbox: Inbox) -> None:
        resumed.append(inbox.resume)
        put(inbox, [1], token=1, resume="after 1")
        while not inbox.closed.wait(0.005):
            acknowledged.extend(inbox.take_logged_tokens())
            if awake.is_set() and len(resumed) == 1:
                put(inbox, [2], token=2, resume="after 2")
                break
        hold(inbox)

    first = make(first_talk, storage)
    start = first.initial_offset(time=0)
    before = advance(first, start)
    wait_for(lambda: acknowledged == [1])

    def second_talk(inbox: Inbox) -> None:
        put(inbox, [3], token=3, resume="after 3")
        hold(inbox)

    second = make(second_talk, storage)
    after = advance(second, before)
    TALKS["talk"] = first_talk
    awake.set()
    assert advance(first, before) == after  # what it had is not logged, and not acknowledged
    assert read(first, storage, start, after)[0] == [1, 3]
    assert acknowledged == [1]
    advance(first, after)
    assert resumed[1:] == ["after 3"]  # it has connected anew, behind the log
    first.close()
    second.close()


def test_a_bad_message_is_named_by_its_place_in_the_log(storage: Any) -> None:
    def talk(inbox: Inbox) -> None:
        put(inbox, [1])
        inbox.put(b"{")

    source = make(talk, storage)
    start = source.initial_offset(time=0)
    end = start
    while not source.is_finished(end):
        end = advance(source, end)
    with pytest.raises(BadLineError, match=r"place \d of part \d of what was received") as caught:
        read(source, storage, start, end)
    assert caught.value.where == "nowhere"


# ----------------------------------------------------------------------------------- what to go on by


def test_what_to_go_on_by_is_that_of_the_last_message_that_is_kept(storage: Any) -> None:
    seen: list[Any] = []

    def talk(inbox: Inbox) -> None:
        seen.append(inbox.resume)
        for n in range(3):
            put(inbox, [n], resume=f"after {n}")
        put(inbox, [3])
        hold(inbox)

    first = make(talk, storage)
    start = first.initial_offset(time=0)
    end = advance(first, start)
    while read(first, storage, start, end)[0][-1] != 3:
        end = advance(first, end)
    first.close()
    second = make(talk, storage)
    advance(second, end)
    second.close()
    assert seen == [None, "after 2"]


def test_a_lost_connection_goes_on_after_the_last_message_that_came(storage: Any) -> None:
    seen: list[Any] = []

    def talk(inbox: Inbox) -> None:
        seen.append(inbox.resume)
        if len(seen) == 3:
            return
        put(inbox, [len(seen)], resume=len(seen))
        raise ConnectionError

    source = make(talk, storage)
    start = end = source.initial_offset(time=0)
    while not source.is_finished(end):
        end = advance(source, end)
    assert seen == [None, 1, 2]
    assert read(source, storage, start, end)[0] == [1, 2]


def test_messages_that_are_not_new_are_acknowledged_and_not_kept(storage: Any) -> None:
    class Careful(FakeSource):
        def settle(self, resume: Any, messages: Sequence[Received]) -> tuple[Sequence[Received], Any]:
            known = set(resume or [])
            fresh = [one for one in messages if one.token not in known]
            return fresh, sorted(known | {one.token for one in messages})

    acknowledged: list[Any] = []

    def talk(inbox: Inbox) -> None:
        for n in (1, 2):
            put(inbox, [n], token=n)
        while not inbox.closed.is_set():
            acknowledged.extend(inbox.take_logged_tokens())
            time.sleep(0.001)
        acknowledged.extend(inbox.take_logged_tokens())

    TALKS["talk"] = talk
    start: Offset = {}
    for life in range(2):
        source = Careful(schema={"n": "int64"})
        source.open(storage, job_id="job", node="op")
        start = start or source.initial_offset(time=0)
        if life:
            end = source.latest_offset(start, LIMIT, parallelism=1)
            assert read(source, storage, start, end)[0] == [1, 2]
            for _ in range(200):
                assert source.latest_offset(end, LIMIT, parallelism=1) == end
                if len(acknowledged) == 4:
                    break
        else:
            end = start
            while end == start or read(source, storage, start, end)[0] != [1, 2]:
                end = advance(source, end)
        source.close()
    assert acknowledged == [1, 2, 1, 2]


def test_a_source_for_sampling_acknowledges_nothing(storage: Any) -> None:
    acknowledged: list[Any] = []

    def talk(inbox: Inbox) -> None:
        put(inbox, [1], token=1)
        while not inbox.closed.is_set():
            acknowledged.extend(inbox.take_logged_tokens())
            time.sleep(0.001)

    TALKS["talk"] = talk
    source = FakeSource(schema={"n": "int64"}).for_sampling()
    source.open(storage, job_id="job", node="op")
    advance(source, source.initial_offset(time=0))
    source.close()
    assert acknowledged == []


def test_the_first_messages_tell_the_columns_and_nothing_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acknowledged: list[Any] = []
    ahead = [0.0]

    def talk(inbox: Inbox) -> None:
        for value in (b'{"n": 1}', b'{"n": 2, "Name": "x"}'):
            inbox.put(value, token=value)
            wait_for(lambda: not inbox._messages)
        while not inbox.closed.is_set():
            ahead[0] += 100  # it is quiet now
            acknowledged.extend(inbox.take_logged_tokens())
            time.sleep(0.001)
        acknowledged.extend(inbox.take_logged_tokens())

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead[0], time=time.time, sleep=time.sleep)
    monkeypatch.setattr(sample, "time", clock)
    monkeypatch.setattr(sample, "QUIET_SECONDS", 60)
    monkeypatch.setattr(sample, "SAMPLE_SECONDS", 10**6)
    TALKS["talk"] = talk
    found = FakeSource(metadata={"from": "place"}).find_columns()
    assert found == pa.schema({"n": pa.int64(), "Name": pa.string()})
    assert acknowledged == []


def test_a_source_without_messages_finds_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SAMPLE_SECONDS", 0.05)
    TALKS["talk"] = hold
    assert FakeSource().find_columns() == pa.schema([])
    assert FakeSource(format="raw_string").find_columns() == pa.schema({"value": pa.string()})


# ------------------------------------------------------------------------------------------ the inbox


def test_tokens_come_back_when_their_messages_are_written_and_once() -> None:
    inbox = Inbox()
    put(inbox, [0, 1, 2], token="t")
    put(inbox, [3])
    assert len(inbox.take(2, 0)) == 2
    assert inbox.take_logged_tokens() == []
    inbox.written()
    assert inbox.take_logged_tokens() == ["t", "t"]
    assert inbox.take_logged_tokens() == []


def test_after_a_lost_connection_what_can_come_again_is_dropped_and_the_rest_stays() -> None:
    inbox = Inbox()
    put(inbox, [0, 1], token="old")
    put(inbox, [2])
    inbox.take(1, 0)
    inbox.reconnect()
    inbox.written()
    assert inbox.take_logged_tokens() == []  # it would be said on a connection that knows nothing of it
    assert [json.loads(one.value)["n"] for one in inbox.take(10, 0)] == [2]


@pytest.mark.parametrize(("messages", "size"), [(3, 10**9), (10**9, 20)])
def test_a_full_inbox_makes_the_sender_wait(
    monkeypatch: pytest.MonkeyPatch, messages: int, size: int
) -> None:
    monkeypatch.setattr(received, "BUFFERED_MESSAGES", messages)
    monkeypatch.setattr(received, "BUFFERED_BYTES", size)
    inbox, sent = Inbox(), []

    def send() -> None:
        for n in range(10):
            put(inbox, [n])
            sent.append(n)

    thread = threading.Thread(target=send)
    thread.start()
    wait_for(lambda: len(sent) == 3)
    time.sleep(0.05)
    assert len(sent) == 3
    taken: list[Received] = []
    while len(taken) < 10:
        taken += inbox.take(1, 1)
    thread.join(10)
    assert sent == list(range(10))


def test_closing_lets_everyone_go() -> None:
    inbox, called = Inbox(), []
    inbox.interrupt_with(lambda: called.append(1))
    inbox.close()
    inbox.close()
    put(inbox, range(10))
    assert called == [1]
    assert inbox.take(10, 5) == []
    inbox.interrupt_with(lambda: called.append(2))
    assert called == [1, 2]


# ------------------------------------------------------------------------------------ lost connections


def test_a_source_that_never_connects_ends_the_run_with_what_went_wrong(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received, "PATIENCE_SECONDS", 0.2)

    def talk(_: Inbox) -> None:
        raise ConnectionRefusedError("nobody there")

    source = make(talk, storage)
    with pytest.raises(ExternalError, match="fake does not answer: nobody there") as caught:
        advance(source, source.initial_offset(time=0))
    source.close()
    assert caught.value.where == "nowhere"


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    return Patience(monkeypatch)


def check_a_message_comes(storage: Any, *tries: Talk) -> None:
    """With the last of some tries to listen."""
    left = iter(tries)

    def talk(inbox: Inbox) -> None:
        next(left)(inbox)

    source = make(talk, storage)
    try:
        advance(source, source.initial_offset(time=0))
    finally:
        source.close()


def fail(_: Inbox) -> None:
    raise ConnectionError


def test_a_connection_that_was_made_again_may_be_quiet_for_long(storage: Any, patience: Patience) -> None:
    def be_quiet(inbox: Inbox) -> None:
        inbox.connected()
        patience.run_out()
        put(inbox, [1])
        hold(inbox)

    check_a_message_comes(storage, fail, be_quiet)


def test_a_connection_that_is_lost_after_a_quiet_time_is_given_the_whole_patience(
    storage: Any, patience: Patience
) -> None:
    def be_quiet_and_fail(inbox: Inbox) -> None:
        inbox.connected()
        patience.run_out()
        raise ConnectionError

    def fail_again(_: Inbox) -> None:
        patience.be_looked_at()
        raise ConnectionError

    check_a_message_comes(storage, be_quiet_and_fail, fail_again, sending([1]))


def test_a_wait_that_the_other_side_asks_for_is_not_its_absence(storage: Any, patience: Patience) -> None:
    def ask_for_a_wait(inbox: Inbox) -> None:
        inbox.extend_patience(2 * received.PATIENCE_SECONDS)
        patience.run_out()
        raise ConnectionError

    def come_back(inbox: Inbox) -> None:
        patience.be_looked_at()
        put(inbox, [1])
        hold(inbox)

    check_a_message_comes(storage, ask_for_a_wait, come_back)


def test_who_is_refused_is_not_tried_again(storage: Any) -> None:
    tries: list[int] = []

    def talk(inbox: Inbox) -> None:
        tries.append(1)
        put(inbox, [1])
        raise RefusedError("not you")

    source = make(talk, storage)
    end = advance(source, source.initial_offset(time=0))
    with pytest.raises(RefusedError, match="not you"):
        advance(source, end)
    source.close()
    assert tries == [1]


def test_messages_without_columns_cannot_be_read() -> None:
    with pytest.raises(ConfigurationError, match="the fake source needs to know its columns"):
        FakeSource().validate()
    assert FakeSource(schema={"n": "int64"}).display() == "FakeSource(nowhere)"


@pytest.mark.parametrize("damage", ["flip the head", "flip the body", "cut", "lose"])
def test_a_damaged_part_of_the_log_is_named_and_not_read(storage: Any, damage: str) -> None:
    log = ReceivedLog(storage, "op")
    for part in (1, 2):
        log.append(part, [pa.record_batch({"a": [part]})], ended=False, resume={"seen": 1234})
    path = "received/op/0000000002.arrow"
    data = bytearray(storage.read(path))
    if damage == "lose":
        storage.delete(path)
    elif damage == "cut":
        storage.write(path, bytes(data[:-1]))
    else:
        data[data.index(b"1234") + 1 if damage == "flip the head" else -30] ^= 1
        storage.write(path, bytes(data))
    with pytest.raises(CorruptStateError, match=f"`{path}` is"):
        list(log.read(2))
    with pytest.raises(CorruptStateError, match=f"`{path}` is"):
        log.resume(2)
    assert [batch.to_pydict() for batch in log.read(1)] == [{"a": [1]}]


def test_a_part_without_a_checksum_is_read(storage: Any) -> None:
    frame = to_ipc([pa.record_batch({"a": [1]})])
    head = json.dumps({"ended": True, "resume": 7}).encode()
    storage.write("received/op/0000000001.arrow", head + b"\n" + len(frame).to_bytes(8, "little") + frame)
    log = ReceivedLog(storage, "op")
    assert (log.position(1), log.resume(1)) == ({"parts": 1, "ended": True}, 7)
    assert [batch.to_pydict() for batch in log.read(1)] == [{"a": [1]}]


def test_a_log_that_is_shorter_than_the_position_takes_no_new_messages(storage: Any) -> None:
    source = make(sending(range(3)), storage)
    start = source.initial_offset(time=0)
    end = advance(source, start)
    source.close()
    for path in storage.list("received/op/"):
        storage.delete(path)
    again = make(sending(range(3, 5)), storage)
    with pytest.raises(CorruptStateError, match=f"{end['received']['parts']:010}.arrow` is missing"):
        again.latest_offset(end, LIMIT, parallelism=1)
    again.close()
