from __future__ import annotations

from elbowroom.study import wilson_interval
from elbowroom.study.paper import study_of
from elbowroom.study.paper.curves import SHARED, curves, curves_of, discovered
from tests.study.paper.made_up import record


def test_series_are_short_and_end_with_the_record() -> None:
    lines = [
        {"step": 5, "loss": 2.0, "kept": 0.123456},
        {"step": 5, "eval": {"hr": {"nll": 1.0}, "lr": {"nll": 2.0, "translation": 0.0}}},
        {"step": 10, "loss": 2.0, "kept": None},
        {"step": 10, "eval": {"hr": {"nll": 1.0}, "lr": {"translation": None}}},
        {"step": 12, "loss": 2.0, "kept": 0.5},
    ]
    assert curves_of(lines, {"steps": 12, "translation": 0.9}) == {
        "kept": {"steps": [5, 12], "values": [0.1235, 0.5]},
        "translation": {"steps": [5, 12], "values": [0.0, 0.9]},
    }
    assert curves_of(lines[:1], {"steps": 12, "translation": 0.9}) == {
        "kept": {"steps": [5], "values": [0.1235]}  # one end alone is no curve
    }
    assert curves_of([], {"steps": 12, "translation": None}) is None


def test_series_of_finished_runs_by_seed() -> None:
    one = {"kept": {"steps": [1], "values": [0.5]}}
    failed = record("margin-1", 2, status="failed", curves=one)
    study = study_of([record("margin-1", 1, curves=one), record("margin-1"), failed])
    assert curves(study, "margin-1", "kept") == {1: one["kept"]}
    assert curves(study, "margin-1", "translation") == curves(study, "ce-tied", "kept") == {}


def test_a_third_of_the_rows_is_a_discovery() -> None:
    scores = [SHARED, 0.9, SHARED - 0.01, None]
    listed = [record("margin-1", seed, translation=score) for seed, score in enumerate(scores)]
    found = discovered(study_of(listed), "margin-1")
    assert found == wilson_interval(2, 3)
    assert discovered(study_of([record("ce-tied")]), "ce-tied") is None
