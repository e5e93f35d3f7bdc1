"""After which steps the weights were that are judged, where a protocol chooses among them."""

from __future__ import annotations

import statistics

from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import mean_interval
from elbowroom.study.paper import Part, Study


def chosen_table(study: Study, part: Part) -> Table | None:
    """Return the steps and losses that weights were chosen at; None where no record has any.

    Args:
        study: our runs.
        part: whose rows.
    """
    labels: dict[str, str] = {}
    for row in part.rows:
        labels.setdefault(row.method, row.label)
    rows = [found for method, label in labels.items() if (found := _row(study, method, label))]
    columns = [Column(label="model", text=True), Column(label="seeds")]
    columns += [Column(label=f"step, {which}") for which in ("median", "first", "last")]
    columns.append(Column(label="its estimate", decimals=3))
    title = f"{part.title}: which weights were chosen"
    return Table(title=title, columns=columns, rows=rows) if rows else None


def _row(study: Study, method: str, label: str) -> list[Cell]:
    found = [record["chosen"] for record in study.of(method) if record.get("chosen")]
    if not found:
        return []
    steps = [int(one["step"]) for one in found]
    losses = [float(one["loss"]) for one in found if one["loss"] is not None]
    median = statistics.median_low(steps)  # a step that was one
    mean = mean_interval(losses) if losses else None
    return [label, len(found), median, min(steps), max(steps), mean]
