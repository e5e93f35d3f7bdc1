"""The page of a comparison: whole, honest, and it asks nobody for anything."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.report import (
    compare_page,
    compare_report,
    comparison,
    comparison_rows,
    verdict_lines,
)
from elbowroom.report.markup import VOID
from elbowroom.report.origin import configuration_table, origin_section
from elbowroom.report.results import headlines
from elbowroom.report.rows import score_table
from elbowroom.report.scores import SCORES
from tests.report import example

RECORDS, METRICS = example.runs()
REFERENCES = ("ce-tied", "ce-untied")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return example.write(tmp_path_factory.mktemp("report") / "r.html").read_text(encoding="utf-8")


def root(page: str) -> ElementTree.Element:
    """Parse the page as XML, which allows nothing to be left open or unescaped."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def text_of(page: str) -> str:
    return " ".join(" ".join(root(page).itertext()).split())


def record(name: str = "ours", seed: int = 0, **changes: Any) -> dict[str, Any]:
    languages = changes.pop("languages", {"lr": {"ppl": 9.0 + seed}})
    common = {"init_seed": seed, "data_seed": seed, "status": "done", "languages": languages}
    return {"name": name, **common, **changes}


def test_it_is_well_formed_for_both_parsers(page: str) -> None:
    root(page)
    open_tags: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            assert tag in VOID

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Balance().feed(page)
    assert open_tags == []


def test_it_loads_nothing(page: str) -> None:
    addresses = [
        value
        for e in root(page).iter()
        for key, value in e.attrib.items()
        if key.rpartition("}")[2] in ("src", "href", "srcset", "action", "data", "poster")
    ]
    assert addresses
    assert all(a.startswith(("#", "data:")) for a in addresses)
    assert "http://" not in page
    assert "https://" not in page
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|import\(|WebSocket", page)
    policy = {e.get("http-equiv"): e.get("content") for e in root(page).iter("meta")}
    assert (policy["Content-Security-Policy"] or "").startswith("default-src 'none';")


def test_names_are_unique_and_links_lead_somewhere(page: str) -> None:
    ids = [e.get("id") for e in root(page).iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    links = {e.get("href") or "" for e in root(page).iter("a")}
    assert all(a[1:] in ids for a in links if a.startswith("#"))
    for e in root(page).iter():
        assert set((e.get("aria-labelledby") or "").split()) <= set(ids)


def test_the_verdict_comes_first_and_failures_are_shown(page: str) -> None:
    headings = [e.text for e in root(page).iter("h2")]
    assert headings[0] == "Verdict"
    assert headings[-1] == "Failed runs"
    text = text_of(page)
    assert "1 of 12 runs did not finish" in text
    assert "the loss was <NaN> at step 3100" in text
    assert "Holm’s correction for the 6 comparisons" in text
    assert "With so few seeds a rare outcome may not have shown yet." in text
    assert {"maps", "kept", "frequency", "temperature", "curves"} <= {
        e.get("id") for e in root(page).iter("section")
    }


def test_every_seed_is_drawn(page: str) -> None:
    strips = [e.get("aria-label") or "" for e in root(page).iter("svg")]
    found = [label for label in strips if label.startswith("Each seed: ce-tied")]
    assert len(found) == 2
    assert all(label.count("seed ") >= 4 for label in found)


def test_thick_lines_are_means_and_thin_ones_all_runs(page: str) -> None:
    first = next(e for e in root(page).iter("svg") if e.get("data-hover"))
    kinds = [(p.get("class") or "").split()[0] for p in first.iter("path")]
    assert kinds == ["thin"] * 12 + ["thick"] * 3


def test_hostile_names_are_text() -> None:
    evil = '<script>alert("1")</script>&\u202e\x00'
    records = [
        record(evil, seed, config={evil: evil}, reason=evil, status=evil if seed == 2 else "done")
        for seed in range(3)
    ]
    records += [record("b", seed, languages={evil: {"ppl": 3.0}}) for seed in range(3)]
    page = compare_page(comparison(records), title=evil, command=evil)
    scripts = list(root(page).iter("script"))
    assert len(scripts) == 1
    assert "alert(" not in (scripts[0].text or "")


def test_little_data_makes_a_page_too() -> None:
    for records in (
        [record()],
        [record("a"), record("b")],
        [record("a", status="killed"), record("b", status="killed", languages={})],
        [record("a", languages={"lr": {"ppl": None}}), record("b", 1)],
    ):
        page = compare_page(comparison(records))
        assert "Verdict" in text_of(page)
    assert "nothing to compare" in text_of(compare_page(comparison([record()])))
    assert "None: all 1 runs finished" in text_of(compare_page(comparison([record()])))
    assert "no finished run" in text_of(compare_page(comparison([record(status="killed")])))


def test_one_seed_is_never_a_claim() -> None:
    runs = comparison([record("a"), record("b", languages={"lr": {"ppl": 1.0}})])
    assert [v.outcome for v in runs.verdicts.values()] == ["undecided"]
    assert verdict_lines(runs)[0].startswith("lr: b against a: undecided: one seed")


def test_pairs_use_shared_seeds_only() -> None:
    runs = comparison(RECORDS, references=REFERENCES)
    assert runs.methods == ("ce-tied", "ce-untied", "ours")
    found = runs.verdicts["lr", "ours", "ce-untied"]
    assert found.difference is not None
    assert found.difference.n == 3
    assert runs.pairs("hr") == [
        ("hr", "ce-untied", "ce-tied"),
        ("hr", "ours", "ce-tied"),
        ("hr", "ours", "ce-untied"),
    ]
    assert [run.name for run in runs.failures] == ["ce-untied"]


def test_the_reference_comes_first() -> None:
    runs = comparison(RECORDS, references=("ours",))
    assert runs.methods == ("ours", "ce-tied", "ce-untied")
    assert ("hr", "ours", "ours") not in runs.verdicts


def test_terminal_rows() -> None:
    heading, *rows = comparison_rows(RECORDS)
    assert heading == [
        *("language", "method", "PPL", "by seed", "PPL, fitted T", "accuracy", "MRR"),
        *("bits/byte", "difference", "verdict"),
    ]
    assert [row[:2] for row in rows[:4]] == [
        ["hr", "ce-tied"],
        ["hr", "ce-untied"],
        ["hr", "ours"],
        ["lr", "ce-tied"],
    ]
    assert rows[0][-2:] == ["–", "reference"]
    assert rows[2][-1] == "better"
    assert len(rows[0][3].split()) == 4
    many = [record(n, s) for n in "ab" for s in range(6)]
    assert comparison_rows(many)[1][3] == "9.00 to 14.00, 6 seeds"
    assert comparison_rows([record(status="killed")])[1][2:] == ["–", "–", "–", "reference"]


def test_another_score_can_be_judged() -> None:
    runs = comparison(RECORDS, score="accuracy")
    assert runs.verdicts["hr", "ours", "ce-tied"].outcome == "better"
    table = score_table(runs, "hr", SCORES["ppl"])
    assert table.rows[2][1] == 4
    assert comparison_rows(RECORDS, score="accuracy")[0][2] == "accuracy"


def test_headlines_count_where_names_are_many() -> None:
    languages = {f"l{i}": {"ppl": 1.0} for i in range(6)}
    runs = comparison([record(n, languages=languages) for n in "ab"])
    assert headlines(runs) == ["b against a: undecided in 6 of 6 languages"]
    few = comparison([record(n, languages=dict(list(languages.items())[:3])) for n in "ab"])
    assert headlines(few) == ["b against a: undecided in l0, l1 and l2"]


def test_settings_that_differ_are_listed() -> None:
    table = configuration_table(comparison(RECORDS))
    assert [row[0] for row in table.rows] == ["loss.end", "loss.kind", "loss.start", "model.tied"]
    assert table.rows[0][1:] == [None, None, "16"]
    odd = {"a": [1, 2], "b": None, "c": math.inf, "d": 0.001}
    runs = comparison([record("a", config=odd), record("b"), record("b", 1, config={"d": 1})])
    assert configuration_table(runs).text()[1:] == [
        ["a", "[1, 2]", "–"],
        ["b", "none", "–"],
        ["c", "inf", "–"],
        ["d", "0.001", "1"],
    ]


def test_origin_says_what_is_known() -> None:
    origin = {
        "commit": {"id": "abc", "modified": True},
        "hardware": {"cpu": "x", "gpus": ["A", "B"]},
        "versions": {},
    }
    runs = comparison([record("a", provenance=origin), record("b", 1, provenance="damaged")])
    text = text_of(f"<!DOCTYPE html>\n<html>{origin_section(runs, None)}</html>")
    assert "abc with changes" in text
    assert "gpus A and B" in text
    assert "a: seed 0" in text
    assert "versions" not in text
    both = comparison([record("a", 0, data_seed=5, tokens_per_second=5.0, wall_seconds=None)])
    text = text_of(f"<html>{origin_section(both, 'make it')}</html>")
    assert "seeds 0/5, the same for every method" in text
    assert "a: 5 tokens/s" in text
    assert "make it" in text


def test_failed_runs_say_where_they_stopped() -> None:
    runs = comparison(
        [
            record("a", status="nan", error="NaN"),
            record("b", 1, status="killed", steps=7),
            record("c", 2, status="killed"),
        ],
        [[{"step": 5}, {"step": None}], [], []],
    )
    page = text_of(compare_page(runs))
    assert "a seed 0 nan 5 NaN" in page
    assert "b seed 1 killed 7 –" in page
    assert "c seed 2 killed – –" in page


def test_curves_survive_odd_lines() -> None:
    odd = [
        {"step": 1, "eval": {"lr": {"nll": None}}},
        {"step": 1, "eval": {"lr": 3}},
        {"step": 2, "eval": {"lr": {"nll": 1e9}}},
        {"step": None, "kept": 0.5},
        {"kept": "half"},
    ]
    languages = {"lr": {"ppl": 3.0, "nll_by_temperature": [9.0, 1.0, None, 1e9], "bins": [{}, {}]}}
    records = [record("a", languages=languages, temperatures=[0.5, 1.0, 1.5, 2.0])]
    page = compare_page(comparison(records, [odd]))
    anchors = {e.get("id") for e in root(page).iter("section")}
    assert "curves" not in anchors
    assert "kept" not in anchors
    assert "frequency" not in anchors
    assert "temperature" in anchors


def test_bins_of_unequal_number() -> None:
    def bins(n: int) -> dict[str, Any]:
        return {"lr": {"ppl": 3.0, "bins": [{"nll": 1.0}] * n}}

    records = [record("a", languages=bins(3)), record("a", 1, languages=bins(2))]
    records.append(record("b", languages=bins(1)))
    page = compare_page(comparison(records))
    assert "frequency" in {e.get("id") for e in root(page).iter("section")}


@pytest.mark.parametrize(
    ("records", "more", "error", "message"),
    [
        ([], {}, ArgumentValueError, "at least one record"),
        (["a"], {}, ArgumentTypeError, "dictionaries"),
        ([{"name": "a"}], {}, ArgumentValueError, "the key 'init_seed'"),
        ([record(), record()], {}, ArgumentValueError, "two of 'ours' with seed 0"),
        ([record()], {"references": ("x",)}, ArgumentValueError, "names among ours"),
        ([record()], {"score": "x"}, ArgumentValueError, "score: expected 'ppl'"),
        ([record()], {"metrics": [[], []]}, ArgumentValueError, "metrics: expected 1"),
        ([record(seed=0) | {"init_seed": "0"}], {}, ArgumentTypeError, "init_seed"),
    ],
)
def test_bad_records(
    records: Any, more: dict[str, Any], error: type, message: str, unchecked: None, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        compare_report(records, out=tmp_path / "r.html", **more)
    assert list(tmp_path.iterdir()) == []
