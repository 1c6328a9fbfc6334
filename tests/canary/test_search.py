"""The search for the canary finds it in every form."""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.canary.options import CANARY
from tests.canary.search import file_holds_canary


def test_the_search_for_a_secret_finds_one(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text(f"..{CANARY}..")
    (tmp_path / "wide").write_bytes(f"..{CANARY}..".encode("utf-16-le"))
    pq.write_table(pa.table({"x": [f"..{CANARY}.."]}), tmp_path / "table")
    for shift in range(3):
        (tmp_path / f"base64 {shift}").write_bytes(
            base64.b64encode(b"x" * shift + CANARY.encode() + b"yyyyyy")
        )
    assert all(file_holds_canary(file) for file in tmp_path.iterdir())
