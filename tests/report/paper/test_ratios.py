from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from elbowroom.report.paper.ratios import gradient_figures, gradient_table
from elbowroom.study import mean_interval
from elbowroom.study.paper import study_of
from elbowroom.study.paper.layout import MEASURED
from tests.study.paper.made_up import record


def measured(method: str, seed: int, values: list[float | None]) -> dict[str, Any]:
    own = {"tokens": list(" e$x"), "averages": values, "dropped": values, "replaced": values}
    found = {"every": 10, "steps": 801, "languages": {"lr": own}}
    return record(method, seed, gradients=found)


BASELINE = [[2.0, 0.8, 0.5, 0.0], [2.2, 0.9, 0.4, 0.0]]
OURS = [[3.0, 1.2, 0.75, None], [3.3, 1.1, 0.6, 0.1]]


def study(ours: list[list[float | None]]) -> Any:
    first, second = MEASURED
    listed = [measured(first, seed, values) for seed, values in enumerate(BASELINE)]
    return study_of([*listed, *(measured(second, s, values) for s, values in enumerate(ours))])


def test_each_ratio_has_a_figure_with_bands_and_how_often_it_was_measured() -> None:
    figures = gradient_figures(study(OURS), MEASURED)
    assert [figure.name for figure in figures] == [
        f"gradients-{kind}-lr" for kind in ("averages", "dropped", "replaced")
    ]
    svg = figures[0].svg()
    ElementTree.fromstring(svg)
    assert svg.count('class="band"') == 2
    assert "(measured at 801 steps: 1 in 10)" in svg
    first, second = figures[0].hover
    assert first["label"] == "Baseline"
    assert [point[2:] for point in first["points"]] == [
        ["rank 1: ␣", "2.1"],
        ["rank 2: e", "0.85"],
        ["rank 3: $", "0.45"],
    ]
    assert second["points"][3][2:] == ["rank 4: x", "0.1"]


def test_the_table_counts_tokens_below_1_and_compares_shared_seeds() -> None:
    table = gradient_table(study(OURS), MEASURED)
    assert table is not None
    language, ratio, tokens, below, printed, ours, change, paper = table.rows[0]
    assert (language, ratio, tokens, printed, paper) == ("lr", "ratio of averages", 4, "14", "+12%")
    assert below == mean_interval([3.0, 3.0])
    assert ours == mean_interval([1.0, 2.0])
    each = [50.0, 100 * (0.5 + 1.1 / 0.9 - 1 + 0.5) / 3]
    assert getattr(change, "estimate", None) == pytest.approx(sum(each) / 2)
    assert "| lr | ratio of averages | 4 | 3.0" in table.markdown()


def test_nothing_without_measurements() -> None:
    plain = study_of([record("ce-tied"), record(MEASURED[0])])
    assert gradient_figures(plain, MEASURED) == []
    assert gradient_table(plain, MEASURED) is None
    alone = study([])
    assert gradient_table(alone, MEASURED) is None
    assert len(gradient_figures(alone, MEASURED)) == 3
