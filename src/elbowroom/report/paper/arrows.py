"""Arrows and marks of the types of optimization, and what they mean."""

from __future__ import annotations

import math

from elbowroom.report.markup import Markup, element, join
from elbowroom.report.palette import colour

TYPES = {"context": "context alignment", "pull": "target alignment", "push": "marginalization"}
SIGNS = ("row of the frequent language", "row of the rare language", "not pushed: exactly zero")
COLOURS = {"context": 1, "pull": 3, "push": 2}  # blue, green and red, as in the paper
HEAD = 4.2


def key() -> Markup:
    """Return what arrows and marks mean."""
    parts: list[Markup] = []
    looks = ((False, True), (True, True), (False, False))
    for i, (kind, look, said) in enumerate(zip(TYPES, looks, SIGNS, strict=True)):
        y = 14.0 + 19 * i
        parts.append(arrow((14.0, y), (36.0, y), kind, TYPES[kind]))
        parts.append(element("text", TYPES[kind], x=42, y=y + 4))
        parts.append(sign(225.0, y, look, said))
        parts.append(element("text", said, x=236, y=y + 4))
    return join(*parts)


def sign(x: float, y: float, look: tuple[bool, bool], tip: str) -> Markup:
    """Return a circle, or for a rare language's row a square; hollow where nothing pushes it.

    Args:
        x: its middle.
        y: its middle.
        look: whether it is rare, and whether it is the target or pushed.
        tip: for hovering.
    """
    rare, moved = look
    ink = "var(--ink)" if moved else "var(--soft)"
    style = {"fill": ink if moved else "var(--bg)", "stroke": ink, "stroke_width": 0.9}
    if not rare:
        return element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2.1, **style, data_tip=tip)
    corner = {"x": f"{x - 1.9:.1f}", "y": f"{y - 1.9:.1f}", "width": 3.8, "height": 3.8}
    return element("rect", **corner, **style, data_tip=tip)


def arrow(start: tuple[float, float], end: tuple[float, float], kind: str, tip: str) -> Markup:
    """Return an arrow; those of marginalization, of which there are many, are thinner.

    Args:
        start: where it begins.
        end: where it points.
        kind: one of `TYPES`.
        tip: for hovering.
    """
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
