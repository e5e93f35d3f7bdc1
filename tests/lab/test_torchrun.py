"""Training by two processes from configurations to records: stopped, killed, and gone on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load

from elbowroom.lab import checkpoints
from elbowroom.lab.config import as_plain, merge
from elbowroom.lab.distributed import ALONE, Ranks
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.strict import write_yaml
from elbowroom.lab.trainer import assign
from tests.lab.observed import FILES, record, result
from tests.lab.torchrun_pair import Pair
from tests.lab.toy import fit, lines, run, text, weights

SMALL = {"steps": 8, "log_every": 2, "eval_every": 4, "checkpoint_every": 3}
RICH = {  # a state with all that there is
    "training": SMALL | {"keep": {"which": "best", "every": 2, "batches": 2}},
    "loss": {"name": "agg", "count_steps": 3},
    "optimizer": {"name": "row_adamw", "catch_up": True, "clip": 0.1},
    "model": {"tied": False},
}
MODES = ("ddp", "fsdp")
WHOLE = [("start", 0), ("log", 2), ("save", 3), ("log", 4), ("eval", 4), ("log", 6), ("save", 6)]
WHOLE += [("log", 8), ("judge", 8), ("done", 8)]


def rich(mode, **change):
    return merge(merge(RICH, {"training": {"parallel": mode}}), change)


def only(path):
    """Return the only run's folder."""
    (folder,) = (RunFolder(each) for each in path.iterdir())
    return folder


def ended(found):
    return found["stopped"], found["interrupted"]


def told(found):
    return [tuple(event) for event in found["told"]]


@pytest.fixture(scope="module")
def whole(partner, tmp_path_factory):
    """Two processes' training from start to end, by the way they share it; made once."""
    made = {}

    def make(mode):
        if mode not in made:
            path = tmp_path_factory.mktemp(mode)
            pair = Pair(partner, path, pytest.MonkeyPatch())
            arguments = {"output": str(path / "out"), "runs": [rich(mode)]}
            made[mode] = pair.both("train", arguments), only(path / "out")
        return made[mode]

    return make


def close(found, expected):
    """Compare two trainings that may differ by rounding: sums in another order.

    An ulp of float32 is 1e-7; AdamW divides by roots of small moments, so that it grows in some
    entries. What is compared are numbers around 1, and weights that move by 1e-2 a step.
    """
    one, other = load(weights(found)), load(weights(expected))
    assert one.keys() == other.keys()
    for name, x in one.items():
        torch.testing.assert_close(x, other[name], rtol=1e-5, atol=1e-5)
    numbers = [(record(f)["languages"], lines(f)) for f in (found, expected)]
    assert_numbers(*numbers)


def assert_numbers(found, expected):
    """Compare plain data; numbers within the tolerance of `close`."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_numbers(found[name], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_numbers(a, b)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    else:
        assert found == expected


# Runs that are spread


def test_runs_of_a_population_are_spread(pair, tmp_path):
    """Each process trains its share as if nobody else were there; the first tells of its own."""
    changes = [
        {"name": "a", "training": SMALL},
        {"name": "b", "training": SMALL, "loss": {"margin": 0.5}, "data_seed": 2},
        {"name": "c", "training": SMALL, "init_seed": 3},
        {"name": "d", "training": SMALL, "optimizer": {"clip": 0}},
    ]
    arguments = {"output": str(tmp_path / "two"), "runs": changes, "command": "elbowroom train x"}
    first, second = pair.both("train", arguments, rank=1)
    assert ended(first) == ended(second) == (False, False)
    assert (told(first), told(second)) == (WHOLE, [])
    runs = [run(**change) for change in changes]
    for share in (runs[:2], runs[2:3], runs[3:]):
        for folder in fit(share, tmp_path / "one", command="elbowroom train x").folders:
            found = RunFolder(tmp_path / "two" / folder.path.name)
            assert result(found) == result(folder)
            assert found.record["provenance"]["command"] == "elbowroom train x"
            assert found.record["processes"] == 1
            assert found.record["runs_in_population"] == len(share)
            assert not found.state.exists()
    for folder in fit(runs[:3], tmp_path / "together").folders:  # in other company
        close(RunFolder(tmp_path / "two" / folder.path.name), folder)


def test_a_run_that_is_trained_by_one_of_two(pair, tmp_path):
    change = {"training": {**SMALL, "parallel": "none"}}
    arguments = {"output": str(tmp_path / "two"), "runs": [change]}
    assert [told(found) for found in pair.both("train", arguments)] == [WHOLE, []]
    (folder,) = fit([run(**change)], tmp_path / "one").folders
    assert result(only(tmp_path / "two")) == result(folder)


def test_what_is_trained_together_and_what_apart():
    def names(runs, company=None, only=False, rank=0):
        tasks = assign(runs, company or {}, Ranks(rank, 2), only=only)
        return [([r.name for r in members], ranks.world) for members, ranks in tasks]

    a, b, c = (run(name=name) for name in "abc")
    whole = run(name="whole", training={"parallel": "fsdp"})
    apart = run(name="apart", training={"parallel": "none"})
    assert names([a], only=True) == [(["a"], 2)]
    assert names([a]) == [(["a"], 1)]  # the one that is left of several
    assert names([a], rank=1) == []
    assert names([apart], only=True) == [(["apart"], 1)]
    assert names([a, whole, b, c]) == [(["whole"], 2), (["a", "b"], 1)]
    assert names([a, whole, b, c], rank=1) == [(["whole"], 2), (["c"], 1)]
    begun = {"b-i0-d0": ["b-i0-d0", "c-i0-d0"], "c-i0-d0": ["b-i0-d0", "c-i0-d0"]}
    assert names([a, b, c], begun) == [(["a"], 1)]
    assert names([a, b, c], begun, rank=1) == [(["b", "c"], 1)]
    assert [(len(m), r) for m, r in assign([a, b, whole], {}, ALONE, only=False)] == [
        (2, ALONE),
        (1, ALONE),
    ]


def test_a_signal_to_one_of_two_that_train_apart(pair, tmp_path):
    """It stops its own run; the other one finishes its own, and says that not all is done."""
    changes = [{"name": name, "training": SMALL} for name in "ab"]
    arguments = {"output": str(tmp_path / "two"), "runs": changes}
    stopped = {**arguments, "send": ["log", 4, "SIGTERM"]}
    first, second = pair.both("train", stopped, rank=1)
    assert ended(first) == ended(second) == (True, True)
    a, b = (RunFolder(tmp_path / "two" / f"{name}-i0-d0") for name in "ab")
    assert checkpoints.steps(a.state) == (3, 5)
    assert (a.is_finished, b.is_finished) == (False, True)
    first, second = pair.both("train", {**arguments, "resume": True})
    assert ended(first) == ended(second) == (False, False)
    assert first["told"][0] == ["start", 5]
    for folder in fit([run(**changes[0])], tmp_path / "one").folders:
        assert result(a) == result(folder)


# One run, shared


def test_gradients_by_type_are_of_the_whole_batch(pair, tmp_path):
    """Not of a process's share, whose norms would be greater."""
    change = {"training": {**SMALL, "gradients_every": 2}, "loss": {"margin": 0.3}}
    pair.both("train", {"output": str(tmp_path / "two"), "runs": [change]})
    (alone,) = fit([run(**change)], tmp_path / "one").folders
    found = only(tmp_path / "two").gradients
    assert found.steps == alone.gradients.steps == 4
    for name in ("context", "target", "marginalization"):
        sums = (getattr(x.averages(), name) for x in (found, alone.gradients))
        torch.testing.assert_close(*sums, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_two_processes_are_as_one(whole, tmp_path, mode):
    (first, second), found = whole(mode)
    assert (told(first), told(second)) == (WHOLE, [])
    assert sorted(path.name for path in found.path.iterdir()) == FILES
    assert (found.record["processes"], found.record["runs_in_population"]) == (2, 1)
    (alone,) = fit([run(**rich(mode))], tmp_path).folders
    close(found, alone)
    for name in ("config.yaml", "tokenizer.json"):
        assert (found.path / name).read_text() == (alone.path / name).read_text()
    assert found.record["parameters"] == alone.record["parameters"]


@pytest.mark.parametrize("mode", MODES)
def test_stopped_by_a_signal_to_one(pair, whole, tmp_path, mode):
    """All stop, with a checkpoint, from which any number of processes goes on."""
    path, copy, change = tmp_path / "run", tmp_path / "copy", rich(mode)
    arguments = {"output": str(path), "runs": [change], "send": ["log", 4, "SIGTERM"]}
    first, second = pair.both("train", arguments, rank=MODES.index(mode))
    assert ended(first) == ended(second) == (True, True)
    kind, step = first["told"][-1]
    assert kind == "save"
    assert 4 < step < 8
    assert checkpoints.steps(only(path).state)[-1] == step
    assert told(second) == []
    shutil.copytree(path, copy)
    arguments = {"output": str(path), "runs": [change], "resume": True}
    first, second = pair.both("train", arguments, rank=MODES.index(mode))
    assert first["told"][0] == ["start", step]
    assert result(only(path)) == result(whole(mode)[1])
    (alone,) = fit([run(**change)], copy, resume=True).folders
    close(alone, whole(mode)[1])


@pytest.mark.parametrize("mode", MODES)
def test_begun_by_one_and_gone_on_by_two(pair, whole, tmp_path, mode):
    def stop(event):
        if (event.kind, event.step) == ("log", 4):
            signal.raise_signal(signal.SIGTERM)

    assert fit([run(**rich(mode))], tmp_path / "run", observer=stop).stopped
    arguments = {"output": str(tmp_path / "run"), "runs": [rich(mode)], "resume": True}
    first, _ = pair.both("train", arguments)
    assert first["told"][0] == ["start", 5]
    close(only(tmp_path / "run"), whole(mode)[1])


@pytest.mark.parametrize(
    ("mode", "rank", "moment"),
    [("ddp", 0, ["log", 4]), ("fsdp", 0, ["log", 4]), ("fsdp", 1, ["judge", 8])],
)
def test_a_process_that_is_killed(pair, whole, tmp_path, mode, rank, moment):
    """The other one says so, and both go on later as if nothing had been."""
    arguments = {"output": str(tmp_path / "run"), "runs": [rich(mode)]}
    killed = {**arguments, "send": [*moment, "SIGKILL"]}
    here, there = pair.run("train", killed, rank=rank)
    assert there == -signal.SIGKILL
    assert here["error"] == "RankError"
    assert "another process has ended, or cannot be reached; look at what it said" in here["said"]
    pair.run("train", {**arguments, "resume": True}, rank=rank)
    assert result(only(tmp_path / "run")) == result(whole(mode)[1])


def test_a_limit_of_one_process_stops_all(pair, tmp_path):
    arguments = {"output": str(tmp_path / "run"), "runs": [rich("ddp")]}
    first, second = pair.both("train", arguments, theirs={"max_minutes": 0})
    assert ended(first) == ended(second) == (True, False)
    assert not (tmp_path / "run").exists()


def test_the_first_process_fails(pair, tmp_path):
    """What it cannot write it says; the other one says that it is gone."""
    (tmp_path / "run" / "run-i0-d0").mkdir(parents=True)
    (tmp_path / "run" / "run-i0-d0" / "state").write_text("in the way")
    arguments = {"output": str(tmp_path / "run"), "runs": [rich("ddp")]}
    first, second = pair.both("train", arguments)
    assert first["error"] == "FileError"
    assert "run-i0-d0: could not be written" in first["said"]
    assert second["error"] == "RankError"


DIFFERENT = {
    "runs": {"runs": [rich("ddp", init_seed=1)]},
    "folder": {"output": "elsewhere"},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_processes_that_want_different_things(pair, tmp_path, what):
    theirs = dict(DIFFERENT[what])
    if "output" in theirs:
        theirs["output"] = str(tmp_path / "elsewhere")
    arguments = {"output": str(tmp_path / "run"), "runs": [rich("ddp")]}
    for found in pair.both("train", arguments, theirs=theirs):
        assert found["error"] == "RankError"
        assert found["said"].startswith(f"the {what}: the processes differ in it; start all with")
        assert found["told"] == []
    assert not list(tmp_path.glob("*/run-*"))


# The launcher


@pytest.mark.slow
def test_torchrun(tmp_path):
    """The command line, started as users start it; one of the two processes speaks."""
    (tmp_path / "texts").mkdir()
    for seed, language in enumerate(("de", "en")):
        (tmp_path / "texts" / f"{language}.txt").write_text(text(800, seed=seed))
    plan = run(**rich("fsdp", data={"source": str(tmp_path / "texts")}))
    (tmp_path / "plan.yaml").write_text(write_yaml(as_plain(plan)))
    launch = "-m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2"
    command = "-m elbowroom.cli.main train plan.yaml --device cpu --output out"
    own = {"OMP_NUM_THREADS": "1", "ELBOWROOM_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, *launch.split(), *command.split()],
        cwd=tmp_path,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out/run-i0-d0  done  de: ppl ")
    assert (done.stdout.count("done"), done.stderr.count("done")) == (1, 1)
    assert done.stderr.count("training 1 run") == 1
    record = only(tmp_path / "out").record
    assert (record["status"], record["processes"], record["steps"]) == ("done", 2, 8)
