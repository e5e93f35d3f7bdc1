"""The trainer: a run's whole folder, what it tells, runs that go astray, and bad input."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from elbowroom.errors import ArgumentTypeError, ArgumentValueError, FileError
from elbowroom.lab import trainer
from elbowroom.lab.config import run_config
from elbowroom.lab.evaluation import Judge
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.population import Population
from elbowroom.lab.strict import read_yaml
from elbowroom.lab.tokenizers import load_tokenizer
from elbowroom.lab.trainer import group, train
from tests.lab.observed import FILES, Clock, Watch, after, result
from tests.lab.toy import corpus, fit, lines, run, same_states

pytestmark = pytest.mark.usefixtures("unchecked")  # shapes are tested where they are made
CPU = torch.device("cpu")
WILD = {"name": "wild", "optimizer": {"lr": 1e30}}


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def by_hand(runs, steps):
    """Train a population without the trainer."""
    found = Population(runs, corpus(), CPU)
    found.advance(steps)
    return found


def judge(population, runs):
    bins = population.token_counts[0].bins(runs[0].evaluation.bins)
    scales = [r.loss.logit_scale for r in runs]
    return Judge(corpus(), population.model, scales, runs[0].evaluation, bins)


# What is written


def test_a_whole_folder(tmp_path):
    config = run(
        loss={"margin": {"start": 0.5, "end_top_p": 0.99}, "logit_scale": 1.5}, data_seed=3
    )
    outcome = fit([config], tmp_path, command="elbowroom train toy.yaml")
    (folder,) = outcome.folders
    assert not outcome.stopped
    assert folder.path == tmp_path / "run-i0-d3"
    assert sorted(path.name for path in folder.path.iterdir()) == FILES
    expected = replace(config, model=replace(config.model, vocab_size=40))
    assert run_config(read_yaml(folder.path / "config.yaml")) == expected == folder.config()
    saved = load_tokenizer(folder.path / "tokenizer.json")
    assert saved.to_dict() == corpus().tokenizer.to_dict()
    by_itself = by_hand([config], 20)
    tensors, step = folder.load_model()
    assert step == 20
    assert same_states(tensors, by_itself.model_state(0))
    judged = judge(by_itself, [config]).full()[0]
    assert {name: folder.record[name] for name in judged} == judged


def test_the_record(tmp_path):
    runs = [run(name="a", loss={"margin": 0.5}), run(name="b", init_seed=4)]
    a, b = fit(runs, tmp_path, command="elbowroom train toy.yaml").folders
    record = a.record
    assert (record["name"], record["init_seed"], record["data_seed"]) == ("a", 0, 0)
    assert (record["status"], record["steps"]) == ("done", 20)
    assert "reason" not in record
    assert (record["runs_in_population"], record["processes"]) == (2, 1)
    sizes = [x.numel() for name, x in a.load_model()[0].items() if name != "positions"]
    assert record["parameters"] == sum(sizes)
    assert record["corpus"] == corpus().fingerprint
    assert record["config"]["loss"]["margin"]["start"] == 0.5
    assert b.record["config"]["loss"]["margin"]["start"] == ".inf"
    assert run_config(b.record["config"]) == b.config()
    assert set(record["languages"]) == {"hr", "lr"}
    assert len(record["languages"]["lr"]["bins"]) == 3
    kept = [line["kept"] for line in lines(a) if "kept" in line]
    assert len(kept) == 4
    assert record["kept"] == pytest.approx(sum(kept) / 4)
    assert 0 < record["kept"] < 1 == b.record["kept"]
    assert record["tokens_per_second"] > 0
    assert record["wall_seconds"] > 0
    assert record["provenance"]["command"] == "elbowroom train toy.yaml"
    assert b.record["init_seed"] == 4


def test_the_metrics(tmp_path):
    loss = {"margin": 0.5, "penalty": "laplacian"}
    runs = [run(name=n, data_seed=i, loss=loss, training={"steps": 17}) for i, n in enumerate("ab")]
    folders = fit(runs, tmp_path).folders
    population = by_hand(runs, 0)
    assert [r.name for r in population.runs] == ["a", "b"]
    for done in (5, 10, 15, 17):
        population.advance(done - population.done)
        log = population.log()
        quick = judge(population, runs).quick(3) if done == 10 else None
        for r, folder in enumerate(folders):
            line, *more = [line for line in lines(folder) if line["step"] == done]
            nll = {f"nll/{name}": x for name, x in zip(("hr", "lr"), log.nll[r], strict=True)}
            assert line == {
                "step": done,
                "loss": log.loss[r],
                **{name: x for name, x in nll.items() if math.isfinite(x)},
                "kept": log.kept[r],
                "lr": log.lr[r],
                "grad_norm": log.grad_norm[r],
            }
            assert more == ([{"step": 10, "eval": quick[r]}] if quick else [])
    text = (folders[0].path / "metrics.jsonl").read_text()
    whole = [json.loads(line) for line in text.splitlines()]
    logs = [line for line in whole if "eval" not in line]
    assert all(line["tokens_per_second"] > 0 for line in logs)
    times = [line["seconds"] for line in logs]
    assert times == sorted(times)


def test_a_language_that_a_batch_has_nothing_of(tmp_path):
    (folder,) = fit([run(data={"shares": [1.0, 0.0]})], tmp_path).folders
    assert all("nll/lr" not in line for line in lines(folder))
    assert all("nll/hr" in line for line in lines(folder) if "eval" not in line)
    assert folder.record["languages"]["lr"]["tokens"] == 48


def test_an_evaluation_without_bins(tmp_path):
    (folder,) = fit([run(evaluation={"bins": 0})], tmp_path).folders
    assert "bins" not in folder.record["languages"]["hr"]


# What is told


def test_events_in_their_order(tmp_path):
    watch = Watch()
    runs = [run(name=n, training={"checkpoint_every": 8}) for n in "ab"]
    fit(runs, tmp_path, observer=watch)
    assert watch.steps() == [
        ("start", 0),
        ("log", 5),
        ("save", 8),
        ("log", 10),
        ("eval", 10),
        ("log", 15),
        ("save", 16),
        ("log", 20),
        ("judge", 20),
        ("done", 20),
    ]
    shares = [event.judged for event in watch.of("judging")]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    for event in watch.events:
        assert [r.name for r in event.runs] == ["a", "b"]
        assert (event.steps, event.population, event.populations) == (20, 1, 1)
        assert event.message == ""
        assert (event.lines != ()) == (event.kind in ("log", "eval"))


def test_what_events_say_of_the_pace(tmp_path, clock):
    watch = Watch()
    fit([run(name=n) for n in "ab"], tmp_path, observer=watch)
    start, *logs = watch.of("start") + watch.of("log")
    assert (start.tokens_per_second, start.seconds_left) == (0.0, None)
    tokens = 2 * 4 * 8  # a step, which takes a second: runs, windows, context
    assert [event.tokens_per_second for event in logs] == [tokens] * 4
    assert [event.seconds_left for event in logs] == [15, 10, 5, 0]
    assert [event.lines[1]["tokens_per_second"] for event in logs] == [tokens / 2] * 4
    assert [event.lines[1]["seconds"] for event in logs] == [5, 10, 15, 20]
    found = RunFolder(tmp_path / "a-i0-d0").record
    assert (found["wall_seconds"], found["tokens_per_second"]) == (20, tokens / 2)


def test_the_lines_told_are_those_written(tmp_path):
    watch = Watch()
    folders = fit([run(name=n) for n in "ab"], tmp_path, observer=watch).folders
    told = [event.lines for event in watch.events if event.lines]
    assert [list(own) for own in zip(*told, strict=True)] == [f.metrics() for f in folders]
    assert len(told) == 5


def test_saving_by_the_clock(tmp_path, clock):
    watch = Watch()
    fit([run(training={"checkpoint_minutes": 7 / 60})], tmp_path, observer=watch)
    assert [event.step for event in watch.of("save")] == [10]  # at reports; the last is the end


# Populations


def test_runs_that_cannot_share_a_program(tmp_path):
    watch = Watch()
    narrow = {"model": {"width": 8}}
    runs = [run(name="a"), run(name="b", **narrow), run(name="c"), run(name="d", **narrow)]
    outcome = fit(runs, tmp_path, observer=watch)
    assert [f.path.name[0] for f in outcome.folders] == list("abcd")
    assert [[r.name for r in event.runs] for event in watch.of("start")] == [["a", "c"], ["b", "d"]]
    assert [(e.population, e.populations) for e in watch.of("done")] == [(1, 2), (2, 2)]
    assert all(folder.record["runs_in_population"] == 2 for folder in outcome.folders)
    (alone,) = fit([runs[3]], tmp_path / "alone").folders
    assert alone.record["languages"]["hr"]["nll"] == pytest.approx(
        outcome.folders[3].record["languages"]["hr"]["nll"], rel=1e-3
    )


def test_groups_keep_those_together_that_were():
    a, b, c = runs = [run(name=n) for n in "abc"]
    other = run(name="other", training={"batch": 2})
    assert group([a, other, b]) == [[a, b], [other]]
    together = {r.folder: (a.folder, c.folder) for r in (a, c)}
    assert group(runs, together) == [[a, c], [b]]


# Runs that go astray


def test_one_run_fails_alone(tmp_path):
    runs = [run(**WILD), run(name="tame")]
    wild, tame = fit(runs, tmp_path).folders
    died = wild.record["steps"]
    assert 0 < died < 20
    assert wild.record["status"] == "failed"
    assert wild.record["reason"] == f"the loss or its gradient was not finite at step {died}"
    assert (tame.record["status"], tame.record["steps"]) == ("done", 20)
    assert "reason" not in tame.record
    last_good = by_hand(runs, died)
    assert last_good.alive.all()
    tensors, step = wild.load_model()
    assert step == 20
    r = [x.name for x in last_good.runs].index("wild")
    assert same_states(tensors, last_good.model_state(r))
    assert all(x.isfinite().all() for x in tensors.values())
    after = [line for line in lines(wild) if line["step"] > died and "eval" not in line]
    assert after
    assert all(line["loss"] is None for line in after)
    assert [line["step"] for line in lines(tame)] == [line["step"] for line in lines(wild)]
    assert all(math.isfinite(line["loss"]) for line in lines(tame) if "eval" not in line)


def test_all_runs_fail(tmp_path):
    watch = Watch()
    runs = [run(**WILD, init_seed=i, training={"steps": 1000}) for i in range(2)]
    outcome = fit(runs, tmp_path, observer=watch)
    assert not outcome.stopped
    last = watch.events[-1]
    assert (last.kind, last.steps) == ("done", 1000)
    assert last.step < 100
    died = [folder.record["steps"] for folder in outcome.folders]
    assert last.step - 5 <= max(died) < last.step
    assert all(folder.record["status"] == "failed" for folder in outcome.folders)
    assert not any(folder.state.exists() for folder in outcome.folders)


def test_all_runs_fail_before_anything_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: 0.0))  # or is timed
    training = {"log_every": 100, "eval_every": 6, "steps": 100}
    (folder,) = fit([run(**WILD, training=training)], tmp_path).folders
    assert folder.record["status"] == "failed"
    assert not {"kept", "tokens_per_second"} & folder.record.keys()
    assert [line["step"] for line in lines(folder)] == [6]
    assert folder.load_model()[1] == 6


# Stopping


def test_no_time_at_all(tmp_path, clock):
    outcome = fit([run()], tmp_path, max_minutes=0)  # one step at least, so that it gets somewhere
    assert outcome.stopped
    assert not outcome.folders[0].is_finished
    assert not fit([run()], tmp_path, resume=True).stopped


def test_time_that_ends_between_populations(tmp_path, clock):
    runs = [run(name="a"), run(name="b", model={"width": 8})]
    outcome = fit(runs, tmp_path, max_minutes=after(20))
    assert outcome.stopped
    assert [folder.is_finished for folder in outcome.folders] == [True, False]
    assert [folder.exists for folder in outcome.folders] == [True, False]
    watch = Watch()
    outcome = fit(runs, tmp_path, resume=True, observer=watch)
    assert not outcome.stopped
    assert [[r.name for r in event.runs] for event in watch.of("start")] == [["b"]]


def test_finished_runs_are_left_alone(tmp_path):
    (folder,) = fit([run()], tmp_path).folders
    before = {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()}
    found = result(folder)
    watch = Watch()
    assert not fit([run()], tmp_path, resume=True, observer=watch).stopped
    assert watch.events == []
    assert result(folder) == found
    assert {path.name: path.stat().st_mtime_ns for path in folder.path.iterdir()} == before


# Bad input


def test_no_runs(tmp_path):
    with pytest.raises(ArgumentValueError, match="runs: expected at least one run, got none"):
        fit([], tmp_path)


def test_two_runs_of_one_name(tmp_path):
    with pytest.raises(ArgumentValueError, match=r"name: .* for each run, got run-i0-d0; rename"):
        fit([run(), run(loss={"margin": 1})], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_minutes_that_are_none(tmp_path):
    for minutes in (-1, math.nan):
        with pytest.raises(ArgumentValueError, match="max_minutes: expected a finite number, at"):
            fit([run()], tmp_path, max_minutes=minutes)


@pytest.mark.usefixtures("unchecked")
def test_minutes_in_words(tmp_path):
    with pytest.raises(ArgumentTypeError, match="max_minutes: expected a number, got"):
        fit([run()], tmp_path, max_minutes="5")


def test_a_folder_that_has_the_run_already(tmp_path):
    (folder,) = fit([run()], tmp_path).folders
    before = result(folder)
    new = run(name="a", model={"width": 8})
    said = r"output: expected a folder without these runs, got run-i0-d0; go on with --resume, or"
    with pytest.raises(ArgumentValueError, match=said):
        fit([new, run()], tmp_path)
    assert not RunFolder(tmp_path / new.folder).exists
    assert result(folder) == before


def test_another_configuration(tmp_path):
    (folder,) = fit([run()], tmp_path).folders
    before = result(folder)
    said = (
        r"output: expected run-i0-d0 as it was begun, with optimizer.lr 0.01, "
        r"got optimizer.lr 0.02; name another folder, or give the run another name"
    )
    with pytest.raises(ArgumentValueError, match=said):
        fit([run(optimizer={"lr": 0.02})], tmp_path, resume=True)
    assert result(folder) == before


@pytest.mark.parametrize("finished", [True, False])
def test_other_texts(tmp_path, clock, finished):
    config = run(model={"vocab_size": 40})
    fit([config], tmp_path, max_minutes=None if finished else after(6))
    other = replace(corpus(), fingerprint="0" * 64)
    with pytest.raises(ArgumentValueError, match=r"output: .*the texts .* begun with, got other"):
        train([config], other, tmp_path, device="cpu", resume=True)


def test_an_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(FileError, match=r"no folder can be made here; name another with"):
            fit([run()], path)


def test_a_file_in_place_of_the_run(tmp_path):
    (tmp_path / "run-i0-d0").write_text("")
    with pytest.raises(FileError, match=r"run-i0-d0: could not be written \(.*; make room, or"):
        fit([run()], tmp_path)
