from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from elbowroom.lab.config import as_plain
from elbowroom.study.paper import METHODS, PARTS, SEEDS, base_of, config_of, methods_of, study_of
from elbowroom.study.paper.families import FAMILIES, SETTINGS
from elbowroom.study.paper.rows import FIRST_TUNING_SEED
from elbowroom.study.paper.tuning import settled, tuning_runs, tunings

FEW = ("ce-tied", "focal", "mile")
PART = replace(PARTS["table-rivals"], families=FEW)


def tried(
    family: str, *scores: tuple[float, ...], seed: int = FIRST_TUNING_SEED
) -> list[dict[str, Any]]:
    """Return a run a setting and seed, whose perplexities are these in both languages."""
    settings = FAMILIES[family].settings
    return [
        record(setting.method, seed + i, score, score)
        for setting, listed in zip(settings, scores, strict=False)
        for i, score in enumerate(listed)
    ]


def record(method: str, seed: int, hr: float, lr: float, **more: Any) -> dict[str, Any]:
    both = (("hr", hr), ("lr", lr))
    scores = {name: {"fitted_ppl": value, "best_ppl": value} for name, value in both}
    seeds = {"init_seed": seed, "data_seed": seed}
    config = as_plain(config_of(method, seed=seed))
    return {"name": method, **seeds, "status": "done", "config": config, "languages": scores} | more


def chosen(records: list[dict[str, Any]], families: tuple[str, ...] = FEW) -> dict[str, str | None]:
    found = tunings(study_of(records), families)
    return {name: t.chosen.method if t.chosen else None for name, t in found.items()}


ALL = (
    tried("ce-tied", (9.0, 9.1), (9.0, 8.0), (7.0, 9.9), (9.9, 9.9))
    + tried("focal", (9.0, 9.0), (8.0, 9.0), (8.0, 9.0), (9.0, 9.0))
    + tried("mile", (3.0, 3.0), (4.0, 4.0), (5.0, 5.0), (2.0, 2.0))
)


def test_the_lowest_mean_of_logarithms_is_chosen_and_of_equals_the_first() -> None:
    assert chosen(ALL) == {"ce-tied": "ce-tied-rate2", "focal": "focal-1", "mile": "mile-.25"}
    means = [trial.mean for trial in tunings(study_of(ALL), FEW)["ce-tied"].trials]
    expected = [math.log(9.0 * 9.1) / 2, math.log(9 * 8) / 2, math.log(7 * 9.9) / 2, math.log(9.9)]
    assert means == pytest.approx(expected)


def test_both_languages_count_alike() -> None:
    first, second, third, fourth = (s.method for s in FAMILIES["focal"].settings)
    found = [
        record(first, 1000, 5.0, 10.0),
        record(second, 1000, 6.0, 8.2),  # 49.2 is less than 50
        record(third, 1000, 4.0, 13.0),
        record(fourth, 1000, 7.1, 7.1),
    ]
    assert chosen(found, ("focal",)) == {"focal": second}


def test_the_order_of_records_and_reported_runs_choose_nothing() -> None:
    mixed = list(ALL)
    random.Random(0).shuffle(mixed)
    reported = [record(s.method, 3, 1.01, 1.01) for s in FAMILIES["focal"].settings[:1]]
    assert chosen([*reported, *mixed]) == chosen(ALL)
    assert chosen(reported) == dict.fromkeys(FEW)
    assert chosen([]) == dict.fromkeys(FEW)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"status": "failed"},
        {"languages": {"hr": {"fitted_ppl": 1.5}, "lr": {}}},
        {"languages": {"hr": {"fitted_ppl": 1.5}, "lr": {"fitted_ppl": None}}},
        {"languages": {"hr": {"fitted_ppl": 1.5}, "lr": {"fitted_ppl": ".inf"}}},
    ],
)
def test_a_setting_with_a_run_that_failed_is_not_chosen(spoiled: dict[str, Any]) -> None:
    listed = [one | spoiled if one["name"] == "mile-.25" else one for one in ALL]
    assert chosen(listed)["mile"] == "mile-1"
    trial = tunings(study_of(listed), FEW)["mile"].trials[-1]
    assert trial.mean == math.inf
    none = [one | spoiled if one["name"].startswith("mile") else one for one in ALL]
    assert chosen(none) == {"ce-tied": "ce-tied-rate2", "focal": "focal-1", "mile": None}


def test_who_has_not_had_the_whole_budget_chooses_nothing() -> None:
    for missing in range(0, len(ALL), 7):
        listed = [one for i, one in enumerate(ALL) if i != missing]
        owner = next(f for f in FEW if any(s.method == ALL[missing]["name"] for s in settings(f)))
        assert chosen(listed) == {**chosen(ALL), owner: None}
    half = [one for one in ALL if one["name"] in {s.method for f in FEW for s in settings(f)[:2]}]
    assert chosen(half) == {"ce-tied": "ce-tied-rate.5", "focal": "focal-1", "mile": "mile-1"}
    assert chosen([*half, ALL[4], ALL[5]])["focal"] is None  # another family had three settings


def settings(family: str) -> tuple[Any, ...]:
    return FAMILIES[family].settings


def test_what_is_chosen_becomes_a_row_and_needs_its_runs() -> None:
    study = study_of(ALL)
    table, other = settled([PART, PARTS["table-untied"]], study)
    assert other is PARTS["table-untied"]
    assert [row.label for row in table.rows] == [
        "Cross-entropy: learning rate × 2",
        "Focal: gamma 1",
        "MiLe: gamma .25",
    ]
    assert methods_of([table]) == ("ce-tied-rate2", "focal-1", "mile-.25")
    assert all(row.printed is None for row in table.rows)
    assert settled([PART], study_of([]))[0].rows == ()
    assert methods_of([PART]) == ()


def test_reported_and_tuning_runs_of_a_method_are_apart() -> None:
    study = study_of([*ALL, record("focal-1", 0, 7.0, 7.0), record("focal-1", 1, 7.5, 7.5)])
    assert study.values("focal-1", "hr", "fitted_ppl") == {0: 7.0, 1: 7.5}
    assert [r["init_seed"] for r in study.of("focal-1")] == [0, 1]
    assert [r["init_seed"] for r in study.tuning_of("focal-1")] == [1000, 1001]
    assert [r["init_seed"] for r in study.reported] == [0, 1]
    assert study.is_papers


def test_a_record_of_another_setting_is_an_error() -> None:
    other = record("focal-1", 1000, 7.0, 7.0)["config"]
    with pytest.raises(ValueError, match=r"the method focal-2, with loss.options.gamma 2.0"):
        study_of([record("focal-2", 1000, 7.0, 7.0, config=other)])
    for name in ("centered", "bias"):
        with pytest.raises(ValueError, match=f"the method {name}"):
            study_of([record(name, 0, 7.0, 7.0, config=record("ce-tied", 0, 7.0, 7.0)["config"])])


def test_the_budget_is_the_same_for_all_and_its_seeds_are_not_reported() -> None:
    runs = tuning_runs([PART])
    assert len(runs) == len(FEW) * SETTINGS * 2
    count = {
        family: sum(run.name in {s.method for s in settings(family)} for run in runs)
        for family in FEW
    }
    assert set(count.values()) == {SETTINGS * 2}
    assert {run.init_seed for run in runs} == {1000, 1001}
    assert min(run.init_seed for run in runs) >= FIRST_TUNING_SEED > SEEDS
    assert {run.training.steps for run in runs} == {8001}
    quick = tuning_runs([PART], base_of(quick=True), quick=True)
    assert [run.folder for run in quick] == [
        f"{s.method}-i1000-d1000" for family in FEW for s in settings(family)[:2]
    ]
    assert tuning_runs([PARTS["table-untied"]]) == []


def test_a_setting_of_two_families_is_trained_once() -> None:
    part = replace(PART, families=("annealed", "default"))
    assert len(tuning_runs([part])) == (2 * SETTINGS - 1) * 2


def test_every_method_is_shown_somewhere_or_tried() -> None:
    shown = methods_of(PARTS.values())
    tried_ones = itertools.chain(*(settings(family) for family in FAMILIES))
    assert {*shown, *(setting.method for setting in tried_ones)} == set(METHODS)
