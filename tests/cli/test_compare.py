from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from elbowroom.cli import compare as module
from elbowroom.cli import train as training
from elbowroom.cli.main import main
from elbowroom.lab.distributed import Ranks
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.trainer import Event
from elbowroom.study.compare import METHODS, Size
from tests.cli.lab import compare, line_of_error, record, weights

Capture = pytest.CaptureFixture[str]


def test_table_verdicts_report_and_summary(home: Path, capsys: Capture) -> None:
    assert compare("texts", "--output", "runs") == 0
    out, err = capsys.readouterr()
    table = [line for line in out.splitlines() if line.startswith("language: ")]
    assert [re.findall(r": (\S+)  ", line)[:2] for line in table] == [
        [language, method] for language in ("de", "en") for method in METHODS
    ]
    assert all(re.search(r"bits/byte: \d\.\d{4}  by seed: \S+ \S+  PPL: ", x) for x in table)
    assert sum("verdict: reference" in line for line in table) == 2
    for line in ("de: ours against ce-tied: ", "en: ours-untied against ce-untied: "):
        assert out.count(line) == 1
    assert re.search(r"\nreport: runs/report.html   \(\d+:\d\d\)\n$", out)
    assert "training 4 runs (ours, ce-tied)" in err
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert "elbowroom compare texts --seeds 2 --layers 1" in page
    assert page.count('id="map-') >= 3
    summary = json.loads(Path("runs/compare.json").read_text(encoding="utf-8"))
    assert summary["score"] == "bits_per_byte"
    assert len(summary["table"]) == 9
    assert all(line in out for line in summary["verdicts"])


def test_again_with_resume_trains_nothing(compared: Path, capsys: Capture) -> None:
    with contextlib.chdir(compared):
        before = {p: p.stat().st_mtime_ns for p in Path("runs").glob("*/*")}
        page = Path("runs/report.html").read_bytes()
        arguments = ("texts/en.txt?pair=same", "--output", "runs")
        assert compare(*arguments, "--resume") == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert "lr: ours against ce-untied: " in out
        assert before == {p: p.stat().st_mtime_ns for p in Path("runs").glob("*/*")}
        assert page == Path("runs/report.html").read_bytes()
        assert compare(*arguments) == 2
        assert "got ce-tied-i0-d0; go on with --resume" in capsys.readouterr().err
        assert compare(*arguments, "--resume", "--lr", "0.1") == 2
        assert "optimizer.lr 0.1" in capsys.readouterr().err


def test_a_simulated_pair_is_judged_by_perplexity_and_protected(compared: Path) -> None:
    summary = json.loads((compared / "runs/compare.json").read_text(encoding="utf-8"))
    assert summary["provenance"]["hardware"]["cores"] >= 1
    assert summary["score"] == "ppl"
    ours = RunFolder(compared / "runs/ours-i0-d0").config()
    assert ours.data.source == "texts/en.txt?pair=same"
    assert ours.zero_rows.languages == ours.loss.protect.languages == ("lr",)
    assert not RunFolder(compared / "runs/ce-tied-i0-d0").config().zero_rows


def test_one_seed_decides_nothing_and_one_language_will_do(home: Path, capsys: Capture) -> None:
    arguments = ("--output", "runs", "--quiet", "--seeds", "1", "--score", "accuracy")
    assert compare("texts/en.txt", *arguments) == 0
    out, err = capsys.readouterr()
    assert not err
    assert out.count("language: en  method: ") == 4
    assert "language: en  method: ours  accuracy: " in out
    assert out.count("undecided: one seed does not show the spread") == 5
    assert "[" not in out  # no interval


def test_fields_go_over_the_options(home: Path) -> None:
    options = ("--output", "runs", "--quiet", "--seeds", "1", "--offline")
    given = ("--training.log_every=2", "--data.validation", "0.3", "--optimizer.weight_decay=0")
    assert compare("texts", *options, *given) == 0
    config = RunFolder("runs/ours-i0-d0").config()
    assert (config.training.log_every, config.training.steps) == (2, 6)
    assert (config.data.validation, config.data.tokenizer) == (0.3, "characters")
    assert config.optimizer.weight_decay == 0.0
    found = record(Path("runs/ours-i0-d0"))
    command = found["provenance"]["command"]
    assert command.endswith(
        "--tokenizer characters --training.log_every=2 --data.validation=0.3"
        " --optimizer.weight_decay=0"
    )
    held_out = sum(x["tokens"] for x in found["languages"].values())
    assert main(["evaluate", "runs/ours-i0-d0", "--output", "all.json"]) == 0
    whole = json.loads(Path("all.json").read_text(encoding="utf-8"))["runs"]["ours-i0-d0"]
    assert sum(x["tokens"] for x in whole["languages"].values()) > 2 * held_out


def test_ctrl_c_goes_on_with_resume(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed: list[Event] = []

    def press(event: Event) -> None:
        if event.kind == "log" and event.population == 2 and not pressed:
            pressed.append(event)
            os.kill(os.getpid(), signal.SIGINT)

    @contextlib.contextmanager
    def watching(quiet: bool) -> Iterator[object]:
        yield press

    with monkeypatch.context() as patched:
        patched.setattr(training, "watching", watching)
        assert compare("texts", "--output", "runs") == 130
    out, err = capsys.readouterr()
    assert not out
    assert err == "elbowroom: runs: stopped; what was done is saved; go on with --resume\n"
    done = weights(Path("runs"))
    assert set(done) == {f"{name}-i{s}-d{s}" for name in ("ce-tied", "ours") for s in (0, 1)}
    assert not Path("runs/report.html").exists()
    assert compare("texts", "--output", "runs", "--resume", "--quiet") == 0
    assert done.items() < weights(Path("runs")).items()
    assert compare("texts", "--output", "whole", "--quiet") == 0
    assert weights(Path("runs")) == weights(Path("whole"))


def test_a_time_limit_writes_no_report(home: Path, capsys: Capture) -> None:
    assert compare("texts", "--output", "runs", "--max-minutes", "0") == 0
    out, err = capsys.readouterr()
    assert not out
    assert err == "runs: stopped; what was done is saved; go on with --resume\n"
    assert not Path("runs/compare.json").exists()


def test_runs_that_went_astray_are_named(home: Path, capsys: Capture) -> None:
    assert compare("texts", "--output", "runs", "--quiet", "--seeds", "1", "--lr", "1e29") == 0
    out, err = capsys.readouterr()
    assert "undecided: no seed finished with both methods" in out
    assert "runs/ours-i0-d0 failed and counts nowhere: the loss or its gradient was not" in err


def test_a_narrow_terminal_keeps_the_judged_score(
    compared: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True)
    for columns in ("80", "150"):
        monkeypatch.setenv("COLUMNS", columns)
        with contextlib.chdir(compared):
            assert compare("texts/en.txt?pair=same", "--output", "runs", "--resume") == 0
        lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
        assert max(map(len, lines)) <= int(columns)
        heading = next(line for line in lines if "method" in line)
        assert "PPL" in heading
        assert "difference" in heading
        assert ("MRR" in heading) == (columns == "150")


def test_the_defaults_are_a_few_minutes_and_in_the_help(capsys: Capture) -> None:
    assert main(["compare", "--help"]) == 0
    options = capsys.readouterr().out.partition(" options ")[2]
    text = "".join(line.strip("│ ") + " " for line in options.splitlines())
    assert Size().steps == 2200
    for name in module.SIZES:
        after = text.partition(f" --{name} ")[2].partition(" --")[0]
        assert f"(default: {getattr(Size(), name)})" in after, name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent"], "expected a folder or file that exists, or one of shakespeare"),
        (["absent?pair=same"], "expected a folder or file that exists, or one of shakespeare"),
        (["empty"], "empty: no .txt files; put the text of each language into a file"),
        (["short.txt"], "at least 65 tokens for training in 'short'"),
        (["texts", "--step", "5"], "no option or field --step; did you mean --steps?"),
        (["texts", "--seeds", "0"], "--seeds: expected an integer, at least 1, got 0"),
        (["texts", "--steps", "0"], "steps: expected an integer, at least 1, got 0"),
        (["texts", "--lr", "nan"], "lr: expected a finite number"),
        (["texts", "--windows", "1"], "windows: expected an integer, at least 2"),
        (["texts", "--score", "best"], "--score: expected 'auto' or 'ppl' or "),
        (["texts", "--heads", "3"], "model.width: expected a multiple of heads, 3"),
        (["texts", "--training.stps=5"], "did you mean 'steps'?"),
        (["texts", "--data", "5"], "data: expected a mapping, got 5"),
        (["texts", "--data.source", "x"], "--data.source: the texts are named in the place of"),
        (["texts", "--tokenizer", "letters"], "tokenizer: expected 'characters', 'bytes', 'bpe'"),
        (["texts", "more"], "unexpected 'more'; see elbowroom compare --help"),
        (["texts", "--track", "x,wandb"], "--track: expected 'tensorboard' or 'wandb', got 'x'"),
        (["--training.precision"], "--training.precision: expected a value after it"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, home: Path, capsys: Capture
) -> None:
    Path("empty").mkdir()
    Path("short.txt").write_text("Too short.", encoding="utf-8")
    assert words in line_of_error(["compare", *arguments, "--output", "runs"], capsys)
    assert not Path("runs").exists()


def test_a_tokenizer_that_is_not_installed_is_missed_before_the_work(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = line_of_error(["compare", "absent", "--tokenizer", "bpe"], capsys)
    assert "pip install 'elbowroom[hf]'" in line


def test_of_several_processes_only_the_first_reports(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def second(device: torch.device) -> Iterator[Ranks]:
        yield Ranks(rank=1)

    monkeypatch.setattr(module, "joined", second)
    assert compare("texts", "--output", "runs", "--quiet", "--seeds", "1") == 0
    assert capsys.readouterr() == ("", "")
    assert len(weights(Path("runs"))) == 4
    assert not Path("runs/report.html").exists()
    shutil.rmtree("runs")
