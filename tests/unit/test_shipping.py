"""Which of the user's modules travel to the workers, from wherever the script lies."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.spark.shipping import _archive, _user_files

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
