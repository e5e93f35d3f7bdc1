from __future__ import annotations

import json
import math
import os
import stat
import subprocess
from pathlib import Path

import pytest

from elbowroom import provenance as module
from elbowroom.errors import FileError
from elbowroom.provenance import provenance, version, write_json


def test_says_what_a_result_depends_on() -> None:
    got = provenance("elbowroom margin closed", seed=3)
    assert got["command"] == "elbowroom margin closed"
    assert got["seed"] == 3
    assert set(got["versions"]) == {"elbowroom", "torch", "python"}
    assert got["hardware"]["cores"] == os.cpu_count()
    json.dumps(got)


def test_names_no_path_of_this_machine() -> None:
    text = json.dumps(provenance("x"))
    assert str(Path.cwd()) not in text
    assert str(Path.home()) not in text


def test_version_of_a_tree_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise module.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(module.metadata, "version", missing)
    assert version() == "unknown"


def _checkout(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = root / "src" / "elbowroom"
    package.mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(package / "provenance.py"))


def test_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _checkout(tmp_path, monkeypatch)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert provenance("x")["commit"] is None  # nothing is committed yet
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    clean = provenance("x")["commit"]
    assert len(clean["id"]) == 40
    assert clean["modified"] is False
    (tmp_path / "new").write_text("")
    assert provenance("x")["commit"] == {"id": clean["id"], "modified": True}


def test_another_projects_repository_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lib" / "site-packages" / "elbowroom"
    package.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(module, "__file__", str(package / "provenance.py"))
    assert provenance("x")["commit"] is None


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _checkout(tmp_path, monkeypatch)
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", "")
    assert provenance("x")["commit"] is None


def test_a_system_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert provenance("x")["hardware"]["cpu"]


def test_writes_all_of_a_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "new" / "folder" / "x.json", {"ä": 1.5})
    assert json.loads(path.read_text(encoding="utf-8")) == {"ä": 1.5}
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_json(tmp_path / "x.json", {"old": 1})

    def killed(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"new": 2})
    assert json.loads(path.read_text()) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_refuses_what_is_no_json(tmp_path: Path, value: object) -> None:
    with pytest.raises(FileError, match="not plain JSON data"):
        write_json(tmp_path / "x.json", {"x": value})
    assert list(tmp_path.iterdir()) == []


def test_refuses_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="got a folder"):
        write_json(tmp_path, {})


def test_a_copy_without_history_can_be_told_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "__file__", str(tmp_path / "src" / "x" / "p.py"))
    assert module._commit() is None
    monkeypatch.setenv("ELBOWROOM_COMMIT", "abc123")
    assert module._commit() == {"id": "abc123", "modified": None}
