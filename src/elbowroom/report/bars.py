"""Bar charts in groups, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elbowroom.report.figure import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Entry,
    Figure,
    clipped,
    legend,
    y_axis,
)
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.numbers import between, short
from elbowroom.report.palette import colour
from elbowroom.report.scales import Scale, scale
from elbowroom.study import Interval


@dataclass(frozen=True, kw_only=True)
class Bars:
    """The bars of one method."""

    label: str
    """The method."""
    index: int
    """Its colour."""
    values: Sequence[Interval | None]
    """One a category, with its interval; None where there is nothing."""


def bar_chart(
    name: str,
    title: str,
    categories: Sequence[str],
    bars: Sequence[Bars],
    *,
    x: str,
    y: str,
) -> Figure:
    """Return a bar chart: for each category the bars of all methods side by side, from 0 up.

    Args:
        name: unique on its page.
        title: what it shows.
        categories: below the groups of bars.
        bars: of each method; as many values as categories.
        x: what the categories are.
        y: what is measured.

    Example:
        >>> one = Interval(estimate=2.0, low=1.5, high=2.5, level=0.95, n=4)
        >>> bars = [Bars(label="ours", index=0, values=[one, None])]
        >>> bar_chart("bins", "Loss by bin", ["rare", "frequent"], bars, x="bin", y="nats").height
        290
    """
    key, top = legend([Entry(label=b.label, index=b.index) for b in bars])
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    known = [v for b in bars for v in b.values if v is not None]
    ends = [end for v in known for end in (v.estimate, v.high) if end is not None]
    up = scale([0.0, *ends, max(ends, default=1.0) * 1.02], bottom, top)
    room = (right - LEFT) / max(1, len(categories))
    thickness = min(26.0, 0.8 * room / max(1, len(bars)))
    parts = []
    for c in range(len(categories)):
        first = LEFT + (c + 0.5) * room - thickness * len(bars) / 2
        for i, b in enumerate(bars):
            value = b.values[c]
            if value is not None:
                parts.append(_bar(b, value, first + i * thickness, thickness, up))
    base = element("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis")
    names = [_category(text, LEFT + (c + 0.5) * room, bottom) for c, text in enumerate(categories)]
    label = element("text", x, x=(LEFT + right) / 2, y=bottom + 35, text_anchor="middle")
    body = join(key, y_axis(up, LEFT, right, y), *parts, base, *names, label)
    said = ", ".join(b.label for b in bars)
    text = f"{y} for each {x}, for {said}."
    return Figure(name=name, title=title, description=text, body=body)


def _category(text: str, x: float, bottom: float) -> Markup:
    return element("text", clipped(text, 12), x=f"{x:.1f}", y=bottom + 16, text_anchor="middle")


def _bar(bars: Bars, value: Interval, x: float, thickness: float, up: Scale) -> Markup:
    y = up(value.estimate)
    tip = f"{bars.label}: {short(value.estimate)}"
    tip += f" ({between(value, 3)})" if value.low is not None else ""
    body = element(
        "rect",
        x=f"{x + 1:.1f}",
        y=f"{min(y, up(0)):.1f}",
        width=f"{thickness - 2:.1f}",
        height=f"{abs(up(0) - y):.1f}",
        fill=colour(bars.index),
    )
    whisker = None
    if value.low is not None and value.high is not None:
        middle, low = f"{x + thickness / 2:.1f}", up(max(value.low, up.low))
        whisker = element(
            "line",
            x1=middle,
            x2=middle,
            y1=f"{low:.1f}",
            y2=f"{up(value.high):.1f}",
            class_="whisker",
        )
    return element("g", body, whisker, class_=f"m m{bars.index}", data_tip=tip)
