from __future__ import annotations

from pathlib import Path

from elbowroom.report.paper import Extras, write_reproduction
from elbowroom.report.paper.beside import beside_table
from elbowroom.report.paper.verdict import verdict_lines
from elbowroom.study import mean_interval
from elbowroom.study.paper import Study, base_of, parts_of, study_of
from tests.study.paper.made_up import record

METHODS = ("ce-tied", "margin-1", "monolingual")


def study(protocol: str, methods: tuple[str, ...] = METHODS) -> Study:
    base = base_of(protocol=protocol)
    return study_of([record(method, seed, base) for method in methods for seed in range(3)])


def test_rows_that_both_have_with_print() -> None:
    paper, clean = study("paper"), study("clean", ("margin-1", "margin-2", "monolingual"))
    table = beside_table(paper, clean, parts_of())
    assert table is not None
    assert [column.label for column in table.columns[2:5]] == [
        "PPL: print",
        "PPL: ours, paper",
        "PPL: ours, clean",
    ]
    found = {tuple(row[:2]): row[2:5] for row in table.rows}
    assert list(found) == [
        ("Monolingual", "lr"),
        ("Margin 1", "hr"),
        ("Margin 1", "lr"),
        ("Margin 1 + SE", "hr"),
        ("Margin 1 + SE", "lr"),
    ]
    means = [
        mean_interval(list(s.values("margin-1", "lr", "ppl").values())) for s in (paper, clean)
    ]
    assert found["Margin 1", "lr"] == ["17.30", *means]
    other = beside_table(clean, paper, parts_of())
    assert other is not None
    assert other.csv() == table.csv()
    assert beside_table(paper, None, parts_of()) is None
    assert beside_table(paper, study("clean", ("margin-2",)), parts_of()) is None


def test_a_report_says_by_which_protocol_and_judges_only_what_it_may(tmp_path: Path) -> None:
    parts = parts_of(["table-metrics", "table-protocols"])
    pages = {}
    for name in ("paper", "clean", "last"):
        own, other = study(name), study("clean" if name == "paper" else "paper")
        folder = tmp_path / name
        write_reproduction(own, parts, folder, str, Extras(beside=other))
        pages[name] = (folder / "report.html").read_text(encoding="utf-8")
        assert f"Protocol: {name}." in pages[name]
        assert own.protocol.note.replace("'", "&#x27;") in pages[name]
        judged = any("printed numbers lie" in line for line in verdict_lines(own, parts))
        assert judged == (name != "clean")
        assert ("✓ in" in pages[name]) == (name != "clean")
        assert (folder / "tables" / "table-protocols.csv").exists()
    assert "○" in pages["clean"]  # the print is shown
    assert "Beside: The clean protocol: each language reads" in pages["paper"]
    lines = verdict_lines(study("last"), parts)
    assert lines[0].startswith("These runs follow neither protocol: both languages read the same")
