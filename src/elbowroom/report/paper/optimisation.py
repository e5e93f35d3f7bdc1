"""The types of optimization in one real step: arrows on the plane that holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elbowroom.report.figure import BOTTOM, WIDTH, Figure, text_width, x_axis
from elbowroom.report.markup import Markup, element, join, visible
from elbowroom.report.numbers import short
from elbowroom.report.palette import colour
from elbowroom.report.scales import Scale
from elbowroom.report.scatter import overlap
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import mean_interval
from elbowroom.study.paper import Study

TYPES = {"context": "context alignment", "pull": "target alignment", "push": "marginalization"}
SIGNS = ("row of the frequent language", "row of the rare language", "gradient exactly zero")
COLOURS = {"context": 1, "pull": 3, "push": 2}  # blue, green and red, as in the paper
TOP, EDGE, HEAD, LONGEST, SHORTEST = 71.0, 18.0, 4.2, 76.0, 5.0
DECADES = 6  # powers of ten that the lengths of arrows tell apart
LEAST_HEIGHT, MOST_HEIGHT = 170.0, 330.0
NAMED = 6  # of the rows that are pushed most
RARE = "lr"


@dataclass(frozen=True, kw_only=True)
class _View:
    """A step with its scales, which all panels share."""

    step: Mapping[str, Any]
    across: Scale
    up: Scale
    greatest: float

    def at(self, row: int) -> tuple[float, float]:
        """Return where a row of the head is drawn."""
        return self.across(self.step["along"][row]), self.up(self.step["aside"][row])

    def length(self, norm: float) -> float:
        """Return how long the arrow of a gradient is: by its logarithm."""
        share = 1 + math.log10(norm / self.greatest) / DECADES
        return SHORTEST + (LONGEST - SHORTEST) * max(0.0, min(1.0, share))


def optimisation_figures(study: Study, methods: Sequence[str]) -> list[Figure]:
    """Return a panel for each loss of the first seed's step; nothing without records.

    Args:
        study: our runs; their records hold "step".
        methods: whose.
    """
    steps = [record["step"] for m in methods for record in study.of(m) if record.get("step")]
    if not steps:
        return []
    view = _view(steps[0])
    panels = enumerate(view.step["losses"])
    return [_panel(f"optimisation-{i}", loss, view) for i, loss in panels]


def optimisation_table(study: Study, methods: Sequence[str]) -> Table | None:
    """Return how many rows a position's gradient pushes, over seeds; None without records.

    Args:
        study: our runs; their records hold "step".
        methods: whose.
    """
    steps = [record["step"] for m in methods for record in study.of(m) if record.get("step")]
    if not steps:
        return None
    rows: list[list[Cell]] = []
    for loss in steps[0]["losses"]:
        counts = [(_pushed(one, loss), _pushed(one, loss, RARE)) for one in steps]
        every, rare = (
            mean_interval([float(n) for n in each]) for each in zip(*counts, strict=True)
        )
        sums = [sum(one["losses"][loss]["push"]) for one in steps]
        rows.append(
            [loss, len(steps), len(steps[0]["tokens"]) - 1, every, rare, mean_interval(sums)]
        )
    columns = [
        Column(label="loss", text=True),
        Column(label="seeds"),
        Column(label="rows that are no target"),
        Column(label="pushed", decimals=1),
        Column(label=f"pushed, {RARE}", decimals=1),
        Column(label="sum of the norms of pushes", decimals=2),
    ]
    return Table(title="Rows that one position pushes", columns=columns, rows=rows)


def _pushed(step: Mapping[str, Any], loss: str, language: str | None = None) -> int:
    pairs = zip(step["losses"][loss]["push"], step["languages"], strict=True)
    return sum(push > 0 and language in (None, own) for push, own in pairs)


def _view(step: Mapping[str, Any]) -> _View:
    """Return scales on which equal distances look equal; the panel is as high as it needs."""
    xs = [*step["along"], step["source_at"][0]]
    ys = [*step["aside"], step["source_at"][1]]
    losses = step["losses"].values()
    greatest = max(max(x["push"] + [x["pull"], x["context_norm"]]) for x in losses)
    left, right = EDGE + LONGEST / 2, WIDTH - EDGE - LONGEST / 2
    wide, tall = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    unit = max(wide / (right - left), tall / MOST_HEIGHT, 1e-12)
    height = max(LEAST_HEIGHT, tall / unit + 2 * EDGE + LONGEST / 2)
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    half_x, half_y = unit * (WIDTH - 2 * EDGE) / 2, unit * height / 2
    start, end = TOP + height, TOP
    return _View(
        step=step,
        across=Scale(low=middle_x - half_x, high=middle_x + half_x, start=EDGE, end=WIDTH - EDGE),
        up=Scale(low=middle_y - half_y, high=middle_y + half_y, start=start, end=end),
        greatest=greatest or 1.0,
    )


def _key() -> Markup:
    """Return what arrows and marks mean."""
    parts: list[Markup] = []
    signs = ((False, True), (True, True), (False, False))
    for i, (kind, sign, said) in enumerate(zip(TYPES, signs, SIGNS, strict=True)):
        y = 14.0 + 19 * i
        parts.append(_arrow((14.0, y), (36.0, y), kind, TYPES[kind]))
        parts.append(element("text", TYPES[kind], x=42, y=y + 4))
        parts.append(_sign(225.0, y, sign, said))
        parts.append(element("text", said, x=236, y=y + 4))
    return join(*parts)


def _panel(name: str, loss: str, view: _View) -> Figure:
    step, found, top = view.step, view.step["losses"][loss], TOP
    bottom = view.up.start
    axis = x_axis(view.across, top, bottom, "logit: place along the hidden state →")
    pushes = [_push(view, row, norm) for row, norm in enumerate(found["push"]) if norm > 0]
    marks = [_mark(view, row, norm) for row, norm in enumerate(found["push"])]
    body = join(
        _key(),
        axis,
        _threshold(view, found["threshold"], top, bottom),
        *pushes,
        *marks,
        _aligned(view, found),
        *_names(view, found),
    )
    others = len(step["tokens"]) - 1
    rare = sum(language == RARE for language in step["languages"])
    count, own = _pushed(step, loss), _pushed(step, loss, RARE)
    note = (
        f"After “{visible(step['before'])}” comes “{_token(step, step['target'])}”, which has "
        f"probability {step['probability']:.2g}. Of {others} other rows {count} are pushed, of the "
        f"{rare} of {RARE} {own}; the gradient of {others - count} is exactly zero."
    )
    title, height = f"One step: {loss}", bottom + BOTTOM
    return Figure(name=name, title=title, description=note, body=body, height=height, note=note)


def _threshold(view: _View, at: float | None, top: float, bottom: float) -> Markup | None:
    """Return the line below which rows get no gradient."""
    if at is None or not view.across.low < at < view.across.high:
        return None
    x = f"{view.across(at):.1f}"
    line = element("line", x1=x, x2=x, y1=top, y2=bottom, class_="guide")
    label = element("text", "threshold", x=view.across(at) - 5, y=top + 11, text_anchor="end")
    return join(line, label)


def _push(view: _View, row: int, norm: float) -> Markup:
    x, y = view.at(row)
    tip = f"{_named(view.step, row)}: pushed, gradient {short(norm)}"
    return _arrow((x, y), (x - view.length(norm), y), "push", tip)


def _mark(view: _View, row: int, norm: float) -> Markup:
    step = view.step
    moved = norm > 0 or row == step["target"]
    tip = f"{_named(step, row)}: logit {short(step['along'][row])}"
    return _sign(*view.at(row), (step["languages"][row] == RARE, moved), tip)


def _sign(x: float, y: float, look: tuple[bool, bool], tip: str) -> Markup:
    """Return a circle, or for a rare language's row a square; hollow where nothing moves it."""
    rare, moved = look
    ink = "var(--ink)" if moved else "var(--soft)"
    style = {"fill": ink if moved else "var(--bg)", "stroke": ink, "stroke_width": 0.9}
    if not rare:
        return element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2.1, **style, data_tip=tip)
    corner = {"x": f"{x - 1.9:.1f}", "y": f"{y - 1.9:.1f}", "width": 3.8, "height": 3.8}
    return element("rect", **corner, **style, data_tip=tip)


def _aligned(view: _View, found: Mapping[str, Any]) -> Markup:
    """Return the arrows of the target and of the context's token."""
    step, arrows = view.step, []
    if found["pull"] > 0:
        x, y = view.at(step["target"])
        tip = f"{_named(step, step['target'])}: pulled, gradient {short(found['pull'])}"
        arrows.append(_arrow((x, y), (x + view.length(found["pull"]), y), "pull", tip))
    right, over = found["context"]
    norm = math.hypot(right, over)
    if norm > 0:
        x, y = view.across(step["source_at"][0]), view.up(step["source_at"][1])
        reach = view.length(norm) / norm
        tip = f"{_named(step, step['source'])}: gradient {short(found['context_norm'])}"
        arrows.append(_arrow((x, y), (x + reach * right, y - reach * over), "context", tip))
    return join(*arrows)


def _arrow(start: tuple[float, float], end: tuple[float, float], kind: str, tip: str) -> Markup:
    (x1, y1), (x2, y2) = start, end
    length = max(1e-9, math.hypot(x2 - x1, y2 - y1))
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    strong = kind != "push"
    size = HEAD if strong else 0.72 * HEAD
    base_x, base_y = x2 - size * ux, y2 - size * uy
    sides = [(x2, y2), (base_x - size * uy / 2, base_y + size * ux / 2)]
    sides.append((base_x + size * uy / 2, base_y - size * ux / 2))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in sides)
    hue = colour(COLOURS[kind])
    width, dim = (2.4, None) if strong else (1.0, 0.6)
    ends = {"x1": x1, "y1": y1, "x2": base_x, "y2": base_y}
    places = {key: f"{value:.1f}" for key, value in ends.items()}
    line = element("line", **places, stroke=hue, stroke_width=width, stroke_opacity=dim)
    head = element("polygon", points=points, fill=hue, fill_opacity=dim)
    return element("g", line, head, data_tip=tip)


def _names(view: _View, found: Mapping[str, Any]) -> list[Markup]:
    """Return the names of the target, the context's token and the rows that are pushed most."""
    step, push = view.step, found["push"]
    others = [row for row in range(len(push)) if row != step["source"] and push[row] > 0]
    order = sorted(others, key=lambda row: -push[row])[:NAMED]
    source = view.across(step["source_at"][0]), view.up(step["source_at"][1])
    asked = [(*view.at(step["target"]), f"{_token(step, step['target'])} (target)")]
    asked.append((*source, f"{_token(step, step['source'])} (context)"))
    asked += [(*view.at(row), _token(step, row)) for row in order]
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y, _ in asked]
    words = []
    for i, (x, y, text) in enumerate(asked):
        width = 0.85 * text_width(text)
        below, over = (x - width / 2, y + 13), (x - width / 2, y - 6)
        beside = [(x + 5, y + 4), (x - 5 - width, y + 4)]
        aligned = i < 2  # the target's and the context's arrow may be beside
        for left, base in [below, over] if aligned else [*beside, over, below]:
            box = (left, base - 9, left + width, base + 2)
            free = not any(overlap(box, other) for j, other in enumerate(taken) if j != i)
            if free and box[0] >= 2 and box[2] <= WIDTH - 2:
                taken.append(box)
                at = {"x": f"{left:.1f}", "y": f"{base:.1f}"}
                words.append(element("text", text, class_="token halo", **at))
                break
    return words


def _named(step: Mapping[str, Any], row: int) -> str:
    return f"{_token(step, row)} {step['languages'][row] or ''}".strip()


def _token(step: Mapping[str, Any], row: int) -> str:
    token = str(step["tokens"][row])
    return {" ": "space", "\n": "newline"}.get(token, visible(token))
