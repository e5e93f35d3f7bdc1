"""Going on: whatever stops training, the results are those of training that nothing stopped."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elbowroom.errors import FileError
from elbowroom.lab import checkpoints
from elbowroom.lab.config import merge
from elbowroom.lab.evaluation import Judge
from elbowroom.lab.folder import RunFolder
from tests.lab.observed import Clock, Watch, after, differences, result
from tests.lab.toy import fit, run

pytestmark = pytest.mark.usefixtures("unchecked")  # bits are compared; shapes are elsewhere
ROOT = Path(__file__).parents[2]
FEW = {"steps": 12, "log_every": 3, "eval_every": 6, "checkpoint_every": 3}
WILD = {"name": "wild", "optimizer": {"lr": 1e30}}
BEST = {"which": "best", "every": 2, "batches": 2}
COUNTS = {"name": "counts", "loss": {"name": "agg", "count_steps": 3}}
CASES = {
    "adamw": [{}],
    "rows that catch up": [
        {
            "optimizer": {"name": "row_adamw", "catch_up": True},
            "model": {"tied": False},
            "loss": {"margin": 0.2},
        }
    ],
    "in parts": [
        {
            "training": {"accumulate": 2, "checkpoint_every": None},
            "optimizer": {"name": "coupled_adamw", "center": True},
            "loss": {"margin": {"start": 0.2, "end_top_p": 0.99}},
        }
    ],
    "best": [
        {"training": {"keep": BEST}},
        {**WILD, "training": {"keep": BEST}},
        {"name": "own", "training": {"keep": {**BEST, "by": "objective"}}, "loss": {"margin": 0.3}},
    ],
    "one population": [COUNTS, WILD, {"name": "unequal", "data": {"shares": [0.5, 0.5]}}],
    "populations": [COUNTS, {"name": "narrow", "model": {"width": 8}}, {"name": "whole"}],
}


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What one run is like that nothing stops, and what two are."""
    torch.set_num_threads(1)  # this comes before what conftest sets for each test
    folder = tmp_path_factory.mktemp("whole")
    return {1: fit(runs(1), folder / "one"), 2: fit(runs(2), folder / "two")}


def runs(count):
    return [run(name="one", training=FEW), run(**COUNTS, training=FEW)][:count]


def resume(folder, count=1):
    """Go on; return how that ended, and what was told."""
    watch = Watch()
    return fit(runs(count), folder, resume=True, observer=watch), watch


# Stopped in time


@pytest.mark.parametrize("case", CASES)
def test_stopped_at_various_steps(tmp_path, clock, case):
    configs = [run(**merge({"training": FEW}, change)) for change in CASES[case]]
    expected = fit(configs, tmp_path / "whole")
    for steps in (1, 4, 2):  # together 1, 5, 7
        stopped = fit(configs, tmp_path / "parts", resume=True, max_minutes=after(steps))
        assert stopped.stopped
    found = fit(configs, tmp_path / "parts", resume=True)
    assert not found.stopped
    assert differences(found, expected) == []


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6])
def test_stopped_around_the_end_of_all_runs(tmp_path, clock, steps):
    configs = [run(**WILD), run(**WILD, init_seed=1)]
    expected = fit(configs, tmp_path / "whole")
    last = expected.folders[0].metrics()[-1]["step"]
    assert last == 5
    assert all(folder.record["steps"] < 4 for folder in expected.folders)
    stopped = fit(configs, tmp_path / "parts", max_minutes=after(steps))
    assert stopped.stopped == (steps < last)
    assert differences(fit(configs, tmp_path / "parts", resume=True), expected) == []


def test_stopped_at_the_last_step(tmp_path, clock, whole):
    found = fit(runs(1), tmp_path, max_minutes=after(12))
    assert not found.stopped
    assert differences(found, whole[1]) == []


def test_time_counts_from_the_start(tmp_path, clock):
    fit(runs(1), tmp_path, max_minutes=after(7))
    clock.now += 1000
    (folder,) = fit(runs(1), tmp_path, resume=True).folders
    assert [line["seconds"] for line in folder.metrics() if "eval" not in line] == [3, 6, 9, 12]
    assert folder.record["wall_seconds"] == 12


def test_the_second_signal_ends_at_once(tmp_path, whole):
    steps = []

    def impatient(event):
        steps.append(event.step)
        if event.step == 6:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(runs(1), tmp_path, observer=impatient)
    assert signal.getsignal(signal.SIGINT) is before
    assert steps.count(6) == 2
    found, watch = resume(tmp_path)
    assert watch.steps()[0] == ("start", 3)
    assert differences(found, whole[1]) == []


# Killed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_children_that_are_killed_or_stopped_or_short_of_room(tmp_path):
    """Killed at every thirtieth moment; at all: ``python -m tests.lab.killed_run FOLDER 1``."""
    command = [sys.executable, "-m", "tests.lab.killed_run", str(tmp_path), "30"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["moments"] > 150
    assert found["signals"] == {"SIGINT": [], "SIGTERM": []}
    said = found["room"].pop("said")
    assert "the checkpoint of step 2 could not be saved (File too large); it needs" in said
    assert said.endswith("make room, or choose another folder, and resume")
    assert found["room"] == {"left": [], "differences": []}


class Killed(BaseException):
    """In place of a signal."""


def die_at(monkeypatch, owner, name, call):
    """Let the so manieth call of a function be the end, before it has done anything."""
    function, calls = getattr(owner, name), []

    def dying(*args, **kwargs):
        calls.append(name)
        if len(calls) == call:
            raise Killed
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, dying)


def killed(folder, monkeypatch, owner, name, call, count=1, **options):
    with monkeypatch.context() as patch:
        die_at(patch, owner, name, call)
        with pytest.raises(Killed):
            fit(runs(count), folder, resume=True, **options)


def test_only_the_evaluation_is_missing(tmp_path, monkeypatch, whole):
    killed(tmp_path, monkeypatch, Judge, "full", 1)
    found, watch = resume(tmp_path)
    assert watch.steps() == [("start", 12), ("judge", 12), ("done", 12)]
    assert differences(found, whole[1]) == []
    wall = [f.record["wall_seconds"] for f in found.folders]
    assert wall[0] == pytest.approx(found.folders[0].metrics()[-1]["seconds"], abs=0.5)


def test_one_record_of_two_is_missing(tmp_path, monkeypatch, whole):
    """Both are evaluated again, together as before."""
    killed(tmp_path, monkeypatch, RunFolder, "finish", 2, count=2)
    assert [RunFolder(path).is_finished for path in sorted(tmp_path.iterdir())].count(True) == 1
    found, watch = resume(tmp_path, 2)
    assert watch.steps() == [("start", 12), ("judge", 12), ("done", 12)]
    assert differences(found, whole[2]) == []
    assert all(folder.record["runs_in_population"] == 2 for folder in found.folders)


def test_the_records_are_there_and_the_rest_is_not_removed(tmp_path, monkeypatch, whole):
    killed(tmp_path, monkeypatch, RunFolder, "forget_state", 2, count=2)
    found, watch = resume(tmp_path, 2)
    assert watch.events == []
    assert differences(found, whole[2]) == []


def test_one_model_of_two_is_missing(tmp_path, monkeypatch, whole):
    killed(tmp_path, monkeypatch, RunFolder, "save_model", 2, count=2)
    found, watch = resume(tmp_path, 2)
    assert watch.steps()[0] == ("start", 9)
    assert differences(found, whole[2]) == []


def test_killed_twice_between_the_checkpoints_of_two_runs(tmp_path, monkeypatch, clock, whole):
    """The first run has step 6, then 5, and the second has neither: both still have 3."""
    killed(tmp_path, monkeypatch, checkpoints, "save", 4, count=2)
    stop = after(2)
    killed(tmp_path, monkeypatch, checkpoints, "save", 2, count=2, max_minutes=stop)
    found, watch = resume(tmp_path, 2)
    assert watch.steps()[0] == ("start", 3)
    assert watch.warnings() == []
    assert differences(found, whole[2]) == []


def test_killed_before_all_runs_have_a_checkpoint(tmp_path, monkeypatch, whole):
    killed(tmp_path, monkeypatch, checkpoints, "save", 2, count=2)
    found, watch = resume(tmp_path, 2)
    (said,) = watch.warnings()
    assert said == "no checkpoint is whole in all runs; training starts from the beginning"
    assert watch.of("start")[0].step == 0
    assert differences(found, whole[2]) == []


def test_killed_before_all_runs_were_begun(tmp_path, monkeypatch, clock, whole):
    killed(tmp_path, monkeypatch, RunFolder, "begin", 2, count=2)
    found, watch = resume(tmp_path, 2)
    assert [len(event.runs) for event in watch.of("start")] == [2]
    assert differences(found, whole[2]) == []


def test_a_line_of_metrics_that_was_cut_off(tmp_path, clock, whole):
    (folder,) = fit(runs(1), tmp_path, max_minutes=after(8)).folders
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write('{"step": 8, "nll/ä'.encode()[:-1])
    found, watch = resume(tmp_path)
    assert watch.steps()[0] == ("start", 8)
    assert differences(found, whole[1]) == []


# Damaged


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-10])


def saved(folder):
    return sorted(folder.state.glob("step-*/tensors.safetensors"))


@pytest.mark.parametrize("how", [flip, cut, Path.unlink])
@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_checkpoint(tmp_path, clock, whole, how, damaged):
    """The one before it is used, in all runs, whichever has the damage."""
    stopped = fit(runs(2), tmp_path, max_minutes=after(8))
    how(saved(stopped.folders[damaged])[-1])
    found, watch = resume(tmp_path, 2)
    (said,) = watch.warnings()
    assert "there is no good checkpoint of step 8; " in said
    assert f"{stopped.folders[damaged].path / 'state' / 'step-000000008'}: " in said
    assert said.endswith("; going on from before it")
    assert watch.of("start")[0].step == 6
    assert differences(found, whole[2]) == []


def test_all_checkpoints_are_damaged(tmp_path, clock, whole):
    (folder,) = fit(runs(1), tmp_path, max_minutes=after(8)).folders
    for path in saved(folder):
        flip(path)
    found, watch = resume(tmp_path)
    assert [event.step for event in watch.of("start")] == [0]
    *damage, last = watch.warnings()
    assert ["of step 8; " in damage[0], "of step 6; " in damage[1]] == [True, True]
    assert last == "no checkpoint is whole in all runs; training starts from the beginning"
    assert differences(found, whole[1]) == []


def test_a_damaged_model(tmp_path, monkeypatch, whole):
    killed(tmp_path, monkeypatch, Judge, "full", 1)
    cut(tmp_path / "one-i0-d0" / "model.safetensors")
    found, watch = resume(tmp_path)
    (said,) = watch.warnings()
    assert "model.safetensors: no whole model there" in said
    assert watch.of("start")[0].step == 9
    assert differences(found, whole[1]) == []


def test_damaged_metrics(tmp_path, clock):
    (folder,) = fit(runs(1), tmp_path, max_minutes=after(8)).folders
    path = folder.path / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"', b"#") + b"".join(lines[2:]))
    said = r"metrics.jsonl: line 2 is damaged; put it back or remove it, and go on with --resume"
    with pytest.raises(FileError, match=said):
        resume(tmp_path)
    path.write_bytes(lines[0] + b"".join(lines[2:]))
    found, _ = resume(tmp_path)
    assert [line["step"] for line in found.folders[0].metrics()] == [3, 6, 9, 12]


DAMAGED = {
    "config.yaml": r"config.yaml: not as a run wrote it \(.*; put back what it was, or remove the",
    "record.json": r"record.json: not readable as JSON \(.*; remove this file and go on with --res",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_finished_run_with_a_damaged_file(tmp_path, whole, name):
    fit(runs(1), tmp_path)
    path = tmp_path / "one-i0-d0" / name
    good = path.read_bytes()
    path.write_bytes(b"{" + good[: len(good) // 2])
    with pytest.raises(FileError, match=DAMAGED[name]):
        resume(tmp_path)
    shutil.rmtree(path.parent) if name == "config.yaml" else path.unlink()  # as the message has it
    assert differences(resume(tmp_path)[0], whole[1]) == []


# No room


def no_room(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_from(monkeypatch, call):
    """Let nothing be forced to the disk from some call on; that is where a full one is noticed."""
    sync, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        return no_room() if len(calls) > call else sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


BEGUN, FIRST, SECOND = 4, 10, 16  # calls when a run is begun, and has its checkpoints of 3 and 6


@pytest.mark.parametrize(
    ("calls", "step"),
    [(0, 0), (2, 0), (3, 0), (BEGUN, 0), (FIRST, 3), (13, 3), (SECOND, 6)],
)
def test_a_full_disk(tmp_path, monkeypatch, whole, calls, step):
    with monkeypatch.context() as patch:
        full_from(patch, calls)
        with pytest.raises(FileError, match=r"\(No space left on device\).*; make room, or "):
            fit(runs(1), tmp_path)
    assert list(tmp_path.rglob(".*")) == []
    found, watch = resume(tmp_path)
    assert watch.steps()[0] == ("start", step)
    assert differences(found, whole[1]) == []


@pytest.mark.parametrize(
    ("name", "step"), [("end.json", 9), ("model.safetensors", 9), ("record.json", 12)]
)
def test_a_full_disk_at_the_end(tmp_path, monkeypatch, whole, name, step):
    replace = Path.replace
    with monkeypatch.context() as patch:
        stuck = lambda path, to: no_room() if to.name == name else replace(path, to)  # noqa: E731
        patch.setattr(Path, "replace", stuck)
        with pytest.raises(FileError, match=r"could not be written \(No space left .*; make room"):
            fit(runs(1), tmp_path)
    assert list(tmp_path.rglob(".*")) == []
    assert not (tmp_path / "one-i0-d0" / name).exists()
    found, watch = resume(tmp_path)
    assert watch.steps()[0] == ("start", step)
    assert differences(found, whole[1]) == []


class HalfFile:
    """A file on a disk that takes half a line more."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, text):
        self.file.write(text[: len(text) // 2])
        no_room()


def test_a_full_disk_in_a_line_of_metrics(tmp_path, monkeypatch, whole):
    opened, lines = Path.open, []

    def open_full(path, mode="r", **options):
        file = opened(path, mode, **options)
        lines.extend([path] if mode == "a" else [])
        return HalfFile(file) if len(lines) == 4 else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_full)
        with pytest.raises(FileError, match=r"metrics.jsonl: could not be written \(No space"):
            fit(runs(1), tmp_path)
    assert not lines[0].read_bytes().endswith(b"\n")
    found, watch = resume(tmp_path)
    assert watch.steps()[0] == ("start", 6)
    assert differences(found, whole[1]) == []


# In another company


def test_one_of_two_goes_on_alone(tmp_path, clock, whole):
    """It takes what it has with it, and gets the same numbers to the rounding of products."""
    fit(runs(2), tmp_path, max_minutes=after(8))
    found, watch = resume(tmp_path, 1)
    assert watch.steps()[0] == ("start", 8)
    a, b = result(found.folders[0]), result(whole[2].folders[0])
    assert a["record"]["languages"]["hr"]["nll"] == pytest.approx(
        b["record"]["languages"]["hr"]["nll"], rel=1e-3
    )


def test_those_begun_go_on_together_and_a_new_one_apart(tmp_path, clock, whole):
    fit(runs(2), tmp_path, max_minutes=after(8))
    new = run(name="new", training=FEW)
    watch = Watch()
    found = fit([new, *runs(2)], tmp_path, resume=True, observer=watch)
    assert sorted(len(event.runs) for event in watch.of("start")) == [1, 2]
    found = type(found)(found.folders[1:], found.stopped)
    assert differences(found, whole[2]) == []
