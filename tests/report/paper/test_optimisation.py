from __future__ import annotations

import math
from typing import Any
from xml.etree import ElementTree

import pytest

from elbowroom.report.paper.optimisation import (
    DECADES,
    LONGEST,
    SHORTEST,
    optimisation_figures,
    optimisation_table,
)
from elbowroom.report.pdf import pdf_of
from elbowroom.study import mean_interval
from elbowroom.study.paper import study_of
from tests.study.paper.made_up import record

METHODS = ("ce-tied",)
SVG = "{http://www.w3.org/2000/svg}"


def step(push: list[float] | None = None) -> dict[str, Any]:
    """Four rows: the target, one above the threshold, two below, of which one is rare."""
    plain = {"threshold": None, "pull": 2.0, "push": [0.0, 1.0, 1e-3, 1e-9]}
    plain |= {"context": [0.0, 0.5], "context_norm": 0.5}
    close = {"threshold": 1.0, "pull": 1.5, "push": push or [0.0, 1.5, 0.0, 0.0]}
    close |= {"context": [0.3, 0.4], "context_norm": 0.6}
    return {
        "before": "a c",
        "tokens": ["a", " ", "b", "a"],
        "languages": ["hr", "hr", "hr", "lr"],
        "target": 0,
        "source": 1,
        "source_at": [1.5, 0.2],
        "probability": 0.12345,
        "along": [2.0, 1.5, -1.0, -3.0],
        "aside": [0.0, 0.2, -0.3, 0.5],
        "losses": {"cross-entropy": plain, "margin 1": close},
    }


def arrows(svg: str) -> dict[str, tuple[float, float]]:
    """Return how far each arrow goes across and up, by what is said of it."""
    found = {}
    for group in ElementTree.fromstring(svg).iter("g"):
        line, tip = group.find("line"), group.get("data-tip") or ""
        if line is not None and ":" in tip:
            x1, y1, x2, y2 = (float(line.get(key) or 0) for key in ("x1", "y1", "x2", "y2"))
            found[tip] = (x2 - x1, y1 - y2)
    return found


def test_each_loss_has_a_panel_on_the_same_plane() -> None:
    study = study_of(
        [record("ce-tied", 1, step=step([0.0] * 4)), record("ce-tied", 0, step=step())]
    )
    plain, close = optimisation_figures(study, METHODS)
    assert (plain.name, close.name) == ("optimisation-0", "optimisation-1")
    assert plain.note == (
        "After “a␣c” comes “a”, which has probability 0.12. Of 3 other rows 3 are pushed, of the "
        "1 of lr 1; on 0 the push is exactly zero."
    )
    assert "Of 3 other rows 1 are pushed, of the 1 of lr 0; on 2 the push" in close.note
    assert "threshold" not in plain.svg()
    assert ">threshold</text>" in close.svg()
    places = [
        {(c.get("cx"), c.get("cy")) for c in ElementTree.fromstring(f.svg()).iter("circle")}
        for f in (plain, close)
    ]
    assert places[0] == places[1]
    assert len(places[0]) == 2 + 3  # the key's and the rows'
    for figure in (plain, close):
        assert pdf_of(figure.svg_file(), figure.title).startswith(b"%PDF")


def test_arrows_point_where_rows_go_and_are_as_long_as_the_logarithm() -> None:
    plain, close = (
        arrows(f.svg())
        for f in optimisation_figures(study_of([record("ce-tied", step=step())]), METHODS)
    )
    assert set(plain) == {
        "a hr: pulled, gradient 2",
        "space hr: gradient 0.5",
        "space hr: pushed, gradient 1",
        "b hr: pushed, gradient 0.001",
        "a lr: pushed, gradient 1e-9",
    }
    assert set(close) == {
        "a hr: pulled, gradient 1.5",
        "space hr: gradient 0.6",
        "space hr: pushed, gradient 1.5",
    }
    right, up = plain["a hr: pulled, gradient 2"]
    assert right > 0.9 * LONGEST > up == 0
    assert plain["space hr: gradient 0.5"][0] == 0 < plain["space hr: gradient 0.5"][1]
    right, up = close["space hr: gradient 0.6"]
    assert up / right == pytest.approx(4 / 3, rel=0.02)
    left, _ = plain["b hr: pushed, gradient 0.001"]
    assert left == pytest.approx(-_length(1e-3), abs=4)
    assert plain["a lr: pushed, gradient 1e-9"][0] == pytest.approx(-SHORTEST, abs=4)


def _length(norm: float) -> float:
    return SHORTEST + (LONGEST - SHORTEST) * (1 + math.log10(norm / 2) / DECADES)


def test_hollow_marks_have_no_gradient() -> None:
    figures = optimisation_figures(study_of([record("ce-tied", step=step())]), METHODS)
    hollow = [figure.body.count('fill="var(--bg)"') - 1 for figure in figures]  # not the key's
    assert hollow == [0, 2]


def test_the_table_counts_over_seeds() -> None:
    study = study_of([record("ce-tied", s, step=step(p)) for s, p in enumerate([None, [0.0] * 4])])
    table = optimisation_table(study, METHODS)
    assert table is not None
    assert table.rows[0][:5] == [
        "cross-entropy",
        2,
        3,
        mean_interval([3.0, 3.0]),
        mean_interval([1.0, 1.0]),
    ]
    assert table.rows[1][3:] == [
        mean_interval([1.0, 0.0]),
        mean_interval([0.0, 0.0]),
        mean_interval([1.5, 0.0]),
    ]


def test_a_step_that_moves_nothing_can_be_drawn() -> None:
    still = step()
    for loss in still["losses"].values():
        loss |= {"pull": 0.0, "push": [0.0] * 4, "context": [0.0, 0.0], "context_norm": 0.0}
    figures = optimisation_figures(study_of([record("ce-tied", step=still)]), METHODS)
    assert [arrows(figure.svg()) for figure in figures] == [{}, {}]


def test_nothing_without_records() -> None:
    study = study_of([record("ce-tied"), record("margin-1", step=step())])
    assert optimisation_figures(study, METHODS) == []
    assert optimisation_table(study, METHODS) is None
