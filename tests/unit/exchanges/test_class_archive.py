"""The archive from which Java starts: of this installation only, whole or not at all, and made once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from headrace.exchanges.spark import class_archive
from headrace.exchanges.spark.class_archive import archive_options, make, make_archive_later


@pytest.fixture(autouse=True)
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What is to be done when the process has ended, which is not done; and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(class_archive, "_is_registered", False)
    wanted: list[tuple[object, ...]] = []
    monkeypatch.setattr("atexit.register", lambda *call: wanted.append(call))
    return wanted


def write(archive: Path, *, complete: bool = True) -> None:
    archive.write_bytes(class_archive._COMPLETE if complete else bytes(100))


def test_the_first_process_has_none_and_asks_for_one_once(registered: list[tuple[object, ...]]) -> None:
    assert archive_options({}, "") == []
    assert registered == [], "not before Spark has started"
    make_archive_later({}, "")
    make_archive_later({}, "")
    assert registered == [(class_archive._start_maker, os.getpid())]


def test_java_is_started_from_an_archive_that_is_there(registered: list[tuple[object, ...]]) -> None:
    archive = class_archive._archive()
    write(archive)
    os.utime(archive, (1, 1))
    assert archive_options({}, "") == [f"-XX:SharedArchiveFile={archive}"]
    assert archive.stat().st_mtime > time.time() - 60, "it counts as used"
    make_archive_later({}, "")
    assert registered == []


def test_half_an_archive_is_not_used(registered: list[tuple[object, ...]]) -> None:
    write(class_archive._archive(), complete=False)
    assert archive_options({}, "") == []
    make_archive_later({}, "")
    assert len(registered) == 1


@pytest.mark.parametrize(
    "given", ["-Xshare:off", "-XX:SharedArchiveFile=/x.jsa", "-XX:+AutoCreateSharedArchive"]
)
def test_whoever_chooses_an_archive_or_none_is_left_alone(
    given: str, registered: list[tuple[object, ...]]
) -> None:
    write(class_archive._archive())
    assert archive_options({}, f"-Dx=y {given}") == []
    assert archive_options({"spark.driver.extraClassPath": "/more.jar"}, "") == []
    class_archive.discard_archive()
    make_archive_later({}, given)
    make_archive_later({"spark.driver.extraClassPath": "/more.jar"}, "")
    assert registered == []


def test_another_java_or_other_jars_have_another_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home in ("one", "two"):
        (tmp_path / home / "bin").mkdir(parents=True)
        (tmp_path / home / "bin" / "java").touch()
    spark = tmp_path / "spark"
    (spark / "jars").mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(spark))
    names = set()
    for home in ("one", "two"):
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / home))
        names.add(class_archive._archive())
    (spark / "jars" / "spark.jar").write_bytes(b"1")
    names.add(class_archive._archive())
    (spark / "jars" / "spark.jar").write_bytes(b"12")
    names.add(class_archive._archive())
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    names.add(class_archive._archive())
    assert len(names) == 5
    assert class_archive._archive() in names, "as long as nothing changes, neither does the name"


def test_what_cannot_be_made_is_not_tried_again_for_some_days(
    registered: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_archive: Path) -> None:
        raise OSError("no room")

    monkeypatch.setattr(class_archive, "_run_spark", fail)
    archive = class_archive._archive()
    make(archive)
    assert archive.with_suffix(".failed").read_text() == "no room\n"
    make_archive_later({}, "")
    assert registered == []
    os.utime(archive.with_suffix(".failed"), (1, 1))
    make_archive_later({}, "")
    assert len(registered) == 1


def test_on_a_machine_that_has_no_time_now_it_is_tried_again(
    registered: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_too_long(_archive: Path) -> None:
        class_archive._give_up(signal.SIGALRM, None)

    monkeypatch.setattr(class_archive, "_run_spark", take_too_long)
    make(class_archive._archive())
    make_archive_later({}, "")
    assert len(registered) == 1


def test_an_archive_appears_whole_and_old_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = class_archive._archive()
    old, used = archive.with_name("spark-old.jsa"), archive.with_name("spark-used.jsa")
    for file in (old, used):
        write(file)
    os.utime(old, (1, 1))
    written: list[Path] = []

    def run(unfinished: Path) -> None:
        assert not archive.exists()
        write(unfinished)
        written.append(unfinished)

    monkeypatch.setattr(class_archive, "_run_spark", run)
    make(archive)
    make(archive)
    assert len(written) == 1
    assert sorted(file.name for file in archive.parent.iterdir()) == sorted(["lock", archive.name, used.name])


def test_a_java_that_writes_nothing_leaves_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "_run_spark", lambda unfinished: write(unfinished, complete=False))
    archive = class_archive._archive()
    make(archive)
    assert not archive.exists()
    assert archive.with_suffix(".failed").exists()
    assert not archive.with_suffix(".tmp").exists()


def test_an_archive_with_which_java_does_not_start_is_gone_for_the_next_start(
    registered: list[tuple[object, ...]],
) -> None:
    write(class_archive._archive())
    class_archive.discard_archive()
    assert archive_options({}, "") == []
    make_archive_later({}, "")
    assert len(registered) == 1
    class_archive.discard_archive()


def test_two_makers_do_not_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    archive = class_archive._archive()
    monkeypatch.setattr(class_archive, "_run_spark", lambda _: pytest.fail("another one is at work"))
    with class_archive._only_maker(archive.parent) as is_mine:
        assert is_mine
        make(archive)
    assert not archive.with_suffix(".failed").exists()
