"""From our own SVG to the operators of a PDF page: the same elements, drawn once more."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element, fromstring

from elbowroom.report.sheet import INITIAL, Sheet, Style, sheet_of
from elbowroom.report.type1 import runs_of, width_of

_ROUND = 4 / 3 * (math.sqrt(2) - 1)  # where a quarter of a circle has its control points
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e-?\d+)?")
_CAPS = {"butt": 0, "round": 1, "square": 2}
_JOINS = {"miter": 0, "round": 1, "bevel": 2}
_SILENT = {"title", "desc", "style", "clipPath"}


@dataclass(kw_only=True)
class Painting:
    """A drawing as a PDF page needs it."""

    width: float
    """Of the page."""
    height: float
    """Of the page."""
    operators: list[str] = field(default_factory=list)
    """The page's content, a line each."""
    states: dict[tuple[float, float], str] = field(default_factory=dict)
    """Opacities of filling and stroking: the name of the state that sets them."""
    images: list[bytes] = field(default_factory=list)
    """PNG files, in the order of their numbers."""


def painting_of(svg: str) -> Painting:
    """Return what draws an SVG that `Figure` wrote.

    Args:
        svg: the file's text, with its style.
    """
    root = fromstring(svg)
    _, _, width, height = _numbers(root.get("viewBox", ""))
    css = "".join(each.text or "" for each in root.iter() if _name(each) == "style")
    clips = {f"url(#{each.get('id')})": each for each in root.iter() if _name(each) == "clipPath"}
    painter = _Painter(Painting(width=width, height=height), sheet_of(css), clips)
    painter.put(f"1 0 0 -1 0 {_text(height)} cm")  # y grows downwards, as in SVG
    painter.draw(root, INITIAL)
    return painter.painting


class _Painter:
    def __init__(self, painting: Painting, sheet: Sheet, clips: dict[str, Element]) -> None:
        self.painting, self.sheet, self.clips = painting, sheet, clips
        self.shapes: dict[str, Callable[[Element, Style], None]] = {
            "rect": self._rect,
            "line": self._line,
            "path": self._path,
            "polygon": self._polygon,
            "circle": self._circle,
            "text": self._words,
            "image": self._image,
        }

    def put(self, operator: str) -> None:
        self.painting.operators.append(operator)

    def draw(self, element: Element, inherited: Style) -> None:
        name = _name(element)
        if name in _SILENT:
            return
        style = self.sheet.style(name, element.attrib, inherited)
        self.put("q")
        self._place(element)
        if name in ("svg", "g"):
            for child in element:
                self.draw(child, style)
        else:
            self._pen(style)
            self.shapes[name](element, style)
        self.put("Q")

    def _place(self, element: Element) -> None:
        """Set what an element says of its place: how it is turned, moved and clipped."""
        turn, numbers = element.get("transform", ""), _numbers(element.get("transform", ""))
        if turn.startswith("translate"):
            self.put(f"1 0 0 1 {_text(*numbers)} cm")
        elif turn:
            angle, x, y = math.radians(numbers[0]), numbers[1], numbers[2]
            cos, sin = math.cos(angle), math.sin(angle)
            moved = x - cos * x + sin * y, y - sin * x - cos * y
            self.put(f"{_text(cos, sin, -sin, cos, *moved)} cm")
        if "clip-path" in element.attrib:
            (area,) = self.clips[element.attrib["clip-path"]]
            self.put(f"{self._box(area)} re W n")

    def _pen(self, style: Style) -> None:
        opacities = float(style.get("fill-opacity", 1)), float(style.get("stroke-opacity", 1))
        if opacities != (1.0, 1.0):
            states = self.painting.states
            self.put(f"/{states.setdefault(opacities, f'G{len(states)}')} gs")
        if style["fill"] != "none":
            self.put(f"{_colour(style['fill'])} rg")
        if style["stroke"] != "none":
            self.put(f"{_colour(style['stroke'])} RG {_text(_length(style['stroke-width']))} w")
            dashes = style.get("stroke-dasharray", "")
            self.put(f"[{_text(*_numbers(dashes))}] 0 d")
            caps, joins = style.get("stroke-linecap"), style.get("stroke-linejoin")
            self.put(f"{_CAPS[caps or 'butt']} J {_JOINS[joins or 'miter']} j")

    def _paint(self, style: Style) -> None:
        """Fill and stroke the path that was said, as the style has it."""
        kind = style["fill"] != "none", style["stroke"] != "none"
        self.put({(True, True): "B", (True, False): "f", (False, True): "S"}.get(kind, "n"))

    def _box(self, element: Element) -> str:
        """Return x, y, width and height of a rectangle."""
        whole = {"width": self.painting.width, "height": self.painting.height}
        values = []
        for key in ("x", "y", "width", "height"):
            said = element.get(key, "0")
            values.append(whole[key] * float(said[:-1]) / 100 if "%" in said else float(said))
        return _text(*values)

    def _rect(self, element: Element, style: Style) -> None:
        self.put(f"{self._box(element)} re")
        self._paint(style)

    def _line(self, element: Element, style: Style) -> None:
        x1, y1, x2, y2 = (float(element.get(key, 0)) for key in ("x1", "y1", "x2", "y2"))
        self.put(f"{_text(x1, y1)} m {_text(x2, y2)} l S")

    def _path(self, element: Element, style: Style) -> None:
        for command, places in re.findall(r"([MLZ])([^MLZ]*)", element.get("d", "")):
            self.put("h" if command == "Z" else f"{_text(*_numbers(places))} {command.lower()}")
        self._paint(style)

    def _polygon(self, element: Element, style: Style) -> None:
        numbers = _numbers(element.get("points", ""))
        for i, (x, y) in enumerate(zip(numbers[::2], numbers[1::2], strict=True)):
            self.put(f"{_text(x, y)} {'l' if i else 'm'}")
        self.put("h")
        self._paint(style)

    def _circle(self, element: Element, style: Style) -> None:
        x, y, r = (float(element.get(key, 0)) for key in ("cx", "cy", "r"))
        k = r * _ROUND
        self.put(f"{_text(x + r, y)} m")
        self.put(f"{_text(x + r, y + k, x + k, y + r, x, y + r)} c")
        self.put(f"{_text(x - k, y + r, x - r, y + k, x - r, y)} c")
        self.put(f"{_text(x - r, y - k, x - k, y - r, x, y - r)} c")
        self.put(f"{_text(x + k, y - r, x + r, y - k, x + r, y)} c h")
        self._paint(style)

    def _words(self, element: Element, style: Style) -> None:
        text, size = "".join(element.itertext()), _length(style["font-size"])
        before = {"middle": 0.5, "end": 1.0}.get(style.get("text-anchor", ""), 0.0)
        x = float(element.get("x", 0)) - before * size * width_of(text)
        pieces = runs_of(text, bold=style.get("font-weight") == "600")
        shown = " ".join(f"/{font} {_text(size)} Tf <{codes.hex()}> Tj" for font, codes in pieces)
        where = f"1 0 0 -1 {_text(x, float(element.get('y', 0)))} Tm"
        outlined = style.get("paint-order") == "stroke" and style["stroke"] != "none"
        for mode in (1, 0) if outlined else (0,):
            self.put(f"BT {mode} Tr {where} {shown} ET")

    def _image(self, element: Element, style: Style) -> None:
        x, y, width, height = _numbers(self._box(element))
        data = element.get("href", "").partition(",")[2]
        self.put(f"{_text(width)} 0 0 {_text(-height, x, y + height)} cm")
        self.put(f"/I{len(self.painting.images)} Do")
        self.painting.images.append(base64.b64decode(data))


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _numbers(text: str) -> list[float]:
    return [float(each) for each in _NUMBER.findall(text)]


def _length(text: str) -> float:
    return float(text.removesuffix("px"))


def _text(*values: float) -> str:
    return " ".join(f"{value:.3f}".rstrip("0").rstrip(".") for value in values)


def _colour(text: str) -> str:
    """Return a colour's red, green and blue from 0 to 1."""
    if text.startswith("#"):
        parts = [float(int(text[i : i + 2], 16)) for i in (1, 3, 5)]
    else:
        parts = _numbers(text)
    return _text(*(part / 255 for part in parts))
