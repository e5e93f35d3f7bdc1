"""One table in four forms."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.report import Column, Table
from elbowroom.report.markup import element
from elbowroom.study import Interval

TABLE = Table(
    title="A < B",
    columns=(
        Column(label="method & co", text=True),
        Column(label="n"),
        Column(label="PPL", decimals=1),
        Column(label="difference", sign=True),
    ),
    rows=(
        ("a|b_%", 3, Interval(estimate=10.56, low=10.1, high=11.0, level=0.95, n=3), -1.234),
        ("<c>", None, Interval(estimate=5.0, low=None, high=None, level=0.95, n=1), 0.5),
    ),
)


def test_markdown() -> None:
    assert TABLE.markdown().splitlines() == [
        "| method & co | n | PPL | difference |",
        "| :--- | ---: | ---: | ---: |",
        "| a\\|b_% | 3 | 10.6 [10.1, 11.0] | -1.23 |",
        "| <c> | – | 5.0 | +0.50 |",
    ]


def test_latex() -> None:
    text = TABLE.latex()
    assert r"\begin{tabular}{lrrr}" in text
    assert r"a|b\_\% & 3 & 10.6 [10.1, 11.0] & -1.23 \\" in text
    assert r"<c> & -- & 5.0 & +0.50 \\" in text
    assert r"method \& co" in text


def test_csv_keeps_all_digits() -> None:
    heading, first, second = csv.reader(io.StringIO(TABLE.csv()))
    assert heading == ["method & co", "n", "PPL", "PPL low", "PPL high", "difference"]
    assert first == ["a|b_%", "3", "10.56", "10.1", "11.0", "-1.234"]
    assert second == ["<c>", "", "5.0", "", "", "0.5"]
    mixed = Table(title="", columns=TABLE.columns[2:3], rows=[[1.5], TABLE.rows[0][2:3]])
    assert mixed.csv().splitlines()[1] == "1.5,,"


def test_html() -> None:
    page = TABLE.html(footer=["", "", element("b", "axis"), None], classes=["m m0", ""])
    box = ElementTree.fromstring(page)
    rows = box.findall("table/tbody/tr")
    assert [row.get("class") for row in rows] == ["m m0", None]
    assert rows[1].find("th").text == "<c>"  # type: ignore[union-attr]
    assert rows[0].findall("td")[2].text == "−1.23"
    assert box.find("table/tfoot/tr/td/b").text == "axis"  # type: ignore[union-attr]
    assert box.find("table/caption").text == "A < B"  # type: ignore[union-attr]
    assert "tfoot" not in TABLE.html()


@pytest.mark.parametrize("form", ["md", "tex", "csv", "html"])
def test_save(form: str, tmp_path: Path) -> None:
    path = TABLE.save(tmp_path / "new" / f"t.{form}")
    assert "method" in path.read_text(encoding="utf-8")
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_bad_use(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="path: expected a file that ends in"):
        TABLE.save(tmp_path / "t.xlsx")
    with pytest.raises(ArgumentValueError, match="rows: expected 1 cells a row, got 2"):
        Table(title="", columns=[Column(label="a")], rows=[["a", "b"]])
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(FileError, match="got a folder"):
        TABLE.save(tmp_path / "t.csv")


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = TABLE.save(tmp_path / "t.md")

    def refuse(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", refuse)
    before = path.read_text(encoding="utf-8")
    with pytest.raises(OSError, match="disk full"):
        Table(title="", columns=[Column(label="x")], rows=[]).save(path)
    assert path.read_text(encoding="utf-8") == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.md"]
