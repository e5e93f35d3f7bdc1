"""The style of an SVG file, read from the file itself: enough CSS for our own drawings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Style: TypeAlias = Mapping[str, str]

_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_PROPERTIES = (
    *("fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray"),
    *("stroke-linecap", "stroke-linejoin", "font-size", "font-weight", "text-anchor"),
    "paint-order",
)
INITIAL = {"fill": "#000000", "stroke": "none", "stroke-width": "1", "font-size": "16"}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Rules for elements by name and by class, below ``.figure``."""

    variables: Style
    """Colours by name, such as ``--ink``."""
    rules: Mapping[str, Style]
    """By selector: ``text``, ``.thin``; "" for the drawing itself."""

    def style(self, name: str, attributes: Style, inherited: Style) -> dict[str, str]:
        """Return what holds for an element: inherited, its attributes, and rules, the last wins.

        Args:
            name: of the element.
            attributes: of the element.
            inherited: what holds for its parent.
        """
        own = {key: attributes[key] for key in _PROPERTIES if key in attributes}
        classes = [f".{each}" for each in attributes.get("class", "").split()]
        found = {**inherited, **own}
        for selector in (name, *(rule for rule in self.rules if rule in classes)):
            found |= self.rules.get(selector, {})
        return {key: self._value(value) for key, value in found.items()}

    def _value(self, value: str) -> str:
        return _VARIABLE.sub(lambda match: self.variables[match[1]], value)


def sheet_of(css: str) -> Sheet:
    """Return the sheet that a style says, of selectors ``.figure`` and ``.figure X``.

    Example:
        >>> sheet = sheet_of(".figure{--ink:#111111;} .figure .axis { stroke: var(--ink); }")
        >>> sheet.style("line", {"class": "axis", "stroke": "red"}, {})
        {'stroke': '#111111'}
    """
    variables: dict[str, str] = {}
    rules: dict[str, dict[str, str]] = {}
    for selector, body in _RULE.findall(css):
        what = selector.strip().removeprefix(".figure").strip()
        pairs = (part.split(":", 1) for part in body.split(";") if ":" in part)
        for name, value in ((name.strip(), value.strip()) for name, value in pairs):
            if name.startswith("--"):
                variables[name] = value
            elif name in _PROPERTIES:
                rules.setdefault(what, {})[name] = value
    return Sheet(variables=variables, rules=rules)
