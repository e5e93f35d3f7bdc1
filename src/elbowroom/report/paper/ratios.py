"""Gradient ratios by token frequency: means and intervals over seeds, and how much they change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from elbowroom.report.figure import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Entry,
    Figure,
    legend,
    x_axis,
    y_axis,
)
from elbowroom.report.lines import area
from elbowroom.report.markup import Markup, element, join, visible
from elbowroom.report.numbers import short
from elbowroom.report.palette import colour, dash
from elbowroom.report.scales import Scale, scale
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import Interval, mean_interval
from elbowroom.study.paper import Study
from elbowroom.study.paper.gradients import KINDS, PRINTED, change, ratios_of

NAMES = {"gradients-ce": "Baseline", "gradients-2": "Margin 2"}
LANGUAGES = ("lr", "hr")  # the paper shows the first
EVEN = 1.0  # alignment and marginalization are as large


def gradient_figures(study: Study, methods: Sequence[str]) -> list[Figure]:
    """Return each ratio of each language against the rank of tokens; nothing without records.

    Args:
        study: our runs; their records hold "gradients".
        methods: whose.
    """
    figures = []
    for language in LANGUAGES:
        for kind, title in KINDS.items():
            found = {m: ratios_of(study.of(m), language, kind) for m in methods}
            curves = {m: _curve(list(seeds.values())) for m, seeds in found.items() if seeds}
            drawn = {m: curve for m, curve in curves.items() if any(map(_positive, curve))}
            if drawn:
                example = next(r for m in drawn for r in study.of(m) if r.get("gradients"))
                name = f"gradients-{kind}-{language}"
                shown = example["gradients"]
                figures.append(_figure(name, f"{language}: {title}", drawn, shown, language))
    return figures


def gradient_table(study: Study, methods: Sequence[str]) -> Table | None:
    """Return how many tokens lie below 1, and the change over the same seeds; None without any.

    Args:
        study: our runs; their records hold "gradients".
        methods: the baseline, and what is held against it.
    """
    first, second = methods
    rows: list[list[Cell]] = []
    for language in LANGUAGES:
        for kind, title in KINDS.items():
            theirs, ours = (ratios_of(study.of(m), language, kind) for m in methods)
            shared = [seed for seed in theirs if seed in ours]
            if shared:
                each = (change(ours[seed], theirs[seed]) for seed in shared)
                changes = [value for value in each if value is not None]
                below, added = PRINTED.get((language, kind), (None, None))
                more = mean_interval(changes) if changes else None
                counts = _below(theirs), below, _below(ours)
                tokens = len(theirs[shared[0]])
                rows.append([language, title, tokens, *counts, more, added])
    columns = [
        Column(label="language", text=True),
        Column(label="ratio", text=True),
        Column(label="tokens"),
        Column(label=f"below 1: {NAMES[first]}", decimals=1),
        Column(label="paper"),
        Column(label=f"below 1: {NAMES[second]}", decimals=1),
        Column(label="change in %, mean over tokens", decimals=1, sign=True),
        Column(label="paper"),
    ]
    return Table(title="Gradient ratios", columns=columns, rows=rows) if rows else None


def _below(seeds: Mapping[int, Sequence[float | None]]) -> Interval:
    counts = [float(sum(x is not None and x < EVEN for x in one)) for one in seeds.values()]
    return mean_interval(counts)


def _curve(seeds: Sequence[Sequence[float | None]]) -> list[Interval | None]:
    """Return the mean of each token over the seeds that have a number for it."""
    known = ([x for x in at if x is not None] for at in zip(*seeds, strict=True))
    return [mean_interval(at) if at else None for at in known]


def _positive(point: Interval | None) -> bool:
    return point is not None and point.estimate > 0


def _figure(
    name: str,
    title: str,
    curves: Mapping[str, Sequence[Interval | None]],
    example: Mapping[str, Any],
    language: str,
) -> Figure:
    entries = [
        Entry(label=NAMES[m], index=i, line=True, method=False) for i, m in enumerate(curves)
    ]
    key, top = legend(entries)
    bottom, tokens = HEIGHT - BOTTOM, example["languages"][language]["tokens"]
    across = scale([1, len(tokens)], LEFT, WIDTH - RIGHT)
    means = [p.estimate for curve in curves.values() for p in curve if p is not None]
    up = scale([*means, EVEN], bottom, top, log=True, pad=0.06)
    area = element("rect", x=LEFT, y=top, width=WIDTH - LEFT - RIGHT, height=bottom - top)
    even = f"{up(EVEN):.1f}"
    bands = [_band(curve, i, across, up) for i, curve in enumerate(curves.values())]
    lines = [_line(curve, i, across, up) for i, curve in enumerate(curves.values())]
    steps = f"{example['steps']:,} steps: {_ordinal(example['every'])}"
    body = join(
        element("clipPath", area, id=f"{name}-clip"),
        key,
        y_axis(up, LEFT, WIDTH - RIGHT, "ratio, logarithmic"),
        x_axis(across, top, bottom, f"rank of the token by frequency (measured at {steps})"),
        element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=even, y2=even, class_="guide"),
        element("g", *bands, *lines, clip_path=f"url(#{name}-clip)"),
    )
    hover = [_hover(m, i, curves[m], tokens, across, up) for i, m in enumerate(curves)]
    said = f"{title} of alignment to marginalization, by rank, mean and 95% interval over seeds."
    return Figure(name=name, title=title, description=said, body=body, hover=hover)


def _ordinal(every: int) -> str:
    return "all" if every == 1 else f"1 in {every}"


def _band(curve: Sequence[Interval | None], index: int, across: Scale, up: Scale) -> Markup:
    """Return the interval over seeds as an area; none where there are too few."""
    ends: list[tuple[float, float, float] | None] = []
    for rank, point in enumerate(curve, start=1):
        usable = point is not None and point.high is not None and point.high > 0
        if not usable or point is None or point.low is None or point.high is None:
            ends.append(None)
            continue
        low = max(point.low, up.low / 2)  # below the drawing
        ends.append((across(rank), up(low), up(min(point.high, 2 * up.high))))
    return area(ends, index)


def _line(curve: Sequence[Interval | None], index: int, across: Scale, up: Scale) -> Markup:
    path, pen = [], "M"
    for rank, point in enumerate(curve, start=1):
        if point is None or point.estimate <= 0:
            pen = "M"
            continue
        path.append(f"{pen}{across(rank):.1f},{up(point.estimate):.1f}")
        pen = "L"
    drawn = {"stroke": colour(index), "stroke_dasharray": dash(index)}
    return element("path", d="".join(path), class_="thick", **drawn)


def _hover(
    method: str,
    index: int,
    curve: Sequence[Interval | None],
    tokens: Sequence[str],
    across: Scale,
    up: Scale,
) -> dict[str, Any]:
    points = [
        [
            round(across(rank), 1),
            round(up(point.estimate), 1),
            f"rank {rank}: {visible(token)}",
            short(point.estimate),
        ]
        for rank, (point, token) in enumerate(zip(curve, tokens, strict=True), start=1)
        if point is not None and point.estimate > 0 and math.isfinite(point.estimate)
    ]
    return {"label": NAMES[method], "index": index, "points": points}
