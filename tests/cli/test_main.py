from __future__ import annotations

import importlib
import os
import pty
import subprocess
import sys
from types import ModuleType

import pytest

from elbowroom.cli import main as module
from elbowroom.cli.main import COMMANDS, UsageError, main

COLD = ("--min-p", "0.1", "--temperature", "0")  # what the library refuses, not the command


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert not err
    assert all(name in out for name in COMMANDS)
    assert "examples:" in out


def test_every_command_has_a_module_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        out, err = capsys.readouterr()
        assert f"elbowroom {name}" in out
        assert "For example" in out
        assert not err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("elbowroom ")


def error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run, expect exit code 2 and one line on stderr; return the line."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert err.startswith("elbowroom: ")
    return err


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'margin'" in error(["margn"], capsys)
    assert f"commands: {', '.join(COMMANDS)}" in error(["zzz"], capsys)
    assert "see elbowroom margin --help" in error(["margin"], capsys)
    assert "--topp" in error(["margin", "closed", "--topp", "3"], capsys)
    assert "temperature: expected" in error(["margin", "closed", *COLD], capsys)


def test_a_wrong_value_is_named_without_pythons_types(capsys: pytest.CaptureFixture[str]) -> None:
    line = error(["margin", "closed", "--vocab-size", "many"], capsys)
    assert "--vocab-size" in line
    assert "many" in line
    assert "None" not in line


BOX = """\
╭─ Value error ──────────╮
│ Error parsing --x: no  │
│ {None}|INT in 'a'.     │
│                        │
│ Got errors:            │
│ - <class 'int'>        │
│ ────────────────────── │
│ see elbowroom margin   │
│ closed --help          │
╰────────────────────────╯
"""
PLAIN = BOX.replace("╭─ Value error ──────────╮", " Value error\n ---------").replace("─", "-")
PLAIN = "\n".join(line.strip("│╰╯ ") for line in PLAIN.splitlines())


@pytest.mark.parametrize("text", [BOX, PLAIN])
def test_boxes_of_both_kinds_become_one_line(text: str) -> None:
    line = "Error parsing --x: no INT in 'a'; see elbowroom margin closed --help"
    assert module._unbox(text, "elbowroom margin") == line


def test_a_box_of_a_third_kind_still_points_to_help() -> None:
    assert module._unbox("", "elbowroom x").endswith("understood; see elbowroom x --help")


@pytest.mark.parametrize("place", [0, 1, 2, 6])
def test_debug_may_stand_anywhere(place: int) -> None:
    arguments = ["margin", "closed", *COLD]
    arguments.insert(place, "--debug")
    with pytest.raises(ValueError, match="temperature"):
        main(arguments)


def test_debug_changes_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["margin", "closed", "--debug", "--min-p", "0.5"]) == 0
    assert "margin: 0.6931" in capsys.readouterr().out


class _Fails:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run(self) -> None:
        raise self.error


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    monkeypatch.setattr(module, "_load", lambda name: ModuleType("x"))
    monkeypatch.setattr(module, "_parse", lambda *_: _Fails(error))


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (RuntimeError("a\nb"), "unexpected RuntimeError: a b; run again with --debug"),
        (PermissionError(13, "Permission denied", "f.json"), "f.json: Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (UsageError("x y"), "x y"),
    ],
)
def test_how_errors_are_worded(
    raised: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _failing(monkeypatch, raised)
    assert words in error(["margin"], capsys)


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _failing(monkeypatch, KeyboardInterrupt())
    assert main(["margin"]) == 130
    assert capsys.readouterr().err == "elbowroom: interrupted\n"


@pytest.mark.parametrize("package", ["tyro", "rich"])
def test_a_missing_package_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(importlib, "import_module", missing)
    line = error(["margin", "closed"], capsys)
    assert f"needs the package {package!r}" in line
    assert f"pip install {package}" in line


def test_without_tyro_in_earnest() -> None:
    """A finder that knows no tyro, in a fresh process; help and version need none."""
    code = (
        "import sys; sys.modules['tyro'] = None\n"
        "from elbowroom.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "sys.exit(main(['margin', 'closed']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs the package 'tyro'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_our_own_missing_module_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "absent", "a command without a module")
    with pytest.raises(ModuleNotFoundError):
        main(["absent", "--debug"])


def test_a_reader_that_leaves_early() -> None:
    """The pipe is closed before anything is written: no traceback, no complaint."""
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from elbowroom.cli.main import main; sys.exit(main(['--help']))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 0


def test_the_terminal_gets_a_table() -> None:
    leader, follower = pty.openpty()
    code = (
        "import sys; from elbowroom.cli.main import main\n"
        "sys.exit(main(['margin', 'init', '--vocab-size', '50', '--width', '8']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=follower, stderr=follower, check=False
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # Linux reports the closed end so
            break
        if not chunk:
            break
        seen += chunk
    os.close(leader)
    text = seen.decode()
    assert done.returncode == 0, text
    assert "margin" in text
    assert "──" in text
    assert "50 x 8" in text
