from __future__ import annotations

from elbowroom.report.paper.chosen import chosen_table
from elbowroom.study import mean_interval
from elbowroom.study.paper import parts_of, study_of
from tests.study.paper.made_up import record


def test_the_steps_that_were_chosen() -> None:
    part = parts_of(["table-detached"])[0]
    steps = [{"step": 7500, "loss": 1.6}, {"step": 250, "loss": 1.5}, {"step": 8000, "loss": None}]
    listed = [record("detached-2", seed, chosen=one) for seed, one in enumerate(steps)]
    table = chosen_table(study_of(listed), part)
    assert table is not None
    label = "Detached under threshold, margin 2"
    assert table.rows == [[label, 3, 7500, 250, 8000, mean_interval([1.6, 1.5])]]
    assert chosen_table(study_of([record("detached-2")]), part) is None
