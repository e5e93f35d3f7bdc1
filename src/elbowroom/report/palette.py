"""Colours for light and dark, safe for colour-blind eyes; methods also differ in dash and shape.

The series' colours are those of Okabe and Ito (2008), darker on white and lighter on black until
text-size marks stand out (contrast 3:1 or more).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from elbowroom.report.markup import Markup, element

LIGHT = {
    "bg": "#ffffff",
    "panel": "#f6f7f9",
    "ink": "#16191d",
    "soft": "#59616b",
    "line": "#d8dce2",
    "better": "#00684a",
    "worse": "#a63d00",
    "series": ("#3f4750", "#0067a8", "#c24a00", "#00805c", "#a8417c", "#8a6a00", "#2a8fc4"),
}
DARK = {
    "bg": "#121519",
    "panel": "#1b1f25",
    "ink": "#e9ecf0",
    "soft": "#a3acb8",
    "line": "#363d47",
    "better": "#4ad3a6",
    "worse": "#ff9a62",
    "series": ("#c3cad3", "#5cb3f2", "#ff8b4d", "#3fcea2", "#ec94c4", "#e3b93b", "#8bd0f5"),
}
COLOURS = len(LIGHT["series"])
DASHES = (None, "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2")
SHAPES = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")


def variables(theme: Mapping[str, str | Sequence[str]]) -> str:
    """Return a theme as CSS variables: ``--ink``, and ``--s0`` on for the series."""
    named = {name: value for name, value in theme.items() if name != "series"}
    named |= {f"s{i}": value for i, value in enumerate(theme["series"])}
    return "".join(f"--{name}:{value};" for name, value in named.items())


def colour(index: int) -> str:
    """Return the colour of a series as CSS."""
    return f"var(--s{index % COLOURS})"


def dash(index: int) -> str | None:
    """Return the dashes of a series' line; None for a solid one."""
    return DASHES[(index + index // COLOURS) % len(DASHES)]


def marker(index: int, x: float, y: float, size: float, **attributes: object) -> Markup:
    """Return the mark of a series: its shape and colour tell it apart, each alone."""
    shape = SHAPES[(index + index // COLOURS) % len(SHAPES)]
    attributes.setdefault("fill", colour(index))
    if shape == "circle":
        return element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{size:g}", **attributes)
    points = " ".join(f"{x + size * a:.1f},{y + size * b:.1f}" for a, b in _OUTLINES[shape])
    return element("polygon", points=points, **attributes)


def _regular(corners: int, turn: float, size: float) -> list[tuple[float, float]]:
    angles = [2 * math.pi * i / corners + turn for i in range(corners)]
    return [(size * math.cos(a), size * math.sin(a)) for a in angles]


_PLUS = [(0.4, 0.4), (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4)]
_PLUS += [(-a, -b) for a, b in _PLUS]
_OUTLINES = {
    "square": _regular(4, math.pi / 4, 1.25),
    "triangle": _regular(3, -math.pi / 2, 1.35),
    "diamond": _regular(4, 0, 1.35),
    "down": _regular(3, math.pi / 2, 1.35),
    "plus": _PLUS,
    "cross": [((a - b) * 0.75, (a + b) * 0.75) for a, b in _PLUS],
}
