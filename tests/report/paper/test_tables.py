from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest

from elbowroom.report.paper.cells import cell_markup, cell_text, printed_text
from elbowroom.report.paper.tables import (
    cosine_table,
    effective_table,
    hyperparameter_table,
    notes_of,
    seeds_table,
    summary_table,
    translation_table,
)
from elbowroom.study import mean_interval, prediction_interval
from elbowroom.study.paper import PARTS, SCORES, Printed, Result, base_of, study_of
from elbowroom.study.paper.effective import effective_margins
from tests.study.paper.made_up import record, records

METRICS = PARTS["table-metrics"]
NEAR = {key: [["A hr", 0.5], ["  lr", 0.4], ["b lr", 0.3]] for key in ("a hr", "A lr", "a lr")}


def result(inside: bool | None = True, text: str = "5.04") -> Result:
    values = {0: 5.0, 1: 5.02, 2: 5.1}
    listed = list(values.values())
    return Result(
        values=values,
        mean=mean_interval(listed),
        new=prediction_interval(listed),
        printed=Printed(text, text),
        inside=inside,
    )


@pytest.mark.parametrize(("inside", "said"), [(True, " in"), (False, " out"), (None, "")])
def test_a_cell_says_mean_interval_print_and_whether_it_agrees(
    inside: bool | None, said: str
) -> None:
    assert cell_text(result(inside), 2) == f"5.04 [4.91, 5.17]; paper 5.04{said}"
    markup = cell_markup(result(inside), 2, "Baseline")
    assert markup.count('class="dot"') == 3
    assert ("badge" in markup) == (inside is not None)
    assert "seed 2: 5.1" in markup
    assert "○" in markup


def test_a_print_that_is_not_comparable_has_no_ring() -> None:
    apart = replace(result(None), comparable=False)
    assert cell_markup(result(), 2, "x").count("paper: 5.04") == 1
    assert "paper: 5.04" not in cell_markup(apart, 2, "x")


def test_a_cell_without_runs_or_without_print() -> None:
    nothing = Result(values={}, mean=None, new=None, printed=None, inside=None)
    assert cell_text(nothing, 2) == printed_text(nothing) == "–"
    assert "–" in cell_markup(nothing, 2, "x")
    assert cell_text(result(None, "inf"), 2) == "5.04 [4.91, 5.17]; paper inf"
    assert "inf" in cell_markup(result(None, "inf"), 2, "x")
    one = Result(values={0: 5.0}, mean=mean_interval([5.0]), new=None, printed=None, inside=None)
    assert cell_text(one, 2) == "5.00"


def test_the_table_has_a_line_a_row_and_language_and_numbered_notes() -> None:
    table = summary_table(study_of(records(("ce-tied", "margin-1"))), METRICS)
    assert len(table.rows) == 2 * len(METRICS.rows) - 1  # the monolingual model has one language
    lines = table.markdown().splitlines()
    assert re.match(r"\| Baseline \| hr \| 5\.0\d \[.*\]; paper 5\.04 (in|out) \|", lines[2])
    assert "| Margin 8 | lr | –; paper 10.69 |" in table.markdown()
    notes = notes_of(METRICS)
    row = next(row for row in METRICS.rows if row.label == "Margin 1 + SE")
    assert f"Margin 1 + SE [{notes.index(row.note) + 1}]" in table.markdown()
    assert r"\begin{tabular}" in table.latex()


def test_every_seed_is_in_the_csv_with_all_digits() -> None:
    study = study_of(records(("ce-tied",), 3))
    found = list(csv.DictReader(io.StringIO(seeds_table(study, METRICS).csv())))
    assert len(found) == len(SCORES) * (2 * len(METRICS.rows) - 1)
    first = found[0]
    values = list(study.values("ce-tied", "hr", "ppl").values())
    assert float(first["mean"]) == mean_interval(values).estimate
    assert float(first["one more seed low"]) == prediction_interval(values).low
    assert first["every seed"].split() == [f"{value:.5g}" for value in values]
    assert (first["paper"], first["inside"]) == ("5.04", "yes")
    slips = seeds_table(study_of([record("detached-1")]), PARTS["table-detached"]).csv()
    assert ",0.7866,0.3074," in slips


def test_hyperparameters_are_those_of_the_runs() -> None:
    plain = hyperparameter_table(study_of([])).markdown()
    assert "| max_iters | 8000 | 8001 |" in plain
    assert "| learning_rate | 1e-3 | 0.001 |  |" in plain
    quick = study_of([record("monolingual", 0, base_of(quick=True))])
    shown = hyperparameter_table(quick).markdown()
    assert "| n_layer | 4 | 2 | differs |" in shown
    assert "| max_iters | 8000 | 9 | differs; the code makes" in shown


def test_effective_margins_beside_the_print() -> None:
    found = effective_margins(vocab_size=64, widths={"gpt2": 16}, sample=8, draws=2)
    text = effective_table(found).markdown()
    assert "14.04 out" in text
    assert "32.96 (5.4)" in text


def test_mean_cosines_over_seeds() -> None:
    listed = [record("ce-tied", s, cosines={"T": 0.1 * s, "C": 0.5}) for s in range(3)]
    table = cosine_table(study_of(listed), ("ce-tied", "margin-.6"))
    assert table is not None
    assert table.rows[0][:2] == ["ce-tied", 3]
    assert table.rows[0][2] == mean_interval([0.0, 0.1, 0.2])
    assert cosine_table(study_of(records(("ce-tied",))), ("ce-tied",)) is None


def test_translations_show_spaces_and_count() -> None:
    near = {"A hr": [["a hr", 0.6], ["a lr", 0.5], ["B lr", 0.4]], **NEAR}
    study = study_of([record("ce-tied", 0, neighbours=near), record("margin-.6")])
    table = translation_table(study, ("ce-tied", "margin-.6"))
    assert table is not None
    assert [row[:2] for row in table.rows] == [["ce-tied", "ours"], ["ce-tied", "paper"]]
    assert table.rows[0][2] == "a hr 0.60, a lr 0.50, B lr 0.40"
    assert "␣ lr 0.40" in str(table.rows[0][3])
    assert table.rows[0][-1].estimate == 5  # type: ignore[union-attr]
    assert table.rows[1][-1] == 0.0
    assert translation_table(study_of(records(("margin-.6",))), ("margin-.6",)) is None
