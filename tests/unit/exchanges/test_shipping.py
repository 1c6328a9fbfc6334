"""Which of the user's modules travel to the workers, from wherever the script lies."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zipfile
from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException

import headrace as hr
from headrace.exchanges.spark.shipping import _archive, _user_files, ship_code
from headrace.functions.user import load_udfs

SCRIPT = """
import headrace as hr
from {helper} import double

pipeline = hr.Pipeline("shipped")
pipeline.source("impulse", message_count=1).map(double).sink("blackhole")
"""


@pytest.mark.parametrize("way", ["plain", "dots", "link"])
def test_a_script_and_the_helper_beside_it_are_shipped_however_it_is_called(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(home)
    helper = f"shipping_helper_{way}"
    (home / f"{helper}.py").write_text("def double(batch):\n    return batch\n")
    (home / f"shipping_script_{way}.py").write_text(SCRIPT.format(helper=helper))
    monkeypatch.chdir(tmp_path / "elsewhere")
    directory = {"plain": str(home), "dots": "../home", "link": str(tmp_path / "link")}[way]
    plan = hr.load_pipeline(f"{directory}/shipping_script_{way}.py").plan()
    files = dict(_user_files(plan))
    assert {f"{helper}.py", f"shipping_script_{way}.py"} <= set(files)
    assert Path(_archive(files)).exists()


@pytest.mark.parametrize("way", ["import {helper}", "from {helper} import double", "import {helper}.inner"])
def test_what_a_file_of_functions_imports_from_beside_it_is_shipped(tmp_path: Path, way: str) -> None:
    helper = f"udf_helper_{len(way)}"
    call = "double(x)" if way.startswith("from") else way.format(helper=helper).split()[1] + ".double(x)"
    (tmp_path / helper).mkdir()
    (tmp_path / helper / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / helper / "inner.py").write_text("def double(x):\n    return 2 * x\n")
    functions = tmp_path / "functions.py"
    functions.write_text(
        f"{way.format(helper=helper)}\nfrom headrace import udf\n\n\n"
        f"@udf\ndef twice(x: int) -> int:\n    return {call}\n"
    )
    program = "create table i with (connector = 'impulse'); select twice(counter) from i"
    plan = hr.Pipeline.from_sql(program, udfs=load_udfs(functions)).plan()
    files = dict(_user_files(plan))
    assert {f"{helper}/__init__.py", f"{helper}/inner.py"} <= set(files)


def test_the_archive_is_a_new_file_of_its_owner_and_the_same_for_all_pipelines_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TMPDIR", raising=False)
    helper = tmp_path / "helper.py"
    helper.write_text(f"WHERE = {str(tmp_path)!r}\n")
    path = Path(_archive({"helper.py": helper}))
    assert path.is_relative_to(tmp_path / "cache" / "headrace" / "run")
    assert [stat.S_IMODE(part.stat().st_mode) for part in (path, path.parent)] == [0o600, 0o700]
    assert _archive({"helper.py": helper}) == str(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.read("helper.py") == helper.read_bytes()


def test_an_archive_that_somebody_else_has_put_there_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    helper = tmp_path / "helper.py"
    helper.write_text(f"PLACE = {str(tmp_path)!r}\n")
    digest = hashlib.sha256(b"helper.py\0" + helper.read_bytes()).hexdigest()[:12]
    planted = tmp_path / f"headrace-code-{os.getpid()}-{digest}.zip"
    planted.write_bytes(b"planted")
    path = Path(_archive({"helper.py": helper}))
    assert path != planted
    assert path.read_bytes() != b"planted"


class RefusingContext:
    """A SparkContext of a cluster, which takes one file of a name."""

    master = "local[2]"

    def addPyFile(self, path: str) -> None:  # noqa: N802 - the name that Spark gives it
        raise IllegalArgumentException(f"File {Path(path).name} was already registered with a different path")


def test_a_file_that_spark_does_not_take_is_named_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "helper.py").touch()
    pipeline = hr.Pipeline()
    pipeline.source(hr.ImpulseSource(message_count=1)).sink("blackhole")
    with pytest.raises(
        hr.ConfigurationError, match=r"helper\.py cannot be shipped .* different path"
    ) as caught:
        ship_code(RefusingContext(), pipeline.plan(), [str(tmp_path / "helper.py")])
    assert "need different names" in str(caught.value)
