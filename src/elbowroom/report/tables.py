"""One table, four forms: Markdown, LaTeX, CSV and HTML.

Cells are values, not text: numbers, intervals, names, markup. Each form writes them as suits it;
CSV keeps all digits and gives an interval's ends columns of their own.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from elbowroom.errors import ArgumentValueError
from elbowroom.report.files import write_text
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.numbers import ABSENT, between, fixed, typographic
from elbowroom.study import Interval

Cell: TypeAlias = str | int | float | Interval | None
SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".html": "html"}
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    label: str
    """Its heading."""
    decimals: int = 2
    """Of floats and intervals; integers have none."""
    sign: bool = False
    """Whether positive numbers carry a plus, as differences do."""
    text: bool = False
    """Whether it holds words: set from the left, all else from the right."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table to be written in several forms.

    Example:
        >>> table = Table(
        ...     title="Perplexity",
        ...     columns=(Column(label="method", text=True), Column(label="PPL")),
        ...     rows=(("ce-tied", 10.594), ("ours", None)),
        ... )
        >>> print(table.markdown(), end="")
        | method | PPL |
        | :--- | ---: |
        | ce-tied | 10.59 |
        | ours | – |
    """

    title: str
    """What it shows."""
    columns: Sequence[Column]
    """The headings and how their numbers are written."""
    rows: Sequence[Sequence[Cell]]
    """As many cells each as there are columns."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ArgumentValueError("rows", f"{len(self.columns)} cells a row", len(row))

    def text(self) -> list[list[str]]:
        """Return headings and rows as strings, for a terminal."""
        heading = [column.label for column in self.columns]
        return [heading, *([_text(c, column) for c, column in self._pairs(r)] for r in self.rows)]

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown."""
        ruler = [":---" if column.text else "---:" for column in self.columns]
        heading, *rows = [[_markdown(cell) for cell in row] for row in self.text()]
        return "".join(f"| {' | '.join(row)} |\n" for row in (heading, ruler, *rows))

    def latex(self) -> str:
        r"""Return a ``tabular`` for the package booktabs."""
        heading, *rows = [" & ".join(map(_latex, row)) + r" \\" for row in self.text()]
        shape = "".join("l" if column.text else "r" for column in self.columns)
        start = [rf"\begin{{tabular}}{{{shape}}}", r"\toprule", heading, r"\midrule"]
        return "\n".join([*start, *rows, r"\bottomrule", r"\end{tabular}", ""])

    def csv(self) -> str:
        """Return comma-separated values with all digits; an interval takes three columns."""
        wide = [
            any(isinstance(row[i], Interval) for row in self.rows) for i in range(len(self.columns))
        ]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heading: list[str] = []
        for column, ends in zip(self.columns, wide, strict=True):
            heading.append(column.label)
            heading += [f"{column.label} low", f"{column.label} high"] if ends else []
        writer.writerow(heading)
        for row in self.rows:
            cells = (_raw(c, ends) for c, ends in zip(row, wide, strict=True))
            writer.writerow([value for cell in cells for value in cell])
        return out.getvalue()

    def html(self, *, footer: Sequence[Cell] = (), classes: Sequence[str] = ()) -> Markup:
        """Return the table for a page, in a box of its own that scrolls where it is too wide.

        Args:
            footer: a last row, such as axes below drawings.
            classes: of each row, such as the method it belongs to.
        """
        kinds = [None if column.text else "number" for column in self.columns]
        heading = [
            element("th", column.label, scope="col", class_=kind)
            for column, kind in zip(self.columns, kinds, strict=True)
        ]
        names = classes or [""] * len(self.rows)
        body = [
            element("tr", self._cells(row, kinds), class_=name or None)
            for row, name in zip(self.rows, names, strict=True)
        ]
        foot = element("tfoot", element("tr", *(element("td", c or "") for c in footer)))
        table = element(
            "table",
            element("caption", self.title),
            element("thead", element("tr", *heading)),
            element("tbody", *body),
            foot if footer else None,
        )
        box = {"class_": "scroll", "role": "region", "aria_label": self.title, "tabindex": 0}
        return element("div", table, **box)

    def save(self, path: str | Path) -> Path:
        """Write the table in the form that the file's suffix names; return the path."""
        form = SUFFIXES.get(Path(path).suffix)
        if form is None:
            expected = f"a file that ends in {', '.join(SUFFIXES)}"
            raise ArgumentValueError("path", expected, str(path))
        return write_text(path, str(getattr(self, form)()))

    def _pairs(self, row: Sequence[Cell]) -> list[tuple[Cell, Column]]:
        return list(zip(row, self.columns, strict=True))

    def _cells(self, row: Sequence[Cell], kinds: Sequence[str | None]) -> Markup:
        parts = []
        for i, ((cell, column), kind) in enumerate(zip(self._pairs(row), kinds, strict=True)):
            first = {"scope": "row"} if i == 0 else {}
            parts.append(
                element("th" if i == 0 else "td", _html(cell, column), class_=kind, **first)
            )
        return join(*parts)


def _text(cell: Cell, column: Column) -> str:
    if isinstance(cell, Interval):
        value = fixed(cell.estimate, column.decimals, sign=column.sign)
        ends = between(cell, column.decimals, sign=column.sign)
        return value if ends == ABSENT else f"{value} [{ends.replace(' to ', ', ')}]"
    if isinstance(cell, float):
        return fixed(cell, column.decimals, sign=column.sign)
    return ABSENT if cell is None else str(cell)


def _html(cell: Cell, column: Column) -> Markup | str:
    if isinstance(cell, Interval):
        value = typographic(fixed(cell.estimate, column.decimals, sign=column.sign))
        ends = typographic(between(cell, column.decimals, sign=column.sign))
        return join(value, element("span", ends, class_="ends") if ends != ABSENT else None)
    return cell if isinstance(cell, str) else typographic(_text(cell, column))


def _raw(cell: Cell, ends: bool) -> list[Cell]:
    if isinstance(cell, Interval):
        return [cell.estimate, cell.low, cell.high]
    return [cell, None, None] if ends else [cell]


def _markdown(cell: str) -> str:
    return " ".join(cell.replace("\\", "\\\\").replace("|", "\\|").split())


def _latex(cell: str) -> str:
    return "".join(_LATEX.get(c, c) for c in cell).replace(ABSENT, "--")
