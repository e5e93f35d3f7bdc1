from __future__ import annotations

import pytest

from elbowroom.study.paper import PARTS, PRINTED, SCORES
from elbowroom.study.paper.printed import EFFECTIVE, HYPERPARAMETERS, TRANSLATIONS, Printed
from elbowroom.study.paper.translations import count

SUMS = {  # the printed numbers of the paper's source add up to these
    "ppl": 1454.24,
    "fitted_ppl": 832.05,
    "fitted_temperature": 48.7,
    "accuracy": 28.8615,
    "recall@5": 52.5538,
    "mrr": 39.6335,
    "isotropy": 48.1345,
}


def test_every_printed_row_is_there_and_shown() -> None:
    shown = {row.printed for part in PARTS.values() for row in part.rows} - {None}
    assert shown == set(PRINTED)
    assert len(PRINTED) == 37
    cells = [cells for row in PRINTED.values() for cells in row.values()]
    assert len(cells) == 73  # the monolingual row has one language
    assert all(tuple(row) == SCORES for row in cells)


@pytest.mark.parametrize(
    ("part", "rows"),
    [("metrics", 10), ("extended", 15), ("untied", 6), ("softminus", 10), ("detached", 2)],
)
def test_each_table_has_the_papers_rows(part: str, rows: int) -> None:
    printed = [row.printed for row in PARTS[f"table-{part}"].rows if row.printed is not None]
    assert len(printed) == len(set(printed)) == rows


def test_sums_over_all_printed_numbers_guard_against_slips_of_the_pen() -> None:
    found = {
        score: sum(
            float(cells[score].text)
            for row in PRINTED.values()
            for cells in row.values()
            if cells[score].text != "inf"
        )
        for score in SCORES
    }
    assert {score: round(value, 4) for score, value in found.items()} == SUMS


def test_slips_are_judged_by_what_was_meant() -> None:
    slips = {
        (row, language, score): (cell.text, cell.meant)
        for row, languages in PRINTED.items()
        for language, cells in languages.items()
        for score, cell in cells.items()
        if cell.note
    }
    assert slips == {
        ("softminus-dt-1-c5", "hr", "mrr"): ("0.6595", "0.5017"),
        ("softminus-dt-1-c5", "hr", "isotropy"): ("0.5017", "0.3262"),
        ("softminus-dt-2-c5", "hr", "mrr"): ("0.5017", "0.4869"),
        ("softminus-dt-2-c5", "hr", "isotropy"): ("0.4870", "0.1841"),
        ("detached-1", "hr", "isotropy"): ("0.7866", "0.3074"),
        ("detached-1", "lr", "isotropy"): ("0.3075", "0.7865"),
    }


def test_a_printed_number_stands_for_what_rounds_to_it() -> None:
    assert Printed("0.7", "0.7").half_unit == pytest.approx(0.05)
    assert Printed("5.04", "5.04").half_unit == pytest.approx(0.005)
    assert Printed("64", "64").half_unit == 0.5


def test_the_other_tables() -> None:
    assert len(HYPERPARAMETERS) == 16
    assert [row[0] for row in EFFECTIVE.values()] == [768, 1024, 1280, 1600]
    counts = {
        m: count({k: list(map(list, v)) for k, v in t.items()}) for m, t in TRANSLATIONS.items()
    }
    assert counts == {"ce-tied": 0, "margin-.6": 10}  # as the text says
