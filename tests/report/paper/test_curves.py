from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from elbowroom.report.paper.curves import discovery_figures, discovery_table, kept_figures
from elbowroom.study import wilson_interval
from elbowroom.study.paper import study_of
from tests.study.paper.made_up import record

METHODS = ("ce-tied", "margin-1")


def followed(
    seed: int, values: list[float], method: str = "margin-1", **more: Any
) -> dict[str, Any]:
    series = {"steps": [10, 20], "values": values}
    return record(method, seed, curves={"translation": series, "kept": series}, **more)


def test_every_seed_is_a_thin_line_to_one_scale() -> None:
    ends = {"translation": 0.8}, {"translation": 0.2}
    study = study_of([followed(i, [0.1 * i, e], **ends[i]) for i, e in enumerate((0.8, 0.2))])
    (figure,) = discovery_figures(study, METHODS)
    assert figure.note == "Discovered at the end: margin-1 1 of 2."
    svg = figure.svg()
    ElementTree.fromstring(svg)
    assert svg.count('class="thin"') == 2
    assert svg.count('class="guide"') == 1  # a third
    assert ">1.00</text>" in svg
    (line,) = figure.hover
    assert (line["label"], line["index"]) == ("margin-1", None)  # no filter hides it
    assert [point[2:] for point in line["points"]] == [["step 10", "0.05"], ["step 20", "0.5"]]
    assert discovery_figures(study, METHODS[:1]) == []


def test_discoveries_are_counted_with_wilsons_interval() -> None:
    scores = [0.9, 0.1, 0.4]
    listed = [record("margin-1", seed, translation=score) for seed, score in enumerate(scores)]
    listed[0]["languages"]["lr"]["best_ppl"] = 6.0
    listed[1]["languages"]["lr"]["best_ppl"] = 7.5
    del listed[2]["languages"]["lr"]["best_ppl"]
    table = discovery_table(study_of(listed), METHODS)
    assert table is not None
    assert table.rows == [["margin-1", "2 of 3", wilson_interval(2, 3), "1 of 2"]]
    assert discovery_table(study_of([record("ce-tied")]), METHODS) is None


def test_what_is_kept_has_a_mean_and_a_band() -> None:
    study = study_of(
        [followed(0, [0.5, 0.2]), followed(1, [0.6, 0.2]), followed(2, [1.0, 0.9], "ce-tied")]
    )
    (figure,) = kept_figures(study, METHODS)
    assert figure.svg().count('class="band"') == 1  # a single seed has none
    assert figure.svg().count('class="thick"') == 2 + 2  # the key's too
    assert [point[3] for point in figure.hover[1]["points"]] == ["0.55", "0.2"]
    assert kept_figures(study_of([record("margin-1")]), METHODS) == []
