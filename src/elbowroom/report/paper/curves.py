"""What happens while runs train: discovery of the shared letters, and the share of entries kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elbowroom.report.figure import Figure
from elbowroom.report.lines import Axes, Line, line_chart
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import Interval, mean_interval
from elbowroom.study.paper import Study
from elbowroom.study.paper.curves import GOOD_PPL, SHARED, Series, curves, discovered

RARE = "lr"


def discovery_figures(study: Study, methods: Sequence[str]) -> list[Figure]:
    """Return the translation score over training, a thin line a seed; nothing without records.

    Args:
        study: our runs; their records hold "curves".
        methods: whose.
    """
    thin, thick = [], []
    for i, method in enumerate(methods):
        found = list(curves(study, method, "translation").values())
        thin += [replace(_mean(method, i, [one]), thin=True) for one in found]
        thick += [_mean(method, i, found)] if found else []
    axes = Axes(x="step", y="rows that find their twin", y_values=(0.0, 1.0), level=SHARED)
    said = "The share of rare rows whose nearest frequent row is the same character, by step."
    title = "Translation score while training"
    if not thick:
        return []
    figure = line_chart("discovery", title, [*thin, *thick], axes, description=said)
    ends = ((line.label, discovered(study, line.label)) for line in thick)
    counts = [f"{label} {_of(share)}" for label, share in ends if share is not None]
    note = f"Discovered at the end: {', '.join(counts)}." if counts else ""
    return [replace(figure, note=note)]


def discovery_table(study: Study, methods: Sequence[str]) -> Table | None:
    """Return how many runs of each method discovered the shared letters; None without any score.

    Args:
        study: our runs.
        methods: whose.
    """
    columns = [
        Column(label="model", text=True),
        Column(label="discovered", text=True),
        Column(label="share of runs", decimals=2),
        Column(label=f"{RARE} best PPL below {GOOD_PPL:g}", text=True),
    ]
    rows: list[list[Cell]] = []
    for method in methods:
        share = discovered(study, method)
        if share is not None:
            best = study.values(method, RARE, "best_ppl").values()
            good = f"{sum(ppl < GOOD_PPL for ppl in best)} of {len(best)}"
            rows.append([method, _of(share), share, good])
    return (
        Table(title="Runs that discovered the shared letters", columns=columns, rows=rows)
        if rows
        else None
    )


def _of(share: Interval) -> str:
    return f"{round(share.estimate * share.n)} of {share.n}"


def kept_figures(study: Study, methods: Sequence[str]) -> list[Figure]:
    """Return the share of entries kept over training, the mean with its interval.

    Args:
        study: our runs; their records hold "curves".
        methods: whose.
    """
    each = ((i, m, list(curves(study, m, "kept").values())) for i, m in enumerate(methods))
    lines = [_mean(method, i, found, ends=True) for i, method, found in each if found]
    axes = Axes(x="step", y="kept share", from_zero=True)
    said = "The share of logits that the loss kept, by step, mean over seeds and its interval."
    title = "Share of entries the loss kept"
    return [line_chart("kept", title, lines, axes, description=said)] if lines else []


def _mean(method: str, index: int, found: Sequence[Series], *, ends: bool = False) -> Line:
    """Return the mean where all seeds have a value, with its interval if asked."""
    values = [dict(zip(one["steps"], one["values"], strict=True)) for one in found]
    steps = sorted(set(values[0]).intersection(*values[1:]))
    means = [mean_interval([one[step] for one in values]) for step in steps]
    reach = [
        None if mean.low is None or mean.high is None else (max(0.0, mean.low), min(1.0, mean.high))
        for mean in means
    ]
    return Line(
        label=method,
        index=index,
        x=steps,
        y=[mean.estimate for mean in means],
        ends=reach if ends else (),
        method=False,
    )
