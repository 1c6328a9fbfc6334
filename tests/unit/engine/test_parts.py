"""What a task is told of an epoch is its part, and the parts together are all of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import headrace as hr
from headrace.base.keys import KEY_SPACE, key_range
from headrace.base.watermarks import Watermark
from headrace.engine.driver import EpochDriver
from headrace.engine.parts import EpochParts, PackedEpoch
from headrace.engine.stages import cut_stages
from headrace.state.manager import saved_watermark, select_files
from headrace.storage.open import open_storage
from headrace.testing.in_process import run_in_process
from tests.flows import FLOWS


@pytest.mark.parametrize("flow", ["two_levels", "join", "totals"])
@pytest.mark.parametrize("parallelism", [1, 3, 4, 7])
def test_a_subtask_finds_the_same_files_in_its_part_as_in_the_whole(
    flow: str, parallelism: int, tmp_path: Path
) -> None:
    plan = FLOWS[flow](hr.MemorySink).plan()
    # Files of several epochs, and of several parallelisms.
    run_in_process(
        plan, tmp_path, parallelism=4, epoch_rows=20, max_epochs=6, rescale=lambda epoch: 3 + epoch % 3
    )
    driver = EpochDriver(cut_stages(plan, parallelism=parallelism), open_storage(str(tmp_path)))
    driver.open()
    context = driver.begin()
    assert any(metadata.files() for metadata in context.restored.values())
    parts = EpochParts(driver.stages, context)
    packed = pickle.loads(pickle.dumps(PackedEpoch.of(driver.stages, context, [])))
    for chain in driver.stages.chains:
        for subtask in range(chain.parallelism if chain.stage else 0):
            mine = parts.context(chain.stage, subtask)
            assert packed.context(chain.stage, subtask) == mine
            assert (mine.job, mine.epoch, mine.lanes, mine.inputs) == (
                context.job,
                context.epoch,
                context.lanes,
                context.inputs,
            )
            for node in chain.nodes:
                whole, part = context.restored.get(node), mine.restored.get(node)
                assert (whole is None) == (part is None)
                if whole is None or part is None:
                    continue
                assert saved_watermark(part) == saved_watermark(whole)
                for name, table in whole.table_configs.items():
                    is_global = table.kind == "global"
                    low, high = (0, KEY_SPACE - 1) if is_global else key_range(subtask, chain.parallelism)
                    both = [
                        select_files(each, name, low=low, high=high, is_global=is_global)
                        for each in (whole, part)
                    ]
                    assert both[0] == both[1]
                marks = context.outputs.get(node, {})
                own: dict[int, Watermark] = dict(mine.outputs.get(node, {}))
                assert own.get(subtask, own.get(-1)) == marks.get(subtask, marks.get(-1))


def test_a_part_does_not_grow_with_the_number_of_subtasks(tmp_path: Path) -> None:
    plan = FLOWS["running"](hr.MemorySink).plan()
    sizes = []
    for parallelism in (4, 32):
        state = tmp_path / str(parallelism)
        run_in_process(plan, state, parallelism=parallelism, epoch_rows=100, max_epochs=2)
        driver = EpochDriver(cut_stages(plan, parallelism=parallelism), open_storage(str(state)))
        driver.open()
        packed = PackedEpoch.of(driver.stages, driver.begin(), [])
        sizes.append(max(len(part) for stage in packed.parts for part in stage))
    assert sizes[1] < 1.5 * sizes[0]
