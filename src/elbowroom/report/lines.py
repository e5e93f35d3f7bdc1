"""Line charts: every seed thin, the mean thick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
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
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.numbers import short
from elbowroom.report.palette import colour, dash
from elbowroom.report.scales import Scale, scale

MOST_POINTS = 240


@dataclass(frozen=True, kw_only=True)
class Line:
    """A series of a line chart."""

    label: str
    """The method, in the legend and in what hovering shows."""
    index: int
    """Its colour and dash."""
    x: Sequence[float]
    """Where it was measured."""
    y: Sequence[float | None]
    """What was measured; the line breaks at None."""
    thin: bool = False
    """One seed of several; only thick lines are named in the legend."""
    ends: Sequence[tuple[float, float] | None] = ()
    """If given, an interval at each place, drawn as a band; none at None."""
    method: bool = True
    """Whether it goes with the page's method of this number when that is hidden."""


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What a line chart measures."""

    x: str
    """The label below."""
    y: str
    """The label on the left."""
    log_y: bool = False
    """A logarithmic scale on the left."""
    y_values: Sequence[float] = ()
    """If given, the axis on the left holds these and lines may leave it."""
    from_zero: bool = False
    """Whether 0 is on the axis on the left."""
    guide: float | None = None
    """A place on the axis below that is marked."""
    level: float | None = None
    """A value on the axis on the left that is marked."""


def line_chart(
    name: str, title: str, lines: Sequence[Line], axes: Axes, *, description: str = ""
) -> Figure:
    """Return a line chart.

    Args:
        name: unique on its page.
        title: what it shows.
        lines: in the order of drawing; put thick ones last.
        axes: what is measured.
        description: what it says, in words; a plain one if empty.

    Example:
        >>> line = Line(label="ours", index=0, x=[0, 1, 2], y=[3.0, 2.0, 1.5])
        >>> figure = line_chart("loss", "Loss", [line], Axes(x="step", y="loss"))
        >>> figure.description
        'loss against step for ours.'
    """
    lines = [_thinned(line) for line in lines]
    thick = [line for line in lines if not line.thin]
    entries = [
        Entry(label=line.label, index=line.index, line=True, method=line.method) for line in thick
    ]
    key, top = legend(entries)
    across = scale((x for line in lines for x in line.x), LEFT, WIDTH - RIGHT)
    seen = [y for line in lines for y in line.y if y is not None]
    seen += [end for line in lines for ends in line.ends if ends is not None for end in ends]
    measured = axes.y_values or seen
    measured = [*measured, 0.0] if axes.from_zero else measured
    bottom = HEIGHT - BOTTOM
    up = scale(measured, bottom, top, log=axes.log_y, pad=0.04)
    clip = f"{name}-clip"
    area = element("rect", x=LEFT, y=top, width=WIDTH - LEFT - RIGHT, height=bottom - top)
    drawn = [_band(line, across, up) for line in lines if line.ends]
    drawn += [_drawn(line, across, up) for line in lines]
    body = join(
        element("clipPath", area, id=clip),
        key,
        y_axis(up, LEFT, WIDTH - RIGHT, axes.y),
        x_axis(across, top, bottom, axes.x),
        _guide(axes.guide, across, top, bottom),
        _level(axes.level, up),
        element("g", *drawn, clip_path=f"url(#{clip})"),
    )
    hover = [_hover(line, across, up, axes.x) for line in thick]
    text = description or f"{axes.y} against {axes.x} for {', '.join(e.label for e in entries)}."
    return Figure(name=name, title=title, description=text, body=body, hover=hover)


def _guide(at: float | None, across: Scale, top: float, bottom: float) -> Markup | None:
    if at is None or not across.low < at < across.high:
        return None
    x = f"{across(at):.1f}"
    return element("line", x1=x, x2=x, y1=top, y2=bottom, class_="guide")


def _level(at: float | None, up: Scale) -> Markup | None:
    if at is None or not up.low < at < up.high:
        return None
    y = f"{up(at):.1f}"
    return element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="guide")


def _thinned(line: Line) -> Line:
    """Return a line with few enough points for a drawing: each the mean of its neighbours."""
    n = len(line.x)
    if n <= MOST_POINTS:
        return line
    edges = [round(i * n / MOST_POINTS) for i in range(MOST_POINTS + 1)]
    x, y = [], []
    for first, last in pairwise(edges):
        part = [v for v in line.y[first:last] if v is not None]
        x.append(sum(line.x[first:last]) / (last - first))
        y.append(sum(part) / len(part) if part else None)
    ends = [line.ends[first] for first in edges[:-1]] if line.ends else ()
    return replace(line, x=x, y=y, ends=ends)


def _places(line: Line, across: Scale, up: Scale) -> list[tuple[float, float, float, float] | None]:
    places: list[tuple[float, float, float, float] | None] = []
    for x, y in zip(line.x, line.y, strict=True):
        usable = y is not None and math.isfinite(y) and (y > 0 or not up.log)
        places.append((across(x), up(y), x, y) if usable and y is not None else None)
    return places


def area(places: Sequence[tuple[float, float, float] | None], index: int) -> Markup:
    """Return bands between two lines, one for each stretch of places without a gap.

    Args:
        places: across, and up at both ends; None for a gap.
        index: of the colour.
    """
    areas = []
    for gap, group in groupby(places, key=lambda place: place is None):
        part = [place for place in group if place is not None]
        if not gap and len(part) > 1:
            upper = [f"{x:.1f},{high:.1f}" for x, _, high in part]
            lower = [f"{x:.1f},{low:.1f}" for x, low, _ in reversed(part)]
            path = f"M{'L'.join([*upper, *lower])}Z"
            areas.append(element("path", d=path, class_="band", fill=colour(index)))
    return join(*areas)


def _band(line: Line, across: Scale, up: Scale) -> Markup:
    least = up.low / 2 if up.log else -math.inf  # a logarithm needs more than 0
    places = [
        None if ends is None else (across(x), up(max(ends[0], least)), up(max(ends[1], least)))
        for x, ends in zip(line.x, line.ends, strict=True)
    ]
    return element("g", area(places, line.index), class_=_class(line))


def _class(line: Line, kind: str = "") -> str | None:
    return " ".join(filter(None, (kind, f"m m{line.index}" if line.method else ""))) or None


def _drawn(line: Line, across: Scale, up: Scale) -> Markup:
    path, pen = [], "M"
    for place in _places(line, across, up):
        if place is None:
            pen = "M"
            continue
        path.append(f"{pen}{place[0]:.1f},{max(-999.0, min(999.0, place[1])):.1f}")
        pen = "L"
    return element(
        "path",
        d="".join(path),
        class_=_class(line, "thin" if line.thin else "thick"),
        stroke=colour(line.index),
        stroke_dasharray=None if line.thin else dash(line.index),
    )


def _hover(line: Line, across: Scale, up: Scale, x_label: str) -> dict[str, Any]:
    points = [
        [round(p[0], 1), round(p[1], 1), f"{x_label} {short(p[2])}", short(p[3])]
        for p in _places(line, across, up)
        if p is not None
    ]
    return {"label": line.label, "index": line.index if line.method else None, "points": points}
