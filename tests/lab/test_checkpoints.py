"""Checkpoints: what goes in comes out; kills, damage and full disks cost the newest at most."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elbowroom.errors import ArgumentTypeError, ArgumentValueError, FileError
from elbowroom.lab import checkpoints
from elbowroom.lab.checkpoints import MANIFEST, META, TENSORS, load, save, steps

ROOT = Path(__file__).parents[2]
META_DATA = {"seed": 3, "names": ["a", "ä"], "loss": None}


def some(step):
    return {"weight": torch.full((50,), float(step)), "step": torch.tensor(step)}


def save_three(folder):
    for step in (1, 2, 3):
        save(folder, step, some(step), {"step": step}, keep=3)
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_goes_in_comes_out(tmp_path):
    base = torch.randn(4, 6)
    tensors = {
        "plain": base,
        "tied": base,
        "row": base[1],
        "strided": base.T[::2],
        "scalar": torch.tensor(3),
        "flags": torch.tensor([True, False]),
        "half": torch.randn(3).bfloat16(),
        "double": torch.randn(2, dtype=torch.float64),
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "empty": torch.empty(0, 3),
        "also empty": torch.empty(0),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "expanded": torch.ones(1).expand(3),
        "large": torch.tensor(2**62 + 1),
    }
    path = save(tmp_path / "new" / "state", 12, tensors, META_DATA)
    assert path == tmp_path / "new" / "state" / "step-000000012"
    found = load(path.parent)
    assert (found.step, found.meta, found.path) == (12, META_DATA, path)
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        torch.testing.assert_close(
            found.tensors[name], tensor.detach(), rtol=0, atol=0, equal_nan=True
        )
    assert str(found.tensors["nan"][1].item()) == "-0.0"


def test_the_newest_stay(tmp_path):
    for step in (5, 10, 15, 1_000_000_000):
        save(tmp_path, step, some(step), {})
    assert steps(tmp_path) == (15, 1_000_000_000)
    assert load(tmp_path).step == 1_000_000_000
    assert load(tmp_path, 15).step == 15
    save(tmp_path, 20, some(20), {}, keep=1)  # after going back: what was just saved stays
    assert steps(tmp_path) == (20,)
    assert names(tmp_path) == ["step-000000020"]


def test_the_same_step_is_replaced(tmp_path):
    for value in (1, 2):
        save(tmp_path, 7, some(value), {"value": value})
    assert load(tmp_path).meta == {"value": 2}
    assert names(tmp_path) == ["step-000000007"]


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def as_of_another_step(path):
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"step": 4}))


def newer_format(path):
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"format": 2}))


DAMAGE = [
    *((name, how) for name in (TENSORS, META) for how in (flip, cut, Path.unlink)),
    *((MANIFEST, how) for how in (cut, Path.unlink, as_of_another_step, newer_format)),
    (MANIFEST, lambda path: path.write_text("[]")),
    (MANIFEST, lambda path: path.write_text('{"format": 1, "step": 3, "sha256": {}}')),
]


@pytest.mark.parametrize(("name", "how"), DAMAGE)
def test_damage_is_found_and_the_one_before_used(tmp_path, name, how):
    save_three(tmp_path)
    how(tmp_path / "step-000000003" / name)
    messages = []
    found = load(tmp_path, on_damage=messages.append)
    assert found.step == 2
    assert torch.equal(found.tensors["weight"], some(2)["weight"])
    assert len(messages) == 1
    assert "step-000000003: " in messages[0]
    assert load(tmp_path).step == 2  # nobody wants to know
    with pytest.raises(FileError, match=r"there is no good checkpoint of step 3; .*000003: "):
        load(tmp_path, 3)


@pytest.mark.parametrize("place", [0.0, 0.1, 0.4, 0.9])
def test_any_flipped_byte_of_any_file_is_found(tmp_path, place):
    save(tmp_path, 3, some(3), {"step": 3})
    for name in (TENSORS, META, MANIFEST):
        path = tmp_path / "step-000000003" / name
        whole = path.read_bytes()
        data = bytearray(whole)
        data[int(place * len(data))] ^= 0x10
        path.write_bytes(data)
        try:
            found = load(tmp_path)
        except FileError:
            pass
        else:  # white space in the manifest
            assert found.step == 3
            assert torch.equal(found.tensors["weight"], some(3)["weight"])
            assert name == MANIFEST
        path.write_bytes(whole)


def test_files_that_are_whole_and_no_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints.safetensors.torch, "save", lambda _: b"not safetensors")
    save(tmp_path, 1, {}, {})
    with pytest.raises(FileError, match="cannot be read"):
        load(tmp_path)


def test_damaged_ones_do_not_count_when_old_ones_go(tmp_path):
    save_three(tmp_path)
    flip(tmp_path / "step-000000003" / TENSORS)
    save(tmp_path, 4, some(4), {})
    assert steps(tmp_path) == (2, 3, 4)
    save(tmp_path, 5, some(5), {})
    assert steps(tmp_path) == (4, 5)


def test_nothing_there(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        assert steps(folder) == ()
        with pytest.raises(FileError, match="there is no checkpoint; start"):
            load(folder)
    (tmp_path / "step-1").mkdir()  # no name of a checkpoint
    (tmp_path / "step-000000001").write_text("no folder")
    assert steps(tmp_path) == ()
    with pytest.raises(FileError, match="there is no checkpoint of step 5;"):
        load(save_three(tmp_path / "other"), 5)


def full(*_args, **_kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFile:
    """A file on a disk that takes no more: a few bytes are written, then it fails."""

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.file.write(data[:10])
        full()


def disk_full_at(monkeypatch, where):
    if where == "write":
        opened = Path.open
        monkeypatch.setattr(Path, "open", lambda *a, **k: FullFile(opened(*a, **k)))
    elif where == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, where, full)


@pytest.mark.parametrize("where", ["write", "fsync", "mkdir", "rename"])
def test_a_full_disk_leaves_the_earlier_one(tmp_path, monkeypatch, where):
    save(tmp_path, 1, some(1), {})
    with monkeypatch.context() as patch:
        disk_full_at(patch, where)
        with pytest.raises(FileError) as caught:
            save(tmp_path, 2, some(2), {})
    text = str(caught.value)
    assert "step 2 could not be saved (No space left on device); it needs 0.0 MiB, and" in text
    assert "MiB are free; the one of step 1 is intact; make room, or choose" in text
    assert names(tmp_path) == ["step-000000001"]
    assert load(tmp_path).step == 1


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        FileError, match=r"could not be saved .*; there is no earlier one; make room"
    ):
        save(tmp_path / "file" / "state", 1, some(1), {})


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1, some(1), {})
    assert names(tmp_path) == []


def test_an_old_one_that_cannot_be_removed_does_no_harm(tmp_path, monkeypatch):
    save_three(tmp_path)
    rename = Path.rename

    def stuck(self, target):
        return full() if "removed" in str(target) else rename(self, target)

    monkeypatch.setattr(Path, "rename", stuck)
    save(tmp_path, 4, some(4), {})
    assert steps(tmp_path) == (1, 2, 3, 4)


def test_what_killed_processes_left_is_removed(tmp_path):
    save_three(tmp_path)
    for name in (".partial-step-000000009", ".replaced-step-000000003", ".replaced-step-000000001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / META).write_text("{}")
    (tmp_path / "step-000000002").rename(tmp_path / ".replaced-step-000000002")
    assert load(tmp_path, 2).meta == {"step": 2}  # set aside, its successor never came
    save(tmp_path, 4, some(4), {}, keep=4)
    expected = [f"step-00000000{i}" for i in (1, 3, 4)]
    assert names(tmp_path) == [".replaced-step-000000002", *expected]
    save(tmp_path, 2, some(2), {}, keep=4)
    assert names(tmp_path) == ["step-000000001", "step-000000002", *expected[1:]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_every_moment(tmp_path):
    command = [sys.executable, "-m", "tests.lab.killed", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 20


@pytest.mark.usefixtures("unchecked")
def test_bad_arguments(tmp_path):
    with pytest.raises(ArgumentValueError, match=r"^step: expected"):
        save(tmp_path, -1, {}, {})
    with pytest.raises(ArgumentValueError, match=r"^keep: expected"):
        save(tmp_path, 1, {}, {}, keep=0)
    with pytest.raises(ArgumentTypeError, match=r"^tensors\['a'\]: expected a tensor"):
        save(tmp_path, 1, {"a": 1.0}, {})
    for meta in ({"x": float("nan")}, {"x": {1}}):
        with pytest.raises(ArgumentValueError, match=r"^meta: expected plain data for JSON"):
            save(tmp_path, 1, {}, meta)
    assert names(tmp_path) == []
