"""Small drawings inside a table: every seed as a dot, a difference with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from elbowroom.report.markup import Markup, element, join
from elbowroom.report.palette import colour, marker
from elbowroom.report.scales import Scale, scale, tick_labels
from elbowroom.study import Interval

STRIP = (230, 34)
FOREST = (128, 34)
_LETTER = 7.0


def strip_scale(values: Sequence[float]) -> Scale:
    """Return the scale that all strips of a table share."""
    return scale(values, 10, STRIP[0] - 10, pad=0.04)


def forest_scale(intervals: Sequence[Interval]) -> Scale:
    """Return the scale that all differences of a table share; 0 is on it."""
    ends = [e for i in intervals for e in (i.estimate, i.low, i.high) if e is not None]
    return scale([0.0, *ends], 10, FOREST[0] - 10, pad=0.06)


def strip(
    values: Sequence[tuple[str, float]],
    mean: Interval,
    on: Scale,
    index: int,
    *,
    new: Interval | None = None,
) -> Markup:
    """Return every seed as a dot, over a band for the mean's interval and a line at the mean.

    Args:
        values: the seed's name and its value.
        mean: of the values, with its interval.
        on: the scale of the whole table.
        index: the method's colour and shape.
        new: where one more seed would lie, a thin line.
    """
    height = STRIP[1]
    parts = [_reach(new, on)] if new else []
    if mean.low is not None and mean.high is not None:
        low, high = max(on(mean.low), 0.0), min(on(mean.high), float(STRIP[0]))
        width = f"{max(2.0, high - low):.1f}"
        band = {"x": f"{low:.1f}", "y": 4, "width": width, "height": height - 8}
        parts.append(element("rect", **band, class_="band", fill=colour(index)))
    at = f"{on(mean.estimate):.1f}"
    parts.append(element("line", x1=at, x2=at, y1=4, y2=height - 4, class_="whisker"))
    places = _spread([on(value) for _, value in values])
    for (seed, value), (x, lift) in zip(values, places, strict=True):
        tip = f"{seed}: {value:.4g}"
        y = height / 2 + lift
        parts.append(marker(index, x, y, 3.6, class_="dot", data_tip=tip))
    said = f"Each seed: {'; '.join(f'{seed}: {value:.4g}' for seed, value in values)}."
    if new and new.low is not None:
        said += f" A new seed: {new.low:.4g} to {new.high:.4g}."
    return _cell(STRIP, said, parts)


def forest(interval: Interval, on: Scale, index: int) -> Markup:
    """Return a difference with its interval beside the line at 0."""
    height, zero = FOREST[1], f"{on(0):.1f}"
    parts = [element("line", x1=zero, x2=zero, y1=0, y2=height, class_="axis")]
    y = height / 2
    if interval.low is not None and interval.high is not None:
        ends = {"x1": f"{on(interval.low):.1f}", "x2": f"{on(interval.high):.1f}"}
        parts.append(element("line", **ends, y1=y, y2=y, class_="thick", stroke=colour(index)))
    parts.append(marker(index, on(interval.estimate), y, 4.2))
    said = f"difference {interval.estimate:.4g}"
    if interval.low is not None:
        said += f", interval {interval.low:.4g} to {interval.high:.4g}"
    return _cell(FOREST, said, parts, tip=said)


def axis(on: Scale, size: tuple[int, int], count: int = 4) -> Markup:
    """Return the axis that stands below a column of strips or differences."""
    ticks = _apart(on, count)
    parts = [element("line", x1=on.start, x2=on.end, y1=2, y2=2, class_="axis")]
    for tick, text in zip(ticks, tick_labels(ticks), strict=True):
        x = f"{on(tick):.1f}"
        parts.append(element("line", x1=x, x2=x, y1=2, y2=6, class_="axis"))
        parts.append(element("text", text, x=x, y=19, text_anchor="middle"))
    return _cell((size[0], 24), "axis", parts, hidden=True)


def _apart(on: Scale, count: int) -> list[float]:
    """Return as many ticks as stand apart, at most about ``count``."""
    choices = [on.ticks(few) for few in range(count, 0, -1)]
    return next((ticks for ticks in choices if _have_room(ticks, on)), choices[-1][:1])


def _have_room(ticks: list[float], on: Scale) -> bool:
    room = max((len(text) for text in tick_labels(ticks)), default=0) * _LETTER + 4
    return all(on(b) - on(a) >= room for a, b in pairwise(ticks))


def _reach(new: Interval, on: Scale) -> Markup:
    """Return a thin line over the prediction interval, as far as it is on the scale."""
    if new.low is None or new.high is None:
        return Markup("")
    y, low, high = STRIP[1] / 2, max(on(new.low), 0.0), min(on(new.high), float(STRIP[0]))
    ends = {"x1": f"{low:.1f}", "x2": f"{high:.1f}", "y1": y, "y2": y}
    tip = f"a new seed: {new.low:.4g} to {new.high:.4g}"
    return element("line", **ends, class_="reach", data_tip=tip)


def _spread(places: Sequence[float]) -> list[tuple[float, float]]:
    """Return each dot's place and how far it is lifted, so that equal values do not hide."""
    lifts = [0.0] * len(places)
    order = sorted(range(len(places)), key=lambda i: places[i])
    steps = (0.0, -7.0, 7.0, -3.5, 3.5, -10.0, 10.0)
    run, last = 0, None
    for i in order:
        run = run + 1 if last is not None and places[i] - last < 6.5 else 0
        lifts[i] = steps[run % len(steps)]
        last = places[i]
    return list(zip(places, lifts, strict=True))


def _cell(
    size: tuple[int, int],
    said: str,
    parts: Sequence[Markup],
    *,
    tip: str | None = None,
    hidden: bool = False,
) -> Markup:
    label = {"aria_hidden": "true"} if hidden else {"role": "img", "aria_label": said}
    width, height = size
    box = f"0 0 {width} {height}"
    return element(
        "svg",
        join(*parts),
        class_="figure cell",
        viewBox=box,
        width=width,
        height=height,
        data_tip=tip,
        **label,
    )
