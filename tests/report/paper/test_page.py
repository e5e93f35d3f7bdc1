from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from elbowroom.report.paper import Extras, write_reproduction
from elbowroom.report.paper.verdict import verdict_lines
from elbowroom.study.paper import LAST, base_of, parts_of, study_of, tables_of
from elbowroom.study.paper.effective import effective_margins
from tests.study.paper.made_up import record, records

EVIDENCE = Path(__file__).parents[3] / "evidence" / "paper_setting.jsonl"
METHODS = ("ce-tied", "margin-1", "margin-0", "detached-1", "monolingual")


def command(part: str) -> str:
    return f"elbowroom reproduce --only {part}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    effective = effective_margins(vocab_size=64, widths={"gpt2": 16}, sample=8, draws=2)
    failed = record("margin-2", status="failed", reason="the loss was <not> finite")
    study = study_of([*records(METHODS), failed, {**failed, "name": "mine"}])
    extras = Extras(effective=effective, remaining=7)
    write_reproduction(study, parts_of(), path, command, extras)
    return path


def test_the_page_is_whole_and_says_what_remains(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    anchors = [section.get("id") for section in page.iter("section") if section.get("id")]
    assert anchors == ["verdict", *(p.name for p in parts_of()), "origin", "failures"]
    assert "15 finished runs of 5 methods, 1 failed; 7 runs are still to be trained." in text
    assert "Records of mine belong to no row" in text
    assert "the loss was &lt;not&gt; finite" in text
    for part in parts_of():
        assert f"elbowroom reproduce --only {part.name}</code>" in text
    assert not re.search(r"(src|href)=\"(?!#|data:)", text)
    names = re.findall(r' id="([^"]+)"', text)
    assert len(names) == len(set(names))


def test_each_table_and_figure_is_a_file_too(folder: Path) -> None:
    tables = [part.name for part in parts_of() if part.name.startswith("table-")]
    tables += ["table-rivals-tuning", "table-rivals-standing"]
    written = {path.name for path in (folder / "tables").iterdir()}
    # no neighbours in records, nothing tuned, one protocol
    without = {"table-translations", "table-rivals", "table-protocols"}
    assert written == {f"{t}.{s}" for t in tables if t not in without for s in ("md", "tex", "csv")}
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert {"temperature-0", "temperature-1", "distribution-metrics-ppl-lr"} <= figures
    assert "distribution-detached-isotropy-hr" in figures
    for path in (folder / "figures").glob("*.svg"):
        ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF-1.4\n")
    assert "Nothing to show" in (folder / "report.html").read_text(encoding="utf-8")


def test_the_verdict_counts_and_names_what_lies_outside(folder: Path) -> None:
    lines = (folder / "verdict.txt").read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(r"\d+ of \d+ printed numbers lie where one more .*", lines[0])
    assert any(line.startswith("Outside: Margin 1 + SE, hr (") for line in lines)
    assert any(
        line.startswith("- margin 1, tied, against the baseline, lr: better in 3 of 3")
        for line in lines
    )


def test_the_committed_records_make_all_that_they_can(tmp_path: Path) -> None:
    """Of the paper's setting, but for which weights are judged and how temperatures are fitted."""
    lines = EVIDENCE.read_text(encoding="utf-8").splitlines()
    study = study_of(map(json.loads, lines))
    assert (study.differences, study.protocol) == ({}, LAST)
    assert {"ce-tied", "ce-untied", "margin-1"} <= {r["name"] for r in study.records}
    text = write_reproduction(study, parts_of(), tmp_path, command, Extras()).read_text("utf-8")
    assert "✓ in" in text
    assert "Protocol: last." in text
    assert verdict_lines(study, parts_of())[1].startswith("61 of 70 printed numbers lie")
    written = {path.name for path in (tmp_path / "tables").iterdir()}
    wanted = [*(part.name for part in tables_of(())), "table-hyperparameters"]
    assert {f"{name}.{end}" for name in wanted for end in ("md", "tex", "csv")} <= written
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert {"temperature-0", "temperature-1", "distribution-untied-mrr-lr"} <= figures


def test_records_without_series_have_a_table_and_say_what_is_missing(tmp_path: Path) -> None:
    study = study_of(map(json.loads, EVIDENCE.read_text(encoding="utf-8").splitlines()))
    parts = parts_of(["figure-discovery", "figure-kept", "figure-optimisation"])
    page = write_reproduction(study, parts, tmp_path, command, Extras())
    text = page.read_text(encoding="utf-8")
    assert (text.count("Nothing to draw: "), text.count("Nothing to show: ")) == (1, 2)
    assert not (tmp_path / "figures").exists()
    table = (tmp_path / "tables" / "figure-discovery.md").read_text(encoding="utf-8")
    assert "| twins-.3-16 | 10 of 10 | 1.00 [0.72, 1.00] | 10 of 10 |" in table


def test_quick_runs_are_marked_and_not_judged(tmp_path: Path) -> None:
    base = base_of(quick=True)
    study = study_of([record("ce-tied", seed, base) for seed in range(2)])
    parts = parts_of(["table-metrics"])
    write_reproduction(study, parts, tmp_path, command, Extras())
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "not in the paper's setting" in text.replace("&#x27;", "'")
    assert "training.steps 450" in text
    assert "✓ in" not in text
    assert "✗ out" not in text
    assert not any("printed numbers" in line for line in verdict_lines(study, parts))


def test_a_report_of_nothing_says_so(tmp_path: Path) -> None:
    write_reproduction(study_of([]), parts_of(["table-untied"]), tmp_path, command, Extras())
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Nothing is judged against print yet" in text
    assert "0 finished runs" in text
    one = study_of([record("ce-untied")])
    assert "Nothing is judged" in verdict_lines(one, parts_of(["table-untied"]))[0]
