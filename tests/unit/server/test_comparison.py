"""The rows of state that differ between the checkpoints of two epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.api.pipeline import Pipeline
from headrace.base.errors import StateError, UserError
from headrace.server.checkpoints import checkpoint_epochs, compare_table, describe_state
from headrace.testing.in_process import run_in_process

SQL = """
CREATE TABLE numbers (counter BIGINT) WITH (connector = 'impulse', event_rate = 100, message_count = 8);
SELECT counter / 3 AS k, count(*) AS n FROM numbers GROUP BY counter / 3
"""


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the groups 0 0 0, 1 1 1, 2 2: a row in each epoch."""
    folder = str(tmp_path_factory.mktemp("state"))
    run_in_process(Pipeline.from_sql(SQL), folder, epoch_rows=1)
    return folder


def test_rows_of_a_key_have_changed_and_others_are_new(state: str) -> None:
    assert checkpoint_epochs(state) == list(range(1, 9))
    (table,) = describe_state(state, None)
    names = table["operator_id"], table["table"]
    compared = compare_table(state, *names, before=2, after=4, limit=10)
    assert [compared[name] for name in ("rows_before", "rows_after", "added", "removed", "changed")] == [
        1, 2, 1, 0, 1,
    ]  # fmt: skip
    changed, added = compared["changes"]
    assert (changed["change"], changed["before"]["agg0"], changed["after"]["agg0"]) == ("changed", 2, 3)
    assert (added["change"], added["before"], added["after"]["key0"]) == ("added", None, 1)
    back = compare_table(state, *names, before=4, after=2, limit=1)
    assert (back["removed"], back["changed"], len(back["changes"]), back["has_more"]) == (1, 1, 1, True)
    same = compare_table(state, *names, before=3, after=3, limit=10)
    assert (same["rows_after"], same["changes"], same["has_more"]) == (1, [], False)


def test_what_is_not_there_cannot_be_compared(state: str, tmp_path: Path) -> None:
    (table,) = describe_state(state, None)
    with pytest.raises(StateError, match="no checkpoint of epoch 99"):
        compare_table(state, table["operator_id"], table["table"], before=1, after=99, limit=10)
    with pytest.raises(UserError, match="no operator `nobody`"):
        compare_table(state, "nobody", table["table"], before=1, after=2, limit=10)
    with pytest.raises(UserError, match="no checkpoint yet"):
        compare_table(str(tmp_path), "a", "b", before=1, after=2, limit=10)


def test_unless_told_the_oldest_checkpoint_is_compared_with_the_latest(state: str) -> None:
    (table,) = describe_state(state, None)
    names = table["operator_id"], table["table"]
    whole = compare_table(state, *names, before=None, after=None, limit=10)
    assert (whole["before"], whole["after"], whole["rows_after"]) == (1, 8, 3)
    assert whole == compare_table(state, *names, before=1, after=8, limit=10)
    assert compare_table(state, *names, before=5, after=None, limit=10)["before"] == 5
