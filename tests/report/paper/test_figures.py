from __future__ import annotations

import base64
import re
import struct
import zlib
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np

from elbowroom.report import HeadMatrix
from elbowroom.report.paper.figures import (
    cosine_figures,
    tail_figures,
    temperature_figures,
    token_figures,
)
from elbowroom.report.paper.maps import CLASSES, HIGH, LOW, MIDDLE, cosine_map, png
from elbowroom.report.paper.planes import plane
from elbowroom.study.paper import study_of
from tests.study.paper.made_up import record, records


def pixels(data: bytes) -> np.ndarray:
    """Read the kind of PNG that we write."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (depth, kind) == (8, 2)
    size = struct.unpack(">I", data[33:37])[0]
    raw = np.frombuffer(zlib.decompress(data[41 : 41 + size]), dtype=np.uint8)
    lines = raw.reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def picture(svg: str) -> np.ndarray:
    found = re.search(r"data:image/png;base64,([^\"]+)", svg)
    assert found is not None
    return pixels(base64.b64decode(found[1]))


def head() -> HeadMatrix:
    weight = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, -1.0]])
    return HeadMatrix(
        name="made up", weight=weight, tokens=["A", "a"] * 2, languages=["hr", "hr", "lr", "lr"]
    )


def test_a_png_holds_its_pixels() -> None:
    shown = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert np.array_equal(pixels(png(shown)), shown)


def test_cosines_are_colours() -> None:
    shown = picture(cosine_map("x", head()).svg())
    assert [tuple(shown[0, i]) for i in range(4)] == [HIGH, MIDDLE, HIGH, MIDDLE]
    assert tuple(shown[1, 3]) == LOW


def test_classes_stand_beside_the_heads() -> None:
    classes, first = cosine_figures([head()])
    shown = picture(classes.svg())
    found = [tuple(shown[0, i]) for i in range(4)]
    assert found == [CLASSES[name] for name in ("ID", "C", "T", "T+C")]
    assert first.title == "Cosines: made up"
    for figure in (classes, first):
        ElementTree.fromstring(figure.svg())
    assert cosine_figures([]) == []


def test_the_plane_joins_translations_and_crosses_the_rarest() -> None:
    joined = replace(head(), pairs=[(2, 0), (3, 1)])
    figure = plane("x", joined, [1, 3])
    svg = figure.svg()
    ElementTree.fromstring(svg)
    assert svg.count('class="link"') == 2
    assert svg.count('class="whisker"') == 2
    assert figure.note == "The plane holds 100% of the variance. The 2 rarest are crossed."
    assert "crossed" not in plane("x", joined).note


def test_token_counts_name_their_ends() -> None:
    (figure,) = token_figures({"hr": [(" ", 150209.5), ("$", 0.98)], "lr": []})
    assert figure.note == "hr: from 150,209.5 (␣) to 0.98 ($)."
    assert token_figures({}) == token_figures({"hr": []}) == []


def test_tails_are_sorted_curves_with_a_geometric_mean() -> None:
    tails = [
        {"probabilities": [0.9, 0.1, 0.0], "target": 0.9, "rank": 1},
        {"probabilities": [0.4, 0.1, 0.1], "target": 0.1, "rank": 2},
    ]
    listed = [record("ce-tied", seed, tail=tail) for seed, tail in enumerate(tails)]
    (figure,) = tail_figures(study_of([*listed, record("margin-1")]), ("ce-tied", "margin-1"))
    assert figure.note == "The true token has, mean over seeds: ce-tied 0.500."
    (line,) = figure.hover
    assert line["points"][0][2:] == ["rank 1", "0.6"]
    ElementTree.fromstring(figure.svg())
    assert tail_figures(study_of([record("margin-1")]), ("margin-1",)) == []


def test_temperatures_have_a_panel_a_language() -> None:
    study = study_of(records(("ce-tied",), 2))
    assert [f.name for f in temperature_figures(study, ("ce-tied", "margin-1"))] == [
        "temperature-0",
        "temperature-1",
    ]
    assert temperature_figures(study, ("margin-1",)) == []
