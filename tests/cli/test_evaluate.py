from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from elbowroom.cli.evaluate import COLUMNS
from elbowroom.cli.main import main
from tests.cli import lab

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _there(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(compared)
    monkeypatch.setenv("ELBOWROOM_CACHE", str(compared / "cache"))


def test_all_runs_of_a_folder_language_by_language(capsys: Capture) -> None:
    assert main(["evaluate", "runs", "--windows", "4", "--temperatures", "4", "--offline"]) == 0
    out, err = capsys.readouterr()
    assert not err
    rows = [re.match(r"run: (\S+)  language: (\w+)  ppl: (\S+)  ", x) for x in out.splitlines()]
    found = {row.groups()[:2]: float(row[3]) for row in rows if row}
    assert len(found) == len(rows) == 16
    for (name, language), ppl in found.items():  # as the run's own record says
        kept = lab.record(Path("runs", name))["languages"][language]["ppl"]
        assert ppl == pytest.approx(kept, abs=1e-4)


def test_one_run_as_json_and_in_a_file(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "new" / "e.json"
    options = ["--windows", "4", "--temperatures", "5", "--json", "--output", str(path)]
    assert main(["evaluate", "runs/ours-i0-d0", *options]) == 0
    out, _ = capsys.readouterr()
    found = json.loads(out)
    assert found == json.loads(path.read_text(encoding="utf-8"))
    (record,) = found["runs"].values()
    assert record["temperatures"] == [0.4, 0.8, 1.0, 1.2, 1.6, 2.0]
    assert record["languages"]["hr"]["tokens"] == 4 * 8
    command = "elbowroom evaluate runs/ours-i0-d0 --windows 4 --temperatures 5"
    assert found["provenance"]["command"] == command


def test_without_windows_all_of_the_held_out_text_counts(capsys: Capture) -> None:
    assert main(["evaluate", "runs/ce-untied-i1-d1", "--temperatures", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"]["ce-untied-i1-d1"]["languages"]["lr"]["tokens"] > 100
    assert found["provenance"]["command"].endswith("i1-d1 --temperatures 2")


def test_a_narrow_terminal_keeps_names_whole(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["evaluate", "runs", "--windows", "4", "--temperatures", "2"]) == 0
    out = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert max(map(len, out.splitlines())) <= 60
    assert "ce-untied-i1-d1 " in out
    assert [name for name in COLUMNS if name in out] == ["ppl", "bits_per_byte"]


def test_runs_without_a_model_are_left_out_or_an_error(tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree("runs/ours-i0-d0", tmp_path / "a")
    shutil.copytree("runs/ours-i0-d0", tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").unlink()
    options = ["--windows", "4", "--temperatures", "2"]
    assert main(["evaluate", str(tmp_path), *options]) == 0
    out, err = capsys.readouterr()
    assert out.count("run: a  ") == 2
    assert "run: b" not in out
    assert err == f"{tmp_path / 'b'}: left out, its training is not over\n"
    line = lab.line_of_error(["evaluate", str(tmp_path / "b"), *options], capsys)
    assert "no whole model there" in line
    assert "--resume" in line


def test_other_texts_than_it_was_trained_on_are_refused(tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree("runs/ours-i0-d0", tmp_path / "runs")
    shutil.copytree("texts", tmp_path / "texts")
    text = Path("texts/en.txt").read_text(encoding="utf-8")
    with contextlib.chdir(tmp_path):
        Path("texts/en.txt").write_text(text[::-1], encoding="utf-8")
        line = lab.line_of_error(["evaluate", "runs"], capsys)
        assert "the texts of 'texts/en.txt?pair=same' have changed since; put back" in line
        record = lab.record(Path("runs"))
        del record["corpus"]  # nobody knows: of an older version
        Path("runs/record.json").write_text(json.dumps(record), encoding="utf-8")
        assert main(["evaluate", "runs", "--windows", "4", "--temperatures", "2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent"], "absent: no runs here; name a folder that elbowroom train or compare made"),
        (["texts"], "texts: no runs here"),
        (["runs", "--windows", "1"], "windows: expected an integer, at least 2, got 1"),
        (["runs", "--temperatures", "1"], "temperatures: expected an integer, at least 2"),
        (["runs", "--output", "texts"], "texts: expected a file to write, got a folder"),
        (["runs", "--training.steps", "5"], "no option '--training.steps'"),
        (["runs", "--device", "tpu"], "--device: expected cpu, cuda or cuda:N"),
        ([], "elbowroom evaluate --help"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str, capsys: Capture) -> None:
    assert words in lab.line_of_error(["evaluate", *arguments], capsys)
