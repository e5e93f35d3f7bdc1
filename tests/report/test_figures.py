"""Drawings: well-formed, escaped, what they show is in them."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from elbowroom.errors import ArgumentValueError
from elbowroom.report import (
    Axes,
    Bars,
    Figure,
    HeadMatrix,
    Line,
    bar_chart,
    cells,
    embedding_map,
    line_chart,
    lines,
    scatter,
)
from elbowroom.report.figure import Entry, legend, text_width
from elbowroom.report.palette import COLOURS, DARK, LIGHT, SHAPES, dash, marker
from elbowroom.report.scatter import principal_plane
from elbowroom.study import Interval

SVG = "{http://www.w3.org/2000/svg}"
AXES = Axes(x="step", y="loss")


def tree(figure: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(figure.svg())


def interval(estimate: float, reach: float | None = None) -> Interval:
    ends = (None, None) if reach is None else (estimate - reach, estimate + reach)
    return Interval(estimate=estimate, low=ends[0], high=ends[1], level=0.95, n=3)


def chart(y: list[float | None], **axes: object) -> Figure:
    x = [float(i) for i in range(len(y))]
    thin = Line(label="a<b", index=0, x=x, y=y, thin=True)
    thick = Line(label="a<b", index=0, x=x, y=y)
    return line_chart("c", "T & t", [thin, thick], Axes(x="step", y="loss", **axes))  # type: ignore[arg-type]


def test_a_drawing_says_what_it_is() -> None:
    svg = tree(chart([3.0, 2.0, 1.0]))
    assert svg.get("role") == "img"
    ids = {e.get("id"): e.text for e in svg if e.tag in ("title", "desc")}
    assert set((svg.get("aria-labelledby") or "").split()) == set(ids)
    assert ids == {"c-title": "T & t", "c-desc": "loss against step for a<b."}


def test_lines_break_where_there_is_nothing() -> None:
    paths = tree(chart([3.0, None, 2.0, math.nan, 1.0, 0.5])).findall(".//path")
    assert len(paths) == 2
    assert [(p.get("d") or "").count("M") for p in paths] == [3, 3]
    assert [(p.get("class") or "").split()[0] for p in paths] == ["thin", "thick"]
    logarithmic = tree(chart([3.0, 0.0, 2.0], log_y=True)).findall(".//path")
    assert (logarithmic[0].get("d") or "").count("M") == 2


def test_axes() -> None:
    svg = chart([3.0, 2.0, 1.5], from_zero=True, guide=1.0).svg()
    assert 'class="guide"' in svg
    assert ">0</text>" in svg
    assert 'class="guide"' not in chart([3.0, 2.0], guide=5.0).svg()
    narrow = chart([3.0, 1e9, 2.0], y_values=[1.0, 3.0])
    assert "-999.0" in narrow.svg()


def test_no_data_is_no_error() -> None:
    assert tree(line_chart("e", "empty", [], AXES)).findall(".//path") == []
    assert tree(bar_chart("e", "empty", [], [], x="bin", y="nats")) is not None


def test_long_lines_are_thinned() -> None:
    n = 10_000
    y = [None if i < 5000 else 1.0 + i for i in range(n)]
    line = Line(label="a", index=0, x=list(map(float, range(n))), y=y)
    figure = line_chart("l", "long", [line], AXES)
    assert len(figure.hover[0]["points"]) == lines.MOST_POINTS // 2


def test_bands_break_where_there_is_no_interval() -> None:
    ends = [(1.0, 3.0), (1.0, 2.0), None, (0.5, 2.0), (-9.0, 4.0)]
    line = Line(label="a", index=2, x=[0, 1, 2, 3, 4], y=[2.0, 1.5, 1.2, 1.0, 1.0], ends=ends)
    svg = tree(line_chart("b", "bands", [line], Axes(x="x", y="y", level=1.5)))
    bands = [p.get("d") or "" for p in svg.iter("path") if p.get("class") == "band"]
    assert [band.count("L") for band in bands] == [3, 3]
    assert [e.get("class") for e in svg.iter("line")].count("guide") == 1
    log = line_chart("l", "log", [line], Axes(x="x", y="y", log_y=True, level=99.0))
    assert "guide" not in log.svg()
    ElementTree.fromstring(log.svg())
    long = Line(label="a", index=0, x=range(999), y=[1.0] * 999, ends=[(0.0, 2.0)] * 999)
    assert line_chart("n", "long", [long], AXES).svg().count('class="band"') == 1


def test_lines_that_no_filter_hides() -> None:
    line = Line(label="a", index=1, x=[0, 1], y=[2.0, 1.5], method=False)
    figure = line_chart("b", "free", [line], AXES)
    assert "m1" not in figure.svg()
    assert figure.hover[0]["index"] is None


def test_hovering_knows_the_values() -> None:
    found = chart([3.0, None, 1.0]).hover
    assert [(h["label"], h["index"]) for h in found] == [("a<b", 0)]
    assert [p[2:] for p in found[0]["points"]] == [["step 0", "3"], ["step 2", "1"]]


def test_a_file_of_its_own(tmp_path: Path) -> None:
    path = chart([3.0, 2.0]).save_svg(tmp_path / "deep" / "figure.svg")
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    style = root.findtext(f"{SVG}style") or ""
    assert "--s0:" in style
    names = set(re.findall(r"var\((--\w+)\)", path.read_text(encoding="utf-8")))
    assert all(f"{name}:" in style for name in names)


def test_bars() -> None:
    bars = [
        Bars(label="a", index=0, values=[interval(2.0, 0.5), None]),
        Bars(label="b", index=1, values=[interval(1.0), interval(0.5, 0.7)]),
    ]
    svg = tree(bar_chart("b", "bars", ["rare", "frequent"], bars, x="bin", y="nats"))
    tips = [g.get("data-tip") for g in svg.iter("g") if g.get("data-tip")]
    assert tips == ["a: 2 (1.500 to 2.500)", "b: 1", "b: 0.5 (-0.200 to 1.200)"]
    heights = [float(r.get("height") or 0) for r in svg.iter("rect")]
    assert heights[0] == pytest.approx(2 * heights[1], rel=0.01)


def test_legends_wrap_and_cut() -> None:
    entries = [Entry(label="x" * 60, index=i) for i in range(4)]
    markup, height = legend(entries)
    assert "…" in markup
    assert height > legend(entries[:1])[1]
    assert legend([])[1] == 12
    assert 'class="m m0"' in markup
    assert "class" not in legend([Entry(label="a", index=0, method=False)])[0].split(">")[0]
    assert text_width("中文") > text_width("ab")


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(theme: dict[str, str]) -> None:
    def contrast(colour: str, ground: str) -> float:
        pair = sorted((luminance(colour), luminance(ground)))
        return (pair[1] + 0.05) / (pair[0] + 0.05)

    assert all(contrast(c, theme["bg"]) >= 3 for c in theme["series"])
    for name in ("ink", "soft", "better", "worse"):
        assert contrast(theme[name], theme["panel"]) >= 4.5, name


def test_many_series_differ_without_colour() -> None:
    kinds = {(marker(i, 0, 0, 1), dash(i)) for i in range(2 * COLOURS)}
    assert len(kinds) == 2 * COLOURS
    assert len(SHAPES) == COLOURS


def test_strips_show_every_seed() -> None:
    values = [(f"seed {i}", v) for i, v in enumerate((1.0, 1.0, 1.0, 5.0))]
    on = cells.strip_scale([v for _, v in values])
    svg = ElementTree.fromstring(
        cells.strip(values, interval(2.0, 9.0), on, 0, new=interval(2, 99))
    )
    dots = [(c.get("cx"), c.get("cy")) for c in svg.iter("circle")]
    assert len(set(dots)) == 4
    assert "seed 3: 5" in (svg.get("aria-label") or "")
    assert "A new seed: -97 to 101" in (svg.get("aria-label") or "")
    alone = cells.strip(values[:1], interval(1.0), on, 0, new=interval(1.0))
    assert "band" not in alone
    assert "new seed" not in alone


def test_forests_hold_zero() -> None:
    on = cells.forest_scale([interval(-2.0, 0.5), interval(-1.0)])
    assert on.low < -2.5
    assert on.high > 0
    assert "interval -2.5 to -1.5" in cells.forest(interval(-2.0, 0.5), on, 0)
    assert "interval" not in cells.forest(interval(-1.0), on, 0)


def test_axes_in_tables_do_not_overlap() -> None:
    for low, high in ((-0.13, 0.0), (0.0, 1e-5), (-123456.0, 99.0)):
        on = cells.forest_scale([interval((low + high) / 2, (high - low) / 2)])
        svg = ElementTree.fromstring(cells.axis(on, cells.FOREST))
        places = [float(t.get("x") or 0) for t in svg.iter("text")]
        assert places
        assert all(b - a > 20 for a, b in pairwise(places))


def test_the_plane_is_that_of_greatest_variance() -> None:
    random = np.random.default_rng(0)
    weight = random.normal(size=(50, 2)) @ random.normal(size=(2, 8)) + 7
    points, share = principal_plane(weight)
    assert share == pytest.approx(1)
    distances = np.linalg.norm(weight[:, None] - weight, axis=-1)
    np.testing.assert_allclose(
        np.linalg.norm(points[:, None] - points, axis=-1), distances, atol=1e-9
    )
    flat, whole = principal_plane(np.ones((3, 1)))
    assert (flat == 0).all()
    assert whole == 1.0


def head(n: int = 4, **changes: object) -> HeadMatrix:
    weight = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    tokens = ["<", "\x00", "שלום", "a long token indeed"]
    found = {
        "name": "ours",
        "weight": weight,
        "tokens": [tokens[i % 4] for i in range(n)],
        "languages": ["hr", None][: n % 2 + 1] * (n // (n % 2 + 1)),
        "pairs": [(0, 1)],
    }
    return HeadMatrix(**(found | changes))  # type: ignore[arg-type]


def test_the_map_names_and_joins_tokens() -> None:
    figure = embedding_map("m", head(languages=["hr", "lr", None, "hr"]))
    svg = tree(figure)
    assert len([e for e in svg.iter("line") if e.get("class") == "link"]) == 1
    texts = [t.text for t in svg.iter("text") if t.get("class") == "token halo"]
    assert "<" in texts
    assert "␀" in texts
    assert "a long token indeed" not in texts
    tips = [e.get("data-tip") for e in svg.iter() if e.get("data-tip")]
    assert any("shared · id 2" in (tip or "") for tip in tips)
    assert "1 pairs" in figure.note


def test_large_maps_are_thinned_and_keep_pairs() -> None:
    n = 3000
    figure = embedding_map("m", head(n, languages=["hr"] * n, pairs=[(1, 2999)]))
    dots = [e for e in tree(figure).iter() if "data-tip" in e.attrib]
    assert scatter.MOST_TOKENS - 2 <= len(dots) <= scatter.MOST_TOKENS
    assert 'class="link"' in figure.svg()
    assert f"of {n} tokens are drawn" in figure.note


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": np.zeros(3)}, "weight: expected finite numbers"),
        ({"weight": np.full((4, 2), np.nan)}, "NaN"),
        ({"tokens": ["a"]}, "tokens: expected 4, one a row"),
        ({"languages": ["a"]}, "languages: expected 4"),
        ({"pairs": [(0, 4)]}, "pairs: expected ids from 0 to 3"),
    ],
)
def test_bad_heads(changes: dict[str, object], message: str, unchecked: None) -> None:
    full = {"languages": ["hr"] * 4} | changes
    with pytest.raises(ArgumentValueError, match=message):
        embedding_map("m", head(**full))
