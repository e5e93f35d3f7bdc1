from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from elbowroom.cli import train as module
from elbowroom.cli.main import main
from elbowroom.errors import ArgumentValueError, MissingExtraError
from elbowroom.lab.config import RunConfig, as_plain, plan, run_config
from elbowroom.lab.distributed import Ranks
from elbowroom.lab.trainer import Event
from tests.cli.lab import PLAN, TINY, line_of_error, record, train, weights
from tests.lab import stand_ins

Capture = pytest.CaptureFixture[str]


def dump(*arguments: str, capsys: Capture) -> str:
    capsys.readouterr()
    assert main(["train", *arguments, "--dump-config"]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def test_without_anything_it_dumps_the_defaults(capsys: Capture) -> None:
    assert yaml.safe_load(dump(capsys=capsys)) == as_plain(RunConfig())


def test_flags_go_over_the_file_and_the_file_over_the_defaults(home: Path, capsys: Capture) -> None:
    text = "training: {steps: 7, batch: 3}\nloss: {margin: 2}\nname: mine\n"
    Path("c.yaml").write_text(text, encoding="utf-8")
    flags = ("--training.steps", "9", "--loss.margin.end_top_p=0.9", "--model.tied", "false")
    for arguments in (("c.yaml", *flags), (*flags, "c.yaml")):
        found = run_config(yaml.safe_load(dump(*arguments, capsys=capsys)))
        assert (found.training.steps, found.training.batch) == (9, 3)
        assert found.training.log_every == RunConfig().training.log_every
        assert (found.name, found.model.tied) == ("mine", False)
        assert (found.loss.margin.start, found.loss.margin.end_top_p) == (2.0, 0.9)


def test_a_dumped_configuration_trains_the_same_run(home: Path, capsys: Capture) -> None:
    text = dump(*TINY, "--training.steps", "2", "--loss.margin.start", "1e-1", capsys=capsys)
    Path("dumped.yaml").write_text(text, encoding="utf-8")
    assert dump("dumped.yaml", capsys=capsys) == text
    assert train("--loss.margin.start", "1e-1", "--output", "a", "--quiet", steps=2) == 0
    assert main(["train", "dumped.yaml", "--output", "b", "--quiet"]) == 0
    a, b = (Path(x, "run-i0-d0", "config.yaml").read_text(encoding="utf-8") for x in "ab")
    assert a == b
    assert weights(Path("a")) == weights(Path("b"))


def test_a_dumped_plan_is_the_same_plan(home: Path, capsys: Capture) -> None:
    runs = "  - {name: focal, loss: {name: focal, options: {gamma: 1}}}\n"
    Path("plan.yaml").write_text(PLAN + runs, encoding="utf-8")
    text = dump("plan.yaml", "--training.steps", "5", capsys=capsys)
    values = yaml.safe_load(PLAN + runs)
    values["base"]["training"]["steps"] = 5
    assert plan(yaml.safe_load(text)) == plan(values)
    assert text.count("steps: 5") == 1  # what all have in common is said once
    Path("dumped.yaml").write_text(text, encoding="utf-8")
    assert dump("dumped.yaml", capsys=capsys) == text


def test_seeds_of_one_run_of_a_plan_and_of_nothing(home: Path, capsys: Capture) -> None:
    Path("one.yaml").write_text("name: one\n", encoding="utf-8")
    for arguments, expected in (
        (("one.yaml", "--seeds", "2"), ["one-i0-d0", "one-i1-d1"]),
        (("plan.yaml", "--seeds", "[3]"), ["ce-i3-d3", "ours-i3-d3"]),
        (("--seeds", "2", "--training.steps", "5"), ["run-i0-d0", "run-i1-d1"]),
    ):
        found = plan(yaml.safe_load(dump(*arguments, capsys=capsys)))
        assert [run.folder for run in found] == expected


def test_a_dry_run_says_what_would_be_trained(home: Path, capsys: Capture) -> None:
    arguments = ["train", "plan.yaml", "--output", "runs", "--threads", "1"]
    assert main([*arguments, "--dry-run", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert not err
    assert "device: cpu" in out
    assert "language: de, 810 training tokens" in out
    assert "population 1: 4 runs, 6 steps" in out
    assert out.count("\n  runs/") == 4
    assert not Path("runs").exists()
    assert main([*arguments, "--seeds", "1", "--quiet"]) == 0
    capsys.readouterr()
    Path("runs/ce-i1-d1").mkdir()
    Path("runs/ce-i1-d1/config.yaml").touch()
    assert main([*arguments, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "runs/ce-i0-d0 (finished)\n" in out
    assert "runs/ce-i1-d1 (begun)\n" in out
    assert "runs/ours-i1-d1\n" in out


def test_it_trains_reports_and_leaves_finished_runs_alone(home: Path, capsys: Capture) -> None:
    arguments = ["train", "plan.yaml", "--output", "runs", "--threads", "1"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [f"runs/{name}-i{seed}-d{seed}", "done"] for name in ("ce", "ours") for seed in (0, 1)
    ]
    assert all("de: ppl " in line and "en: ppl " in line for line in lines)
    assert "training 4 runs" in err
    assert torch.get_num_threads() == 1
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*") if path.is_file()}
    assert "output: expected a folder without these runs, got ce-i0-d0" in line_of_error(
        arguments, capsys
    )
    assert main([*arguments, "--resume"]) == 0
    again, err = capsys.readouterr()
    assert (again, err) == (out, "")
    assert before == {path: path.stat().st_mtime_ns for path in before}
    line = line_of_error([*arguments, "--resume", "--optimizer.lr", "0.5"], capsys)
    assert "with optimizer.lr 0.001, got optimizer.lr 0.5" in line


def test_the_best_weights_are_kept_where_that_is_asked_for(home: Path, capsys: Capture) -> None:
    best = ("--training.keep.which", "best", "--training.keep.every=3", "--training.keep.batches=1")
    assert train(*best, "--quiet") == 0
    chosen = record(Path("runs/run-i0-d0"))["chosen"]
    assert chosen["step"] in (3, 6)
    assert capsys.readouterr().out.endswith(f"  weights of step {chosen['step']}\n")


def test_the_record_holds_the_command_that_repeats_it(home: Path) -> None:
    assert train("--model.tied=no", "--training.checkpoint_every", "null", "--quiet", steps=1) == 0
    command = record(Path("runs/run-i0-d0"))["provenance"]["command"]
    assert command.startswith("elbowroom train --data.source=texts --model.layers=1 ")
    assert "--model.tied=false" in command
    assert "--training.checkpoint_every=null" in command


def test_after_a_time_limit_it_goes_on_to_the_same_bits(home: Path, capsys: Capture) -> None:
    assert train("--output", "whole", "--quiet") == 0
    assert train("--max-minutes", "0") == 0
    out, err = capsys.readouterr()
    assert "whole/run-i0-d0  done" in out
    assert err == "runs: stopped; what was done is saved; go on with --resume\n"
    assert not weights(Path("runs"))
    assert train("--resume", "--max-minutes", "5", "--quiet") == 0
    assert weights(Path("runs")) == weights(Path("whole"))


def test_ctrl_c_saves_and_says_how_to_go_on(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train("--output", "whole", "--quiet") == 0
    capsys.readouterr()

    def press(event: Event) -> None:
        if event.kind == "log":
            os.kill(os.getpid(), signal.SIGINT)

    @contextlib.contextmanager
    def watching(quiet: bool) -> Iterator[object]:
        yield press

    with monkeypatch.context() as patched:
        patched.setattr(module, "watching", watching)
        assert train() == 130
    out, err = capsys.readouterr()
    assert not out
    assert err == "elbowroom: runs: stopped; what was done is saved; go on with --resume\n"
    assert list(Path("runs/run-i0-d0/state").glob("step-*"))
    assert not weights(Path("runs"))
    assert train("--resume", "--quiet") == 0
    assert weights(Path("runs")) == weights(Path("whole"))


def test_a_run_that_goes_astray_says_so(home: Path, capsys: Capture) -> None:
    assert train("--optimizer.lr", "1e29", "--optimizer.warmup", "0", "--quiet") == 0
    out, _ = capsys.readouterr()
    assert "runs/run-i0-d0  failed  the loss or its gradient was not finite at step" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--training.stps", "5"], "did you mean 'steps'?"),
        (["--trainig.steps", "5"], "no option or field --trainig; did you mean --training?"),
        (["--resum", "1"], "did you mean --resume?"),
        (["--zzz", "1"], "no option or field --zzz; --help lists what there is"),
        (["--training.steps", "five"], "training.steps: expected an integer, got 'five'"),
        (["--training.steps", "-5"], "training.steps: expected an integer, at least 1, got -5"),
        (["--training.steps"], "--training.steps: expected a value after it"),
        (["--training.steps", "--quiet"], "--training.steps: expected a value after it"),
        (["--training", "5"], "training: expected a mapping, got 5"),
        (["--loss.margin=1", "--loss.margin.end=2"], "for 'margin' as a whole was given before"),
        (["--model.heads", "3"], "model.width: expected a multiple of heads, 3"),
        (["--base.training.steps", "5"], "--base: fields of all runs are written"),
        (["--runs", "[]"], "--runs: fields of all runs are written"),
        (["absent.yaml"], "absent.yaml: cannot be read (No such file"),
        (["plan.yaml", "other.yaml"], "unexpected 'other.yaml'; see elbowroom train --help"),
        (["texts"], "texts: cannot be read"),
        (["--max-minutes", "-1"], "--max-minutes: expected a finite number, at least 0"),
        (["--max-minutes", "long"], "--max-minutes"),
        (["--threads", "0"], "--threads: expected at least 1, got 0"),
        (["--device", "tpu"], "--device: expected cpu, cuda or cuda:N, got 'tpu'"),
        (["--device", "meta"], "--device: expected cpu, cuda or cuda:N, got 'meta'"),
        (["--device", "cuda:7"], "there is no CUDA device here"),
        (["--data.source", "absent"], "expected a folder or file that exists"),
        (["--data.source", "texts/en.txt", "--model.context", "5000"], "at least 5001 tokens"),
        (["--data.source", "texts", "--output", "plan.yaml"], "no folder can be made here"),
        (["--track", "tensorbord"], "--track: expected 'tensorboard' or 'wandb'"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    words: str,
    home: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert words in line_of_error(["train", *arguments], capsys)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nname: b\n", "the key 'name' stands twice"),
        ("- 1\n", "expected a mapping of settings"),
        ("training: {steps: 1.5}", "training.steps: expected an integer, got 1.5"),
        ("runs: 5\nseeds: 2", "runs: expected a list of runs, got 5"),
        ("runs: [5]", "runs[0]: expected a mapping of settings, got 5"),
        ("seeds: 0", "seeds: expected an integer, at least 1"),
        ("runs: [{name: a}, {name: a}]", "name: expected another for each run"),
        ("seeds: 2\ntraining: {steps: 5}", "training: expected base, runs and seeds in a plan"),
        (
            "runs: [{name: a}, {name: b, data: {tokenizer: bytes}}]",
            "data.tokenizer differs between runs; train them by two commands",
        ),
    ],
)
def test_mistakes_in_a_file_are_one_line(
    text: str, words: str, home: Path, capsys: Capture
) -> None:
    Path("c.yaml").write_text(text, encoding="utf-8")
    assert words in line_of_error(["train", "c.yaml", "--loss.margin", "1"], capsys)


def test_debug_shows_where_an_error_comes_from(home: Path) -> None:
    with pytest.raises(ArgumentValueError, match=r"training\.steps"):
        main(["train", "--debug", "--training.steps", "0"])


def test_a_tracker_that_is_not_installed_is_missed_before_the_work(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.sys.modules, "wandb", None)
    line = line_of_error(["train", "--data.source=absent", "--track", "wandb"], capsys)
    assert "--track wandb needs the package 'wandb'" in line
    assert "pip install 'elbowroom[track]'" in line
    with pytest.raises(MissingExtraError):
        main(["train", "--track", "wandb", "--debug"])


@pytest.mark.parametrize("said", [["tensorboard,wandb"], ["tensorboard", "wandb"]])
def test_numbers_go_to_trackers_too(
    said: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boards, server = stand_ins.install(monkeypatch)
    options = [word for name in said for word in ("--track", name)]
    assert train("--quiet", *options) == 0
    points = boards.shown["runs/run-i0-d0/tensorboard"]
    assert {step for name, step in points if name == "loss"} == {2, 4, 6}
    assert {step for name, step in points if name == "eval/ppl/de"} == {4}
    assert list(server.shown.values()) == [points]
    assert not boards.open
    assert not server.open


def test_of_several_processes_only_the_first_prints(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def second(device: torch.device) -> Iterator[Ranks]:
        yield Ranks(rank=1)

    monkeypatch.setattr(module, "joined", second)
    assert train("--quiet", steps=1) == 0
    assert train("--dry-run", steps=1) == 0
    monkeypatch.setattr(module, "is_first", lambda: False)
    assert train("--dump-config") == 0
    assert train("--max-minutes", "0", "--quiet", "--output", "other") == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")
    assert weights(Path("runs"))
