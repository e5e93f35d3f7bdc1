"""The types of optimization in one real step: arrows on the plane that holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from elbowroom.report.figure import BOTTOM, WIDTH, Figure, text_width, x_axis
from elbowroom.report.markup import Markup, element, join, visible
from elbowroom.report.numbers import short
from elbowroom.report.paper.arrows import arrow, key, sign
from elbowroom.report.scales import Scale
from elbowroom.report.scatter import overlap
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import mean_interval
from elbowroom.study.paper import Study

TOP, EDGE, LONGEST, SHORTEST = 71.0, 18.0, 76.0, 5.0
DECADES = 6  # powers of ten that the lengths of arrows tell apart
LEAST_HEIGHT, MOST_HEIGHT = 170.0, 330.0
Box: TypeAlias = tuple[float, float, float, float]
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
    wide, tall = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    left, right = EDGE + LONGEST / 2, WIDTH - LONGEST - 8  # pulls point to the right
    unit = max(wide / (right - left), tall / MOST_HEIGHT, 1e-12)
    above = EDGE + max(0.0, LONGEST - (max(ys) - step["source_at"][1]) / unit)  # and this one up
    height = max(LEAST_HEIGHT, tall / unit + EDGE + above)
    low_x, high_y = min(xs) - unit * (left - EDGE), max(ys) + unit * above
    high_x, low_y = low_x + unit * (WIDTH - 2 * EDGE), high_y - unit * height
    return _View(
        step=step,
        across=Scale(low=low_x, high=high_x, start=EDGE, end=WIDTH - EDGE),
        up=Scale(low=low_y, high=high_y, start=TOP + height, end=TOP),
        greatest=greatest or 1.0,
    )


def _panel(name: str, loss: str, view: _View) -> Figure:
    step, found, top = view.step, view.step["losses"][loss], TOP
    bottom = view.up.start
    axis = x_axis(view.across, top, bottom, "logit: place along the hidden state →")
    pushes = [_push(view, row, norm) for row, norm in enumerate(found["push"]) if norm > 0]
    marks = [_mark(view, row, norm) for row, norm in enumerate(found["push"])]
    body = join(
        key(),
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
        f"{rare} of {RARE} {own}; on {others - count} the push is exactly zero."
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
    return arrow((x, y), (x - view.length(norm), y), "push", tip)


def _mark(view: _View, row: int, norm: float) -> Markup:
    step = view.step
    moved = norm > 0 or row == step["target"]
    tip = f"{_named(step, row)}: logit {short(step['along'][row])}"
    return sign(*view.at(row), (step["languages"][row] == RARE, moved), tip)


def _aligned(view: _View, found: Mapping[str, Any]) -> Markup:
    """Return the arrows of the target and of the context's token."""
    step, arrows = view.step, []
    if found["pull"] > 0:
        x, y = view.at(step["target"])
        tip = f"{_named(step, step['target'])}: pulled, gradient {short(found['pull'])}"
        arrows.append(arrow((x, y), (x + view.length(found["pull"]), y), "pull", tip))
    right, over = found["context"]
    norm = math.hypot(right, over)
    if norm > 0:
        x, y = view.across(step["source_at"][0]), view.up(step["source_at"][1])
        reach = view.length(norm) / norm
        tip = f"{_named(step, step['source'])}: gradient {short(found['context_norm'])}"
        arrows.append(arrow((x, y), (x + reach * right, y - reach * over), "context", tip))
    return join(*arrows)


def _names(view: _View, found: Mapping[str, Any]) -> list[Markup]:
    """Return the names of the target, the context's token and the rows that are pushed most."""
    step, push = view.step, found["push"]
    others = [row for row in range(len(push)) if row != step["source"] and push[row] > 0]
    order = sorted(others, key=lambda row: -push[row])[:NAMED]
    source = view.across(step["source_at"][0]), view.up(step["source_at"][1])
    target = (*view.at(step["target"]), _token(step, step["target"]))
    pushed = [(*view.at(row), _token(step, row)) for row in order]
    taken: list[Box] = []
    words = [_word(*target, taken, beside=False)]  # its arrow is
    words.append(_word(*source, _token(step, step["source"]), taken))
    taken += [(x - 3, y - 3, x + 3, y + 3) for x, y, _ in pushed]
    return [word for word in [*words, *(_word(*one, taken) for one in pushed)] if word]


def _word(x: float, y: float, text: str, taken: list[Box], *, beside: bool = True) -> Markup | None:
    """Return a name near its mark, and take its room; None where there is none."""
    width, own = 0.85 * text_width(text), (x - 3, y - 3, x + 3, y + 3)
    aside = [(x + 5, y + 4), (x - 5 - width, y + 4)] if beside else []
    for left, base in [*aside, (x - width / 2, y + 13), (x - width / 2, y - 6)]:
        box = (left, base - 9, left + width, base + 2)
        free = not any(overlap(box, other) for other in taken if other != own)
        if free and box[0] >= 2 and box[2] <= WIDTH - 2:
            taken += [box, own]
            at = {"x": f"{left:.1f}", "y": f"{base:.1f}"}
            return element("text", text, class_="token halo", **at)
    return None


def _named(step: Mapping[str, Any], row: int) -> str:
    return f"{_token(step, row)} {step['languages'][row] or ''}".strip()


def _token(step: Mapping[str, Any], row: int) -> str:
    token = str(step["tokens"][row])
    return {" ": "space", "\n": "newline"}.get(token, visible(token))
