"""A run's folder: what is written comes back, what is damaged is named with what to do."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab import checkpoints
from elbowroom.lab.folder import (
    Company,
    End,
    RunFolder,
    companies,
    run_folders,
    saving,
    unfinished,
    writable,
)
from tests.lab.toy import corpus, run

TEXTS = "f" * 64
ONE = Company(("run-i0-d0",), TEXTS)
END = End(20, -1, [0.5, 0.25], 1.5)


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that was begun."""
    found = RunFolder(tmp_path / "runs" / "run-i0-d0")
    found.begin(run(), corpus().tokenizer, ONE)
    return found


def damaged(path, text):
    path.write_text(text)
    return path


# What it holds


def test_what_is_there_and_when(tmp_path):
    folder = RunFolder(str(tmp_path / "runs" / "run-i0-d0"))
    assert (folder.exists, folder.is_finished, folder.record) == (False, False, None)
    assert (folder.company, folder.end, folder.metrics()) == (None, None, [])
    folder.settle_metrics()  # nothing to settle
    with pytest.raises(FileError, match=r"run-i0-d0: no run here \(config.yaml is missing\); name"):
        folder.config()
    folder.begin(run(), corpus().tokenizer, ONE)
    assert (folder.exists, folder.is_finished) == (True, False)
    assert folder.company == ONE
    assert folder.config() == run()
    folder.append({"step": 5, "loss": None, "nll/ä": 0.5})
    folder.append({"step": 10})
    assert folder.metrics() == [{"step": 5, "loss": None, "nll/ä": 0.5}, {"step": 10}]
    folder.finish({"name": "run", "score": 1.5})
    assert folder.record == {"name": "run", "score": 1.5}
    assert (folder.is_finished, folder.company) == (True, ONE)
    folder.forget_state()
    assert (folder.is_finished, folder.company) == (True, None)
    folder.remove()
    assert not folder.path.exists()
    folder.remove()


def test_the_end_is_known_once_the_model_is_there(folder):
    tensors = {"weight": torch.arange(6.0).view(2, 3).T, "none": torch.empty(0)}
    folder.save_end(END)
    assert folder.end is None
    with pytest.raises(FileError, match=r"no whole model there \(.*; train the run to its end: "):
        folder.load_model()
    folder.save_model(tensors, 20)
    assert folder.end == END
    found, step = folder.load_model()
    assert step == 20
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], x) for name, x in tensors.items())
    (folder.state / "end.json").unlink()
    assert folder.end is None


def test_what_a_kill_left_is_removed_when_it_goes_on(folder):
    half = [folder.path / ".record.json.abc", folder.path / ".model.safetensors.xyz"]
    for path in half:
        path.write_text("half")
    kept = folder.path / "notes.txt"
    kept.write_text("mine")
    folder.append({"step": 5})
    folder.begin(run(), corpus().tokenizer, ONE)
    assert not any(path.exists() for path in half)
    assert kept.read_text() == "mine"
    assert folder.metrics() == [{"step": 5}]


def test_later_steps_are_forgotten(folder):
    for step in (5, 10, 10, 15):
        folder.append({"step": step, "text": "ä"})
    for step in (5, 10, 15):
        checkpoints.save(folder.state, step, {"x": torch.zeros(1)}, {}, keep=3)
    folder.forget_after(10)
    assert [line["step"] for line in folder.metrics()] == [5, 10, 10]
    assert "ä" in (folder.path / "metrics.jsonl").read_text(encoding="utf-8")
    assert checkpoints.steps(folder.state) == (5, 10)
    folder.forget_after(0)
    assert (folder.metrics(), checkpoints.steps(folder.state)) == ([], ())


# Whether it is the same run


CHANGES = [
    ({"optimizer": {"lr": 0.02}}, "optimizer.lr 0.01, got optimizer.lr 0.02"),
    ({"data": {"shares": [1, 1]}}, r"data.shares \[0.7, 0.3\], got data.shares \[1.0, 1.0\]"),
    ({"loss": {"margin": 1}}, "loss.margin.start inf, got loss.margin.start 1.0"),
    ({"evaluation": {"windows": None}}, "evaluation.windows 6, got evaluation.windows None"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_another_configuration(folder, change, said):
    folder.check(run(), TEXTS)
    with pytest.raises(ArgumentValueError, match=f"output: .* as it was begun, with {said}; name "):
        folder.check(run(**change), TEXTS)


def test_options_that_the_other_lacks(tmp_path):
    folder = RunFolder(tmp_path)
    rival = {"loss": {"name": "focal"}}
    folder.begin(run(**rival), corpus().tokenizer, ONE)
    rival["loss"]["options"] = {"gamma": 1}
    with pytest.raises(ArgumentValueError, match=r"with loss.options \{\}, got loss.options None"):
        folder.check(run(**rival), TEXTS)


def test_other_texts(folder):
    said = "output: expected the texts that run-i0-d0 was begun with, got other texts; name another"
    with pytest.raises(ArgumentValueError, match=said):
        folder.check(run(), "0" * 64)
    folder.finish({"corpus": TEXTS})
    folder.forget_state()
    folder.check(run(), TEXTS)
    with pytest.raises(ArgumentValueError, match=said):
        folder.check(run(), "0" * 64)


# Together


def begun(root, name, company=None, finished=False):
    folder = RunFolder(root / name)
    folder.begin(run(), corpus().tokenizer, company or Company((name,), TEXTS))
    if company is None:
        folder.forget_state()
    if finished:
        folder.finish({})
    return folder


def test_companies_are_known_from_any_of_them(tmp_path):
    pair = Company(("a", "b"), TEXTS)
    a = begun(tmp_path, "a", pair)
    b, c = RunFolder(tmp_path / "b"), RunFolder(tmp_path / "c")  # killed before these were begun
    assert companies([a, b, c]) == {"a": ("a", "b"), "b": ("a", "b")}
    later = Company(("b",), TEXTS)
    b.begin(run(), corpus().tokenizer, later)
    assert companies([a, b]) == {"a": ("a", "b"), "b": ("b",)}
    assert companies([]) == {}


def test_who_is_left(tmp_path):
    pair = Company(("a", "b"), TEXTS)
    folders = {
        "a": begun(tmp_path, "a", pair, finished=True),  # killed before b had its record
        "b": begun(tmp_path, "b", pair),
        "c": begun(tmp_path, "c", finished=True),
        "d": begun(tmp_path, "d", Company(("d", "e"), TEXTS), finished=True),  # e is not asked for
        "f": RunFolder(tmp_path / "f"),
    }
    company = companies(list(folders.values()))
    assert unfinished(folders, company) == {"a", "b", "f"}
    folders["b"].finish({})
    assert unfinished(folders, company) == {"f"}
    assert unfinished({}, company) == set()


# Damage


BROKEN_CONFIGS = {
    "": "expected a mapping of settings, got nothing",
    "name: [": "not valid YAML: ",
    "name: a\nname: b": "the key 'name' stands twice",
    "model: {layer: 3}": "model.layer: expected one of .*; did you mean 'layers'",
    "model: {layers: few}": "model.layers: expected an integer, got 'few'",
    "training: {steps: 0}": "training.steps: expected",
}


@pytest.mark.parametrize("text", BROKEN_CONFIGS)
def test_a_damaged_configuration(folder, text):
    path = damaged(folder.path / "config.yaml", text)
    with pytest.raises(FileError) as caught:
        folder.config()
    said = str(caught.value)
    assert said.startswith(f"{path}: not as a run wrote it (")
    assert said.count(str(path)) == 1
    assert said.endswith("); put back what it was, or remove the run's folder to train it again")
    with pytest.raises(FileError, match=BROKEN_CONFIGS[text]):
        folder.check(run(), TEXTS)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": "', "\x00"])
def test_a_damaged_record(folder, text):
    path = damaged(folder.path / "record.json", text)
    said = r": (not readable as JSON \(.*\)|expected a JSON object); remove this file and go on "
    with pytest.raises(FileError, match=said) as caught:
        _ = folder.record
    assert str(caught.value).startswith(f"{path}: ")


def test_a_record_that_is_a_folder(folder):
    (folder.path / "record.json").mkdir()
    with pytest.raises(FileError, match=r"record.json: not readable as JSON \(.*directory"):
        _ = folder.record


def test_other_fields_in_the_state(folder):
    folder.save_model({"x": torch.zeros(1)}, 20)
    fix = "remove this file and go on with --resume"
    for content in ({}, asdict(END) | {"more": 1}, {"done": 20}):
        damaged(folder.state / "end.json", json.dumps(content))
        names = "best_loss, best_step, died_at, done, kept, seconds"
        said = f"end.json: expected a JSON object with {names}; {fix}"
        with pytest.raises(FileError, match=said):
            _ = folder.end
    damaged(folder.state / "company.json", '{"runs": ["a"]}')
    with pytest.raises(FileError, match=f"expected a JSON object with corpus, runs; {fix}"):
        _ = folder.company


@pytest.mark.parametrize("rest", [b'{"step": 15', b"{", '"ä'.encode()[:-1], b'{"step": 15}'])
def test_a_last_line_that_was_cut_off(folder, rest):
    for step in (5, 10):
        folder.append({"step": step})
    with (folder.path / "metrics.jsonl").open("ab") as file:
        file.write(rest)
    assert [line["step"] for line in folder.metrics()] == [5, 10]
    folder.forget_after(15)
    assert (folder.path / "metrics.jsonl").read_text() == '{"step": 5}\n{"step": 10}\n'


@pytest.mark.parametrize("line", [b'{"step": 15', b"", b"[5]", b'{"loss": 1}', b'{"step": "5"}'])
def test_a_damaged_line_before_others(folder, line):
    path = folder.path / "metrics.jsonl"
    whole = b'{"step": 5}\n' + line + b'\n{"step": 10}\n'
    path.write_bytes(whole)
    said = "line 2 is damaged; put it back or remove it, and go on with --resume"
    for read in (folder.metrics, lambda: folder.forget_after(5)):
        with pytest.raises(FileError, match=said) as caught:
            read()
        assert str(caught.value).startswith(f"{path}: ")
    assert path.read_bytes() == whole


def test_a_model_that_was_cut_off(folder):
    folder.save_model({"x": torch.zeros(100)}, 20)
    path = folder.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"model.safetensors: no whole model there \("):
        folder.load_model()


# Places


def test_runs_in_a_folder(tmp_path):
    for name in ("b", "a"):
        begun(tmp_path / "runs", name)
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    assert [found.path.name for found in run_folders(tmp_path / "runs")] == ["a", "b"]
    assert [found.path.name for found in run_folders(str(tmp_path / "runs" / "a"))] == ["a"]
    for path in (tmp_path, tmp_path / "none", tmp_path / "runs" / "file"):
        with pytest.raises(FileError, match=r": no runs here; name a folder that elbowroom train"):
            run_folders(path)


def test_where_a_folder_can_be_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, tmp_path / "a" / "b", Path("a"), Path()):
        writable(path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", Path("file"), Path("file/a/b")):
        with pytest.raises(FileError, match=f"^{path}: no folder can be made here; name another "):
            writable(path)


def test_where_no_folder_can_be_made(tmp_path, monkeypatch):
    """Also one that others may not even look into; root may, so this is played."""
    access, stat, shut = os.access, Path.stat, ("closed", "inside")

    def closed(path, **options):
        if path.name == "inside":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **options)

    (tmp_path / "closed" / "inside").mkdir(parents=True)
    monkeypatch.setattr(Path, "stat", closed)
    monkeypatch.setattr(os, "access", lambda p, mode: p.name not in shut and access(p, mode))
    for path in (tmp_path / "closed", tmp_path / "closed" / "inside"):
        with pytest.raises(FileError, match=f"{path}: no folder can be made here; name another "):
            writable(path)
    writable(tmp_path / "open")


def test_what_the_system_says_becomes_what_to_do(tmp_path):
    fix = "make room, or see to the disk, and go on with --resume; what was saved is intact"
    for error, said in (
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError("it is odd"), "it is odd"),
    ):
        with pytest.raises(FileError) as caught, saving(tmp_path / "x"):
            raise error
        assert str(caught.value) == f"{tmp_path / 'x'}: could not be written ({said}); {fix}"
        assert caught.value.__cause__ is error
    with pytest.raises(ZeroDivisionError), saving(tmp_path / "x"):
        raise ZeroDivisionError


def test_a_line_is_on_the_disk_once_settled(folder, monkeypatch):
    folder.append({"step": 5})
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    folder.settle_metrics()
    assert synced == [(folder.path / "metrics.jsonl").stat().st_ino]


def test_what_was_begun_stays_when_there_is_no_room(folder, monkeypatch):
    before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    tensors = {"x": torch.zeros(1)}
    for work in (
        lambda: folder.begin(run(), corpus().tokenizer, replace(ONE, runs=("other",))),
        lambda: folder.save_end(END),
        lambda: folder.save_model(tensors, 20),
        lambda: folder.finish({}),
        lambda: folder.forget_after(5),
    ):
        with pytest.raises(FileError, match=r"could not be written \(No space left on device\)"):
            work()
    assert {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()} == before
