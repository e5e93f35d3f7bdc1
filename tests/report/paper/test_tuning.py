from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from elbowroom.report.paper import Extras, write_reproduction
from elbowroom.report.paper.tuning import (
    budget_line,
    standing_lines,
    standing_note,
    standing_table,
    tuning_table,
)
from elbowroom.study.paper import PARTS, Study, study_of
from elbowroom.study.paper.families import FAMILIES
from elbowroom.study.paper.tuning import tunings
from tests.study.paper.test_tuning import record

FEW = ("ce-tied", "annealed", "focal", "mile")
PART = replace(PARTS["table-rivals"], families=FEW)
CHOSEN = {"ce-tied": "ce-tied-rate2", "annealed": "margin-default", "focal": "focal-2"}


@pytest.fixture(scope="module")
def study() -> Study:
    """Four families of which the last failed; the first setting but one is best, or the first."""
    listed = []
    for family in FEW:
        for i, setting in enumerate(FAMILIES[family].settings):
            best = setting.method in CHOSEN.values()
            for seed in (1000, 1001):
                ppl = 6.0 if best else 7.0 + i
                failed = {"status": "failed", "reason": "why"} if family == "mile" else {}
                listed.append(record(setting.method, seed, ppl, ppl, **failed))
    for family, hr in (("ce-tied", 5.0), ("annealed", 4.8), ("focal", 5.0)):
        for seed in range(4):
            one = record(CHOSEN[family], seed, hr + 0.01 * seed, 2 * hr + 0.02 * seed)
            one["languages"]["hr"]["accuracy"] = 0.5 + 0.01 * seed
            listed.append(one)
    return study_of(listed)


def test_the_tuning_hides_nothing(study: Study) -> None:
    table = tuning_table(tunings(study, FEW))
    assert len(table.rows) == 16
    heading, first, _, third, *_ = table.text()
    assert heading == [
        "method",
        "setting",
        "runs",
        "perplexity, by seed",
        "geometric mean",
        "outcome",
    ]
    assert first == [
        *("Cross-entropy", "learning rate × 1", "ce-tied", "7.000 7.000", "7.000"),
        "",
    ]
    assert third[-3:] == ["6.000 6.000", "6.000", "chosen"]
    assert table.text()[-1][-3:] == ["failed failed", "failed", ""]
    assert sum(row[-1] == "chosen" for row in table.rows) == 3


def test_the_budget_and_what_has_no_choice_are_said(study: Study) -> None:
    assert budget_line(tunings(study, FEW)) == (
        "Each method had 4 settings, each trained with seeds 1000 and 1001: 32 runs in all. "
        "Without a choice: MiLe."
    )
    assert budget_line(tunings(study_of([]), FEW)).startswith("Nothing is tuned yet")
    one = tunings(study_of([record("focal-2", 1000, 7.0, 7.0)]), ["focal"])
    assert tuning_table(one).text()[2] == ["Focal", "gamma 1", "focal-1", "", "–", "not tried"]


def test_each_method_stands_against_cross_entropy_and_ours(study: Study) -> None:
    found = tunings(study, FEW)
    table = standing_table(study, found)
    heading, *rows = table.text()
    assert heading[:5] == ["method", "hr: PPL", "lr: PPL", "hr: to CE", "lr: to CE"]
    assert heading[5:] == ["hr: to ours", "lr: to ours", "hr: accuracy", "lr: accuracy"]
    assert [row[0] for row in rows] == [
        "Cross-entropy: learning rate × 2",
        "Annealed, ours: 1 to top-p .999",
        "Focal: gamma 2",
    ]
    assert rows[0][3:5] == ["–", "–"]
    assert rows[0][5].startswith("worse +0.20")
    assert rows[1][3].startswith("better -0.20 [")
    assert rows[1][5:7] == ["–", "–"]
    assert rows[2][3].startswith("undecided 0.00")
    assert rows[2][7:] == ["0.5150", "–"]
    first, _, third, _ = standing_lines(study, found)
    said = "Better: Annealed, ours. Worse: none. Undecided: 1 of 2."
    assert first == f"hr, against “Cross-entropy”. {said}"
    said = "Better: none. Worse: Cross-entropy; Focal. Undecided: 0 of 2."
    assert third == f"hr, against “Annealed, ours”. {said}"
    shown = standing_table(study, found, markup=True).html()
    assert "badge better" in shown
    assert "“Cross-entropy” (CE) and to “Annealed, ours” (ours)" in standing_note(found)


def test_the_page_has_the_rows_that_were_chosen_and_the_whole_tuning(
    study: Study, tmp_path: Path
) -> None:
    parts = [PART, PARTS["figure-distributions"]]
    path = write_reproduction(study, parts, tmp_path, lambda part: part, Extras())
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    assert "36 finished runs of 12 methods, 24 of them for tuning, 8 failed." in text
    assert "Focal: gamma 2" in text
    assert "The tuning: every setting that was tried" in text
    assert "printed numbers" not in text
    assert "The ring is the paper" not in text
    written = {path.name for path in (tmp_path / "tables").iterdir()}
    names = ("table-rivals", "table-rivals-tuning", "table-rivals-standing")
    assert written == {f"{name}.{suffix}" for name in names for suffix in ("md", "tex", "csv")}
    assert (tmp_path / "figures" / "distribution-rivals-fitted-ppl-hr.svg").exists()
    origin = text[text.index('id="origin"') :]
    assert not re.search(r"seed 1000", origin[: origin.index('id="failures"')])
    assert "seed 1000" in origin[origin.index('id="failures"') :]


def test_without_a_tuning_the_table_says_so(tmp_path: Path) -> None:
    some = study_of([record("ce-tied", 0, 5.0, 10.0)])
    path = write_reproduction(some, [PART], tmp_path, lambda part: part, Extras())
    text = path.read_text(encoding="utf-8")
    assert "Nothing is tuned yet: no record is of a run that tunes." in text
    assert "Where each method stands" not in text
    assert "1 finished runs of 1 methods." in text
