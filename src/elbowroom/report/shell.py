"""The page around the sections: one file, no request, light and dark, narrow and wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from elbowroom.report.figure import Figure, style
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.palette import DARK, LIGHT, variables
from elbowroom.report.results import method_cell

# The browser itself refuses whatever would leave the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page."""

    anchor: str
    """Its place in the address."""
    title: str
    """Its heading."""
    body: Markup
    """What it shows."""


def panels(figures: Sequence[Figure], note: str = "") -> Markup:
    """Return figures side by side where there is room, each with its caption."""
    drawn = []
    for figure in figures:
        said = element("span", figure.note, class_="note") if figure.note else None
        caption = element("figcaption", element("bdi", figure.title), said)
        drawn.append(element("figure", caption, figure.svg()))
    text = element("p", note, class_="note") if note else None
    return join(text, element("div", *drawn, class_="panels"))


def page(
    title: str,
    lead: str,
    sections: Sequence[Section],
    methods: Sequence[str],
    warning: str = "",
    *,
    search: str = "",
) -> str:
    """Return a whole page.

    Args:
        title: its heading.
        lead: one sentence below it.
        sections: in their order; the first should say what came out.
        methods: what can be shown and hidden, in the order of their colours.
        warning: shown before all else, such as that runs failed.
        search: an example for the field that filters the rows of all tables; "" for no such field.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", _raw(_css(len(methods)), "/*", "*/")),
    )
    alert = element(
        "p", warning, " ", element("a", "See them.", href="#failures"), class_="warning"
    )
    top = element(
        "header",
        element("div", element("h1", title), element("button", "Dark", id="theme"), class_="top"),
        element("p", lead, class_="soft"),
        alert if warning else None,
        _contents(sections),
        _filters(methods) if len(methods) > 1 else None,
        _search(search) if search else None,
    )
    parts = [element("section", element("h2", s.title), s.body, id=s.anchor) for s in sections]
    foot = element(
        "footer", element("p", "Made by elbowroom; no part loads anything.", class_="note")
    )
    tip = element("div", "", id="tip", role="status", hidden="hidden")
    script = element("script", _raw(_read("page.js"), "//", ""))
    body = element("body", top, element("main", *parts), foot, tip, script)
    whole = element("html", head, body, lang="en", class_="no-script")
    return f"<!DOCTYPE html>\n{whole}\n"


def _contents(sections: Sequence[Section]) -> Markup:
    links = [element("li", element("a", s.title, href=f"#{s.anchor}")) for s in sections]
    return element("nav", element("ul", *links), aria_label="Contents")


def _filters(methods: Sequence[str]) -> Markup:
    boxes = []
    for i, method in enumerate(methods):
        box = element("input", type="checkbox", value=i, checked=True)
        boxes.append(element("label", box, method_cell(method, i)))
    return element("fieldset", element("legend", "Show"), *boxes, class_="filters")


def _search(example: str) -> Markup:
    field = element("input", type="search", id="rows", placeholder=f"such as {example}")
    label = element("label", "Rows of tables with ", field)
    count = element("span", "", id="found", role="status", class_="soft")
    return element("div", label, " ", count, class_="search")


def _css(methods: int) -> str:
    dark = variables(DARK)
    hidden = ",".join(f".hide-{i} .m{i}" for i in range(methods))
    themes = [
        f":root{{color-scheme:light;{variables(LIGHT)}}}",
        f"@media (prefers-color-scheme:dark){{:root{{color-scheme:dark;{dark}}}}}",
        f":root[data-theme=light]{{color-scheme:light;{variables(LIGHT)}}}",
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}",
        f"{hidden}{{display:none}}",
    ]
    return "\n".join([*themes, _read("page.css"), style()])


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _raw(text: str, start: str, end: str) -> Markup:
    """Return a style or script that is the same for parsers of HTML and of XML."""
    return Markup(f"{start}<![CDATA[{end}\n{text}\n{start}]]>{end}")
