"""A cell of the paper's tables: our mean and interval, every seed, and what the paper prints."""

from __future__ import annotations

from collections.abc import Sequence

from elbowroom.report.markup import Markup, element, join
from elbowroom.report.numbers import ABSENT, between, fixed, typographic
from elbowroom.report.palette import colour
from elbowroom.report.scales import Scale, scale
from elbowroom.study.paper import Printed, Result

WIDTH, HEIGHT = 88, 20
SIGNS = {True: "✓ in", False: "✗ out"}


def cell_text(result: Result, decimals: int) -> str:
    """Return a cell in one line: mean, interval, and the paper's value.

    Example:
        >>> printed = Printed("5.04", "5.04")
        >>> cell_text(Result(values={}, mean=None, new=None, printed=printed, inside=None), 2)
        '–; paper 5.04'
    """
    said = ABSENT
    if result.mean is not None:
        said = fixed(result.mean.estimate, decimals)
        ends = between(result.mean, decimals)
        said += "" if ends == ABSENT else f" [{ends.replace(' to ', ', ')}]"
    return said if result.printed is None else f"{said}; paper {printed_text(result)}"


def printed_text(result: Result) -> str:
    """Return the paper's value, what it was meant to be, and whether it lies inside.

    Example:
        >>> slip = Printed("0.6595", "0.5017", "a slip")
        >>> printed_text(Result(values={}, mean=None, new=None, printed=slip, inside=True))
        '0.6595 (meant 0.5017) in'
    """
    printed = result.printed
    if printed is None:
        return ABSENT
    said = _meant(printed)
    return said if result.inside is None else f"{said} {'in' if result.inside else 'out'}"


def cell_markup(result: Result, decimals: int, label: str) -> Markup:
    """Return a cell for the page: numbers, a drawing of all seeds, the paper's value.

    Args:
        result: the cell.
        decimals: of its numbers.
        label: of the row, for what is read aloud.
    """
    parts: list[Markup] = []
    if result.mean is not None:
        parts.append(element("strong", typographic(fixed(result.mean.estimate, decimals))))
        ends = between(result.mean, decimals)
        if ends != ABSENT:
            parts.append(element("span", typographic(ends), class_="ends"))
        parts.append(_small(result, label))
    else:
        parts.append(element("span", ABSENT, class_="soft"))
    if result.printed is not None:
        badge = None
        if result.inside is not None:
            kind = "better" if result.inside else "worse"
            badge = element("span", SIGNS[result.inside], class_=f"badge {kind}")
        ring = element("span", "○", title="the paper's")
        parts.append(element("span", ring, f" {_meant(result.printed)} ", badge, class_="ends"))
    return join(*parts)


def drawn(
    result: Result, on: Scale, y: float, index: int, label: str, *, thickness: float = 14
) -> Markup:
    """Return the drawing of a cell on a scale: dots, mean, band, the reach of one more seed, paper.

    Args:
        result: the cell.
        on: from values to places.
        y: its middle.
        index: of its colour.
        label: of the row, for hovering.
        thickness: of the band.
    """
    parts: list[Markup] = []
    half, low_end, high_end = thickness / 2, min(on.start, on.end), max(on.start, on.end)

    def place(value: float) -> float:
        if on.log and value <= 0:
            return low_end
        return max(low_end, min(high_end, on(value)))

    if result.new is not None and result.new.low is not None and result.new.high is not None:
        x1, x2 = f"{place(result.new.low):.1f}", f"{place(result.new.high):.1f}"
        parts.append(element("line", x1=x1, x2=x2, y1=y, y2=y, class_="reach"))
    mean = result.mean
    if mean is not None:
        if mean.low is not None and mean.high is not None:
            x, width = place(mean.low), max(1.5, place(mean.high) - place(mean.low))
            box = {"x": f"{x:.1f}", "width": f"{width:.1f}", "y": y - half, "height": thickness}
            parts.append(element("rect", **box, class_="band", fill=colour(index)))
        at = f"{on(mean.estimate):.1f}"
        parts.append(element("line", x1=at, x2=at, y1=y - half, y2=y + half, class_="whisker"))
    parts += [_dot(on(v), y, index, f"{label}, seed {s}: {v:.4g}") for s, v in _sorted(result)]
    printed = result.printed if result.comparable else None
    if printed is not None and on.low <= printed.value <= on.high:
        tip = f"{label}, paper: {printed.meant}"
        ring = {"cx": f"{on(printed.value):.1f}", "cy": y, "r": 4.6, "fill": "none"}
        stroke = {"stroke": "var(--ink)", "stroke_width": 1.5}
        parts.append(element("circle", **ring, **stroke, data_tip=tip))
    return join(*parts)


def ends_of(results: Sequence[Result]) -> list[float]:
    """Return what a scale has to hold: seeds, and finite printed values if they are comparable."""
    found = [value for result in results for value in result.values.values()]
    printed = [r.printed.value for r in results if r.printed is not None and r.comparable]
    return found + [value for value in printed if abs(value) != float("inf")]


def _small(result: Result, label: str) -> Markup:
    on = scale(ends_of([result]), 7, WIDTH - 7, pad=0.12)
    if abs(on.high - on.low) < 1e-12:
        return Markup("")
    seeds = "; ".join(f"seed {seed}: {value:.4g}" for seed, value in _sorted(result))
    said = f"{label}, each seed: {seeds}"
    return element(
        "svg",
        drawn(result, on, HEIGHT / 2, 1, label, thickness=12),
        class_="figure cell",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
        role="img",
        aria_label=said,
        data_tip=said.replace("; ", "\n").replace(": seed", ":\nseed", 1),
    )


def _dot(x: float, y: float, index: int, tip: str) -> Markup:
    place = {"cx": f"{x:.1f}", "cy": y, "r": 2.8}
    return element("circle", **place, class_="dot", fill=colour(index), data_tip=tip)


def _sorted(result: Result) -> list[tuple[int, float]]:
    return sorted(result.values.items())


def _meant(printed: Printed) -> str:
    same = printed.text == printed.meant
    return printed.text if same else f"{printed.text} (meant {printed.meant})"
