"""A drawing: SVG for a page and for a file, with axes and a legend in one style."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from elbowroom.provenance import write_bytes
from elbowroom.report.files import write_text
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.palette import LIGHT, colour, dash, marker, variables
from elbowroom.report.pdf import pdf_of
from elbowroom.report.scales import Scale, tick_labels

WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 54, 22, 12, 46
_LETTER = 7.2  # room for a letter where a narrow screen makes them larger
_ROW = 19


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing with what is read aloud in its place."""

    name: str
    """Unique on a page; the stem of its file."""
    title: str
    """What it shows."""
    description: str
    """The same in words, for who cannot see it."""
    body: Markup
    """The drawing itself."""
    width: float = WIDTH
    """In user units; on a page it fills its column."""
    height: float = HEIGHT
    """In user units."""
    note: str = ""
    """What to say below the title."""
    hover: Sequence[dict[str, Any]] = field(default=())
    """What to show at a place: series with points ``[x, y, text]``."""

    def svg(self) -> Markup:
        """Return the drawing for a page that has the style and the colours."""
        return self._svg(self.body, self.height)

    def save_svg(self, path: str | Path) -> Path:
        """Write the drawing as a file of its own, light, with its title; return the path."""
        return write_text(path, self.svg_file())

    def save_pdf(self, path: str | Path) -> Path:
        """Write what `save_svg` writes as a PDF of one page; return the path."""
        return write_bytes(path, pdf_of(self.svg_file(), self.title))

    def svg_file(self) -> str:
        """Return the text of an SVG file: light, with title and style."""
        rules = f".figure{{{variables(LIGHT)}}}\n{style()}"
        heading = element("text", self.title, class_="heading", x=12, y=20)
        body = join(
            element("style", Markup(rules)),
            element("rect", width="100%", height="100%", fill="var(--bg)"),
            heading,
            element("g", self.body, transform="translate(0,26)"),
        )
        svg = self._svg(body, self.height + 26, xmlns="http://www.w3.org/2000/svg")
        return f"{svg}\n"

    def _svg(self, body: Markup, height: float, **more: object) -> Markup:
        more |= {"data_hover": json.dumps(list(self.hover)) if self.hover else None}
        return element(
            "svg",
            element("title", self.title, id=f"{self.name}-title"),
            element("desc", self.description, id=f"{self.name}-desc"),
            body,
            class_="figure",
            viewBox=f"0 0 {self.width:g} {height:g}",
            role="img",
            aria_labelledby=f"{self.name}-title {self.name}-desc",
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a legend."""

    label: str
    """What it says."""
    index: int
    """The series' colour, dash and shape."""
    line: bool = False
    """A piece of line, or a mark."""
    method: bool = True
    """Whether it goes with the method when that is hidden."""


def style() -> str:
    """Return the style of drawings as CSS."""
    return resources.files(__package__).joinpath("figure.css").read_text(encoding="utf-8")


def clipped(text: str, limit: int = 26) -> str:
    """Return text, cut with an ellipsis where it is longer than ``limit``."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def text_width(text: str) -> float:
    """Return about how much room a text needs in a drawing."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return _LETTER * (len(text) + 0.7 * wide)


def legend(entries: Sequence[Entry], width: float = WIDTH) -> tuple[Markup, float]:
    """Return a legend in as many rows as it needs, and its height."""
    x, y, parts = 14.0, TOP + 2.0, []
    for entry in entries:
        label = clipped(entry.label)
        room = 30 + text_width(label) + 10
        if x > 14 and x + room > width:
            x, y = 14.0, y + _ROW
        mark = marker(entry.index, x + 9, y, 4)
        if entry.line:
            mark = element(
                "line",
                x1=x,
                x2=x + 22,
                y1=y,
                y2=y,
                class_="thick",
                stroke=colour(entry.index),
                stroke_dasharray=dash(entry.index),
            )
        text = element("text", label, x=f"{x + (28 if entry.line else 19):g}", y=f"{y + 4:g}")
        parts.append(element("g", mark, text, class_=method_class(entry)))
        x += room
    return join(*parts), (y + 14 if entries else TOP)


def method_class(entry: Entry) -> str | None:
    """Return the class by which a page hides what belongs to a method."""
    return f"m m{entry.index}" if entry.method else None


def x_axis(scale: Scale, top: float, bottom: float, label: str) -> Markup:
    """Return the axis below: ticks, faint lines, what it measures."""
    ticks = scale.ticks(5)
    parts = [element("line", x1=scale.start, x2=scale.end, y1=bottom, y2=bottom, class_="axis")]
    for tick, text in zip(ticks, tick_labels(ticks), strict=True):
        x = f"{scale(tick):.1f}"
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        parts.append(element("text", text, x=x, y=f"{bottom + 16:g}", text_anchor="middle"))
    middle = f"{(scale.start + scale.end) / 2:.1f}"
    parts.append(element("text", label, x=middle, y=f"{bottom + 35:g}", text_anchor="middle"))
    return join(*parts[1:], parts[0])


def y_axis(scale: Scale, left: float, right: float, label: str) -> Markup:
    """Return the axis on the left: ticks, faint lines, what it measures."""
    ticks = scale.ticks(5)
    parts = []
    for tick, text in zip(ticks, tick_labels(ticks), strict=True):
        y = scale(tick)
        parts.append(
            element("line", x1=left, x2=right, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid")
        )
        parts.append(element("text", text, x=left - 6, y=f"{y + 4:.1f}", text_anchor="end"))
    middle = (scale.start + scale.end) / 2
    turned = f"rotate(-90 13 {middle:.1f})"
    parts.append(
        element("text", label, x=13, y=f"{middle:.1f}", text_anchor="middle", transform=turned)
    )
    return join(*parts)
