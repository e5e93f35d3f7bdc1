from __future__ import annotations

import math
from typing import Any

import pytest

from elbowroom.errors import ArgumentValueError
from elbowroom.study import mean_interval, prediction_interval
from elbowroom.study.paper import METHODS, PARTS, Row, base_of, config_of, parts_of, study_of
from elbowroom.study.paper.claims import judge
from elbowroom.study.paper.results import differences
from tests.study.paper.made_up import record, records

ROW = Row(label="Baseline", method="ce-tied", printed="ce-tied")


def with_ppl(values: list[float], **more: Any) -> list[dict[str, Any]]:
    found = [record("ce-tied", seed, **more) for seed in range(len(values))]
    for each, value in zip(found, values, strict=True):
        each["languages"]["hr"]["ppl"] = value
    return found


def test_a_cell_has_the_mean_the_reach_of_one_more_seed_and_the_print() -> None:
    values = [5.00, 5.02, 4.97, 5.05]
    cell = study_of(with_ppl(values)).result(ROW, "hr", "ppl")
    assert cell.values == dict(enumerate(values))
    assert cell.mean == mean_interval(values)
    assert cell.new == prediction_interval(values)
    assert cell.printed is not None
    assert (cell.printed.text, cell.inside) == ("5.04", True)


@pytest.mark.parametrize(
    ("values", "inside"),
    [
        ([5.0, 5.001, 4.999], False),
        ([5.035, 5.035, 5.035], True),  # 5.04 may be 5.035
        ([5.034, 5.034, 5.034], False),
        ([5.0], None),
        ([], None),
    ],
)
def test_inside_needs_an_interval_and_allows_for_rounding(
    values: list[float], inside: bool | None
) -> None:
    assert study_of(with_ppl(values)).result(ROW, "hr", "ppl").inside is inside


def test_an_infinite_print_is_shown_and_not_judged() -> None:
    row = PARTS["table-detached"].rows[0]
    cell = study_of(records(("detached-2",))).result(row, "hr", "ppl")
    assert cell.printed is not None
    assert cell.printed.value == math.inf
    assert cell.inside is None


def test_runs_that_failed_and_scores_that_are_missing_count_nowhere() -> None:
    listed = with_ppl([5.0, 5.1, 5.2, 5.3])
    listed[1]["status"] = "failed"
    listed[2]["languages"]["hr"]["ppl"] = None
    del listed[3]["languages"]["hr"]
    assert study_of(listed).result(ROW, "hr", "ppl").values == {0: 5.0}


def test_another_setting_is_named_and_nothing_is_judged() -> None:
    base = base_of(quick=True)
    study = study_of([record("ce-tied", s, base) for s in range(3)])
    assert study.differences["training.steps"] == ("450",)
    assert study.differences["model.width"] == ("64",)
    assert not study.is_papers
    assert study.result(ROW, "hr", "ppl").inside is None
    assert study.tally(parts_of()) == (0, 0)


def test_another_learning_rate_is_named_once_whatever_its_multiples() -> None:
    base = base_of(quick=True)
    study = study_of(
        [record(name, 0, base) for name in ("ce-tied", "ce-tied-rate.5", "entmax-rate4")]
    )
    assert study.differences["optimizer.lr"] == ("0.003",)
    assert study.differences["optimizer.min_lr"] == ("0.0003",)


def test_what_does_not_matter_is_no_difference() -> None:
    change = {"training": {"steps": 8000, "log_every": 7, "precision": "float32"}}
    assert differences(record("margin-1", 5, base_of(change=change))) == {}
    for name in METHODS:
        assert differences(record(name)) == {}, name
    found = record("ce-tied")
    found["config"]["loss"]["margin"]["start"] = ".inf"  # as in a record's JSON
    assert differences(found) == {}


def test_a_record_of_another_method_is_an_error() -> None:
    for name, other in (
        ("margin-1", "margin-2"),
        ("ce-tied", "ce-untied"),
        ("skipped-1", "margin-1"),
    ):
        found = {**record(name), "config": record(other)["config"]}
        with pytest.raises(ArgumentValueError, match=f"the method {name}, with"):
            study_of([found])
    with pytest.raises(ArgumentValueError, match="two of ce-tied, seed 0"):
        study_of([record("ce-tied"), record("ce-tied")])


def test_methods_without_a_row_are_left_out_and_named() -> None:
    other = {**record("ce-tied"), "name": "mine"}
    study = study_of([other, record("ce-tied")])
    assert study.others == ("mine",)
    assert len(study.records) == 1


def test_a_row_in_several_tables_counts_once() -> None:
    study = study_of(records(("ce-tied", "margin-1")))
    tables = parts_of(["table-metrics", "table-extended"])
    each = [study.tally([table])[1] for table in tables]
    assert each == [42, 42]  # baseline, margin 1 and the same with SE
    assert study.tally(tables)[1] == 42
    inside, of = study.tally(tables)
    outside = study.outside(tables)
    assert sum(map(len, outside.values())) == of - inside
    assert ("Margin 1 + SE", "lr") in outside


def test_claims_are_judged_over_shared_seeds() -> None:
    listed = [*records(("ce-tied",), 4), *records(("margin-1",), 3)]
    found = judge(study_of(listed))
    assert [(claim.method, claim.score, language) for claim, language in found] == [
        ("margin-1", "fitted_ppl", "hr"),
        ("margin-1", "fitted_ppl", "lr"),
        ("margin-1", "ppl", "hr"),
        ("margin-1", "ppl", "lr"),
    ]
    verdicts = list(found.values())
    assert [v.outcome for v in verdicts] == ["worse", "better", "worse", "worse"]
    assert verdicts[1].difference is not None
    assert verdicts[1].difference.n == 3


def test_the_expected_configuration_is_the_one_that_is_trained() -> None:
    plain = record("monolingual")
    assert plain["config"]["training"]["steps"] == config_of("monolingual").training.steps
