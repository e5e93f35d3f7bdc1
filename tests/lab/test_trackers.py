"""Trackers show what runs wrote down, each point once, whatever happened in between."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest

from elbowroom.errors import ArgumentValueError, MissingExtraError
from elbowroom.lab.config import as_plain
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.trackers import join, scalars, tracking
from elbowroom.lab.trainer import Event
from tests.lab import stand_ins, toy

BOTH = ("tensorboard", "wandb")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> tuple[stand_ins.Boards, stand_ins.Server]:
    return stand_ins.install(monkeypatch)


def runs(log_every: int = 5):
    often = {"checkpoint_every": 10, "log_every": log_every}
    return [
        toy.run(name=name, loss={"margin": margin}, training=often)
        for name, margin in (("ce", float("inf")), ("ours", 1))
    ]


def written(folder: Path):
    """Return the points of a run's own lines."""
    return {
        (name, line["step"]): [value]
        for line in RunFolder(folder).metrics()
        for name, value in scalars(line).items()
    }


def fit(output: Path, observer=None, names=BOTH, **options) -> None:
    with tracking(names, output) as tracker:
        toy.fit(runs(), output, observer=observer, tracker=tracker, **options)


def check(output: Path, boards, server, names=("ce", "ours")) -> None:
    """Both show what runs wrote, and nothing is left open."""
    assert not boards.open
    assert not server.open
    for name in names:
        folder = output / f"{name}-i0-d0"
        expected = written(folder)
        assert {name for name, _ in expected} >= {"loss", "nll/hr", "kept", "lr", "grad_norm"}
        assert {step for name, step in expected if name == "tokens_per_second"} == {5, 10, 15, 20}
        assert {step for name, step in expected if name == "eval/ppl/lr"} == {10}
        assert boards.shown[str(folder / "tensorboard")] == expected
        (known,) = [id for id, run in server.names.items() if run == folder.name]
        assert server.shown[known] == expected


def test_every_number_arrives_once_in_a_run_of_its_own(tmp_path: Path, shown) -> None:
    fit(tmp_path, names=(*BOTH, "tensorboard"))
    check(tmp_path, *shown)
    assert len(shown[0].shown) == len(shown[1].shown) == 2


class KilledError(Exception):
    """Stands in for a kill."""


def dies_at(step: int):
    def observer(event: Event) -> None:
        if event.kind == "log" and event.step == step:
            raise KilledError

    return observer


def same_but_for_the_clock(points):
    clock = ("seconds", "tokens_per_second")
    return {key: values for key, values in points.items() if key[0] not in clock}


def test_steps_that_are_made_again_are_shown_once(tmp_path: Path, shown) -> None:
    boards, server = shown
    for step in (5, 15, 15, 0):  # before the first checkpoint, twice after it, and never
        with tracking(BOTH, tmp_path) as tracker:
            told = join(tracker, dies_at(step))
            with pytest.raises(KilledError) if step else contextlib.nullcontext():
                toy.fit(runs(log_every=1), tmp_path, tracker=told, resume=True)
        assert not boards.open
        assert not server.open
    for name in ("ce-i0-d0", "ours-i0-d0"):
        expected = same_but_for_the_clock(written(tmp_path / name))
        board = boards.shown[str(tmp_path / name / "tensorboard")]
        assert board == written(tmp_path / name)
        (known,) = [id for id, run in server.names.items() if run == name]
        assert same_but_for_the_clock(server.shown[known]) == expected  # these bits, made first
    assert len(server.names) == 2


def test_only_the_evaluation_is_left(tmp_path: Path, shown) -> None:
    def judging(event: Event) -> None:
        if event.kind == "judge":
            raise KilledError

    with pytest.raises(KilledError):
        fit(tmp_path, judging)
    check(tmp_path, *shown)
    fit(tmp_path, resume=True)
    check(tmp_path, *shown)
    assert (tmp_path / "ours-i0-d0" / "record.json").exists()


def test_tracks_are_closed_when_their_runs_are_done(tmp_path: Path, shown) -> None:
    boards, server = shown
    seen = []

    def look(event: Event) -> None:
        if event.kind == "start":
            seen.append((len(boards.open), len(server.open)))

    pair = [toy.run(name="a"), toy.run(name="b", model={"tied": False})]
    with tracking(BOTH, tmp_path) as tracker:
        toy.fit(pair, tmp_path, tracker=join(look, tracker, look))
    assert seen == [(0, 0), (1, 1), (0, 0), (1, 1)]


def test_what_wandb_is_told(tmp_path: Path, shown, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tmp_path, names=("wandb",))
    calls = {call["name"]: call for call in shown[1].calls}
    for run in runs():
        call = calls[run.folder]
        assert call["project"] == "elbowroom"
        assert call["dir"] == str(tmp_path / run.folder)
        assert call["config"]["loss"] == as_plain(run)["loss"]
        known = (tmp_path / run.folder / "wandb-id.txt").read_text(encoding="utf-8")
        assert call["id"] == known
        assert len(known) == 16
    assert not shown[0].shown
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    fit(tmp_path / "other", names=("wandb",))
    assert shown[1].calls[-1]["project"] == "mine"
    assert len({call["id"] for call in shown[1].calls}) == 4


def test_numbers_that_were_not_finite_are_left_out(tmp_path: Path, shown) -> None:
    wild = toy.run(name="wild", optimizer={"lr": 1e29, "warmup": 0})
    with tracking(["tensorboard"], tmp_path) as tracker:
        toy.fit([wild], tmp_path, tracker=tracker)
    points = shown[0].shown[str(tmp_path / wild.folder / "tensorboard")]
    assert ("lr", 5) in points
    assert ("loss", 5) not in points
    assert not any(value != value for values in points.values() for value in values)


def test_without_trackers_there_is_no_observer(tmp_path: Path) -> None:
    with tracking([], tmp_path) as tracker:
        assert tracker is None
    assert join() is None
    assert join(None, None) is None


def test_joined_observers_hear_all_in_order() -> None:
    heard: list[str] = []
    tell = join(lambda event: heard.append("a"), None, lambda event: heard.append("b"))
    assert tell is not None
    tell(Event(kind="save", runs=(), step=1, steps=2))
    assert heard == ["a", "b"]


@pytest.mark.parametrize("name", BOTH)
def test_a_missing_package_is_an_error_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with (
        pytest.raises(MissingExtraError, match=rf"--track {name} needs .* 'elbowroom\[track\]'"),
        tracking([name], tmp_path),
    ):
        pytest.fail("nothing was missed")
    assert not list(tmp_path.iterdir())


def test_an_unknown_tracker(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="track: expected 'tensorboard' or 'wandb'"):
        tracking(["board"], tmp_path).__enter__()


def test_the_own_lines_are_there_anyway(tmp_path: Path, shown) -> None:
    fit(tmp_path, names=())
    lines = (tmp_path / "ce-i0-d0" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [5, 10, 10, 15, 20]
    assert not shown[0].shown
    assert not shown[1].shown
