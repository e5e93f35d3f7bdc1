"""Margin against quality: each seed a dot, means joined, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from elbowroom.report.figure import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Entry,
    Figure,
    legend,
    y_axis,
)
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.numbers import short
from elbowroom.report.palette import colour, dash, marker
from elbowroom.report.scales import Scale, scale
from elbowroom.study import Interval, mean_interval
from elbowroom.study.paper import Study
from elbowroom.study.paper.layout import WIDTHS

LANGUAGES = ("hr", "lr")
PANELS = {  # what a panel shows: its scores, with their names
    "ppl": {"ppl": "temperature 1", "fitted_ppl": "fitted temperature"},
    "accuracy": {"accuracy": "accuracy"},
}
TITLES = {"ppl": "perplexity", "accuracy": "accuracy"}
SPREAD = 6.0  # between the first and the last seed's dot
BAND = 10.0  # how wide an interval is drawn; scores stand side by side


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A category: a width of the margin."""

    label: str
    group: str
    method: str
    x: float


def margin_figures(study: Study) -> list[Figure]:
    """Return quality by margin and alpha, a figure a score and language; nothing without runs.

    Args:
        study: our runs.
    """
    figures = []
    for panel, scores in PANELS.items():
        for language in LANGUAGES:
            values = {
                score: {m: v for m in _methods() if (v := study.values(m, language, score))}
                for score in scores
            }
            known = {score: found for score, found in values.items() if found}
            if known:
                figures.append(_figure(panel, language, known))
    return figures


def _methods() -> list[str]:
    return [method for group in WIDTHS.values() for method in group.values()]


def _figure(
    panel: str, language: str, values: Mapping[str, Mapping[str, Mapping[int, float]]]
) -> Figure:
    names, title = PANELS[panel], f"{language}: {TITLES[panel]} by margin"
    key, top = legend(
        [Entry(label=names[s], index=i, line=True, method=False) for i, s in enumerate(values)]
    )
    bottom = HEIGHT - BOTTOM
    seen = [v for found in values.values() for seeds in found.values() for v in seeds.values()]
    log = panel == "ppl"
    up = scale(seen, bottom, top, log=log, pad=0.06)
    places = _places()
    drawn = []
    for i, (score, found) in enumerate(values.items()):
        aside = (i - (len(values) - 1) / 2) * (BAND + 2)
        own = [replace(place, x=place.x + aside) for place in places]
        drawn.append(_series(own, found, i, up, names[score]))
    said = f"{title}: each seed a dot, the mean with its 95% interval."
    y = TITLES[panel] + (", logarithmic" if log else "")
    body = join(key, y_axis(up, LEFT, WIDTH - RIGHT, y), _axis(places, bottom), *drawn)
    return Figure(name=f"margins-{panel}-{language}", title=title, description=said, body=body)


def _places() -> list[_Place]:
    """Return the categories with their places: groups stand apart by half a category."""
    count = len(_methods()) + 0.5 * (len(WIDTHS) - 1)
    room, at, found = (WIDTH - RIGHT - LEFT) / count, LEFT + 0.0, []
    for group, methods in WIDTHS.items():
        for label, method in methods.items():
            found.append(_Place(label=label, group=group, method=method, x=at + room / 2))
            at += room
        at += room / 2
    return found


def _axis(places: Sequence[_Place], bottom: float) -> Markup:
    parts = []
    for group in WIDTHS:
        own = [place for place in places if place.group == group]
        ends = own[0].x - 12, own[-1].x + 12
        line = {"x1": f"{ends[0]:.1f}", "x2": f"{ends[1]:.1f}", "y1": bottom, "y2": bottom}
        parts.append(element("line", **line, class_="axis"))
        for place in own:
            at = {"x": f"{place.x:.1f}", "y": bottom + 16, "text_anchor": "middle"}
            parts.append(element("text", place.label, **at))
        middle = {"x": f"{sum(ends) / 2:.1f}", "y": bottom + 35, "text_anchor": "middle"}
        parts.append(element("text", group, **middle))
    return join(*parts)


def _series(
    places: Sequence[_Place],
    values: Mapping[str, Mapping[int, float]],
    index: int,
    up: Scale,
    name: str,
) -> Markup:
    """Return a score's intervals, lines and dots, group by group."""
    bands, lines, dots = [], [], []
    for group in WIDTHS:
        own = [place for place in places if place.group == group]
        known = [(place, values.get(place.method, {})) for place in own]
        means = [(p, mean_interval(list(v.values())) if v else None) for p, v in known]
        bands += [_mean(place, mean, index, up) for place, mean in means if mean is not None]
        drawn = {"stroke": colour(index), "stroke_dasharray": dash(index)}
        lines.append(element("path", d=_path(means, up), class_="thick", **drawn))
        for place, seeds in known:
            dots += _dots(place, seeds, index, up, name)
    return join(*bands, *lines, *dots)


def _path(means: Sequence[tuple[_Place, Interval | None]], up: Scale) -> str:
    """Return the line through the means; it breaks where a category has no runs."""
    path, pen = [], "M"
    for place, mean in means:
        if mean is not None:
            path.append(f"{pen}{place.x:.1f},{up(mean.estimate):.1f}")
        pen = "M" if mean is None else "L"
    return "".join(path)


def _mean(place: _Place, mean: Interval, index: int, up: Scale) -> Markup:
    """Return a category's mean, and its interval where there are enough runs for one."""
    x1, x2, y = place.x - BAND / 2, place.x + BAND / 2, f"{up(mean.estimate):.1f}"
    middle = element("line", x1=f"{x1:.1f}", x2=f"{x2:.1f}", y1=y, y2=y, class_="whisker")
    if mean.low is None or mean.high is None:
        return middle
    low, high = (up(max(up.low, min(up.high, end))) for end in (mean.low, mean.high))
    box = {"x": f"{x1:.1f}", "y": f"{high:.1f}", "width": BAND, "height": f"{low - high:.1f}"}
    return join(element("rect", **box, class_="band", fill=colour(index)), middle)


def _dots(
    place: _Place, seeds: Mapping[int, float], index: int, up: Scale, name: str
) -> list[Markup]:
    found, last = [], max(1, len(seeds) - 1)
    for i, (seed, value) in enumerate(sorted(seeds.items())):
        x = place.x + SPREAD * (i / last - 0.5) * (len(seeds) > 1)
        tip = f"{place.group} {place.label}, {name}, seed {seed}: {short(value)}"
        found.append(marker(index, x, up(value), 2.2, class_="dot", data_tip=tip))
    return found
