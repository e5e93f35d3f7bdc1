"""The same methods by two protocols, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Sequence

from elbowroom.report.numbers import ABSENT
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import mean_interval
from elbowroom.study.paper import LABELS, PROTOCOLS, Part, Row, Study, tables_of

COMPARED = ("ppl", "fitted_ppl", "accuracy")
DECIMALS = (2, 2, 4)


def beside_table(study: Study, beside: Study | None, parts: Sequence[Part]) -> Table | None:
    """Return some scores of the rows that both studies have; None without any.

    Args:
        study: our runs.
        beside: our runs by another protocol.
        parts: whose rows; of all tables, if none of them has any.
    """
    order = list(PROTOCOLS)
    both = [] if beside is None else [study, beside]
    both.sort(key=lambda each: order.index(each.protocol.name))  # the same table in both reports
    columns = [Column(label="model", text=True), Column(label="language", text=True)]
    for score, decimals in zip(COMPARED, DECIMALS, strict=True):
        columns.append(Column(label=f"{LABELS[score]}: print"))
        columns += [
            Column(label=f"{LABELS[score]}: ours, {each.protocol.name}", decimals=decimals)
            for each in both
        ]
    rows = [
        [row.label, language, *(_cells(both, row, language))]
        for row in _distinct(parts)
        for language in row.languages
        if both and all(each.of(row.method) for each in both)
    ]
    title = "Metrics by two protocols"
    return Table(title=title, columns=columns, rows=rows) if rows else None


def _cells(both: Sequence[Study], row: Row, language: str) -> list[Cell]:
    cells: list[Cell] = []
    for score in COMPARED:
        printed = both[0].result(row, language, score).printed
        cells.append(printed.text if printed else ABSENT)
        for each in both:
            values = list(each.values(row.method, language, score).values())
            cells.append(mean_interval(values) if values else None)
    return cells


def _distinct(parts: Sequence[Part]) -> list[Row]:
    """Return the rows of some tables, each printed one once."""
    found: dict[tuple[str, str | None], Row] = {}
    for row in (row for part in tables_of(parts) for row in part.rows):
        found.setdefault((row.method, row.printed), row)
    return list(found.values())
