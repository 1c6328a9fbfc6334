"""The example with PostgreSQL does what it says."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from headrace import load_pipeline
from headrace.testing.in_process import run_in_process
from tests.servers.postgres import Database

EXAMPLE = Path(__file__).parents[2] / "examples" / "postgres"


def test_the_totals_of_cities_follow_the_orders(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres.url)
    postgres.run((EXAMPLE / "tables.sql").read_text())

    def totals() -> list[tuple[object, ...]]:
        pipeline = load_pipeline(str(EXAMPLE / "city_totals.sql"))
        run_in_process(pipeline, tmp_path, idle_epochs=3)
        return postgres.rows("SELECT * FROM city_totals ORDER BY city")

    assert totals() == [("Graz", 1, Decimal("7.00")), ("Linz", 2, Decimal("13.00"))]
    postgres.run(
        "INSERT INTO orders VALUES (5, 3, 100, 'open')",
        "UPDATE orders SET amount = 11 WHERE id = 1",
        "UPDATE orders SET state = 'cancelled' WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
    )
    assert totals() == [("Linz", 2, Decimal("111.00"))]
    postgres.run("UPDATE customers SET city = 'Graz' WHERE id = 3")
    assert totals() == [("Graz", 1, Decimal("100.00")), ("Linz", 1, Decimal("11.00"))]
