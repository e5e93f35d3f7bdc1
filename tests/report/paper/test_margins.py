from __future__ import annotations

from xml.etree import ElementTree

from elbowroom.report.paper.margins import margin_figures
from elbowroom.study.paper import METHODS, study_of
from elbowroom.study.paper.layout import WIDTHS
from tests.study.paper.made_up import record, records


def test_widths_are_methods_in_order() -> None:
    names = [method for group in WIDTHS.values() for method in group.values()]
    assert len(set(names)) == len(names) == 12
    for group, methods in WIDTHS.items():
        for label, method in methods.items():
            loss = dict(METHODS[method].change.get("loss", {}))
            start = loss.get("margin", {}).get("start", float("inf"))
            assert start == (float("inf") if label == "∞" else float(label))
            assert ("norms" in loss.get("margin", {})) == (group == "alpha")
        ends = [float(label.replace("∞", "inf")) for label in methods]
        assert ends == sorted(ends)


def test_panels_show_every_seed_and_temperature_one_beside_the_fitted() -> None:
    study = study_of(records(("margin-0", "margin-1", "margin-2", "ce-tied", "alpha-.25"), 3))
    figures = margin_figures(study)
    assert [figure.name for figure in figures] == [
        f"margins-{panel}-{language}" for panel in ("ppl", "accuracy") for language in ("hr", "lr")
    ]
    svg = figures[1].svg()
    tree = ElementTree.fromstring(svg)
    assert svg.count('class="dot"') == 2 * 5 * 3
    assert "alpha .25, temperature 1, seed 2: " in svg
    assert "fitted temperature" in svg
    paths = [p.get("d") or "" for p in tree.iter("path") if p.get("class") == "thick"]
    assert paths[0].count("M") == 3  # 0; 1 and 2; infinite: between them there are no runs
    assert svg.count('class="band"') == svg.count('class="whisker"') == 2 * 5


def test_nothing_without_runs_and_a_single_seed_has_no_band() -> None:
    assert margin_figures(study_of([record("cwt")])) == []
    (first, *_) = margin_figures(study_of([record("margin-1")]))
    assert 'class="band"' not in first.svg()
    assert 'class="whisker"' in first.svg()
