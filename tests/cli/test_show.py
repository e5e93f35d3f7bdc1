from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from elbowroom.cli import show
from elbowroom.errors import FileError

ROWS = [["model", "margin"], ["a", "1.00"], ["b", "12.00"]]


def terminal(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True)


def delivered(output: show.Output, record: dict[str, int], command: list[str]) -> None:
    output.begin()
    output.deliver(record, ROWS, command=command)


def test_plain_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    delivered(show.Output(), {}, ["elbowroom"])
    assert capsys.readouterr().out == "model: a  margin: 1.00\nmodel: b  margin: 12.00\n"


def test_a_table_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, "stdout")
    delivered(show.Output(), {}, ["elbowroom"])
    lines = capsys.readouterr().out.splitlines()
    assert any("──" in line for line in lines)
    assert len({line.rstrip()[-2:] for line in lines if "00" in line}) == 1  # aligned right


def test_json_even_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, "stdout")
    delivered(show.Output(json=True), {"x": 1}, ["elbowroom", "a b"])
    out = capsys.readouterr().out
    assert out.startswith('{\n  "x": 1,')
    assert "elbowroom 'a b'" in out


def test_progress_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with show.progress("work") as on_block:
        on_block(1, 2)
    out, err = capsys.readouterr()
    assert out + err == ""


def test_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, "stderr")
    with show.progress("work") as on_block:
        on_block(1, 2)
        on_block(2, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "work" in err


def test_begin_refuses_what_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show.Output().begin()
    show.Output(output=tmp_path / "new" / "x.json").begin()
    assert not (tmp_path / "new").exists()
    with pytest.raises(FileError, match="got a folder"):
        show.Output(output=tmp_path).begin()
    monkeypatch.setattr(show.os, "access", lambda *_: False)
    with pytest.raises(FileError, match="no file can be made"):
        show.Output(output=tmp_path / "x.json").begin()


def test_the_origin_is_noted_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json"
    output = show.Output(output=path)
    monkeypatch.setattr(show, "provenance", lambda command: {"commit": "before"})
    output.begin()
    monkeypatch.setattr(show, "provenance", lambda command: {"commit": "after"})
    output.deliver({}, ROWS, command=["elbowroom"], seed=4)
    got = json.loads(path.read_text())["provenance"]
    assert got == {"commit": "before", "command": "elbowroom", "seed": 4}


def drawn(capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (60, ["run", "one", "two", "three"]),
        (30, ["run", "one", "three"]),
        (25, ["run", "three"]),
        (9, ["run", "three"]),
    ],
)
def test_a_narrow_terminal_does_without_spare_columns(
    columns: int,
    kept: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal(monkeypatch, "stdout")
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [["run", "one", "two", "three"], ["a", "1.00000", "2.00000", "3.00000"]]
    show.present(rows, ["two", "one"])
    if columns > 9:
        assert drawn(capsys)[0].split() == kept
    else:
        assert "two" not in drawn(capsys)[0]


def test_brackets_in_a_name_are_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, "stdout")
    show.present([["[b]run", "[i]word"], ["[red]x", "[/red]"]])
    heading, _, row = drawn(capsys)
    assert heading.split() == ["[b]run", "[i]word"]
    assert row.split() == ["[red]x", "[/red]"]


def test_words_stand_on_the_left_and_numbers_on_the_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, "stdout")
    show.present([["a", "method", "number"], ["x", "ce", "-1"], ["y", "ours", ""]])
    heading, _, first, _ = drawn(capsys)
    assert first.index("ce") == heading.index("method")
    assert first.index("-1") + 2 == heading.index("number") + 6


def test_sentences_break_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["one two three four", "five"]
    show.say(lines)
    assert capsys.readouterr().out.splitlines() == lines
    terminal(monkeypatch, "stdout")
    monkeypatch.setenv("COLUMNS", "10")
    show.say(lines)
    assert capsys.readouterr().out.splitlines() == ["one two", "  three", "  four", "five"]


def test_quiet_progress_is_silent_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(monkeypatch, "stderr")
    with show.progress("work", quiet=True) as on_block:
        on_block(1, 2)
    assert capsys.readouterr() == ("", "")
