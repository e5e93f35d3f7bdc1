"""Small texts and small models for the tests of commands, which run in this process."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from elbowroom.cli.main import main

WORDS = ("the", "cat", "sat", "on", "a", "mat", "dog", "ran", "quickly", "up")
SMALL = ("--model.layers", "1", "--model.heads", "2", "--model.width", "8", "--model.context", "8")
SHORT = ("--training.batch", "2", "--training.log_every", "2", "--training.eval_every", "4")
FEW = ("--evaluation.windows", "4", "--evaluation.temperatures", "4", "--training.eval_windows=2")
TINY = ("--data.source", "texts", "--threads", "1", *SMALL, *SHORT, *FEW)
SIZE = ("--layers", "1", "--heads", "2", "--width", "8", "--context", "8", "--batch", "2")
PLAN = """\
seeds: 2
base:
  data: {source: texts}
  model: {layers: 1, heads: 2, width: 8, context: 8}
  training: {steps: 6, batch: 2, log_every: 2, eval_every: 4, eval_windows: 2}
  evaluation: {windows: 4, temperatures: 4}
runs:
  - {name: ce}
  - {name: ours, loss: {margin: 1}}
"""


def settle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write texts into a folder, and make it the working folder and the cache."""
    monkeypatch.setenv("ELBOWROOM_CACHE", str(folder / "cache"))
    monkeypatch.chdir(folder)
    (folder / "texts").mkdir()
    draw = random.Random(0)
    english = " ".join(draw.choice(WORDS) for _ in range(300))
    (folder / "texts" / "en.txt").write_text(english, encoding="utf-8")
    german = english[:900].replace("a", "ä").replace("u", "ü")
    (folder / "texts" / "de.txt").write_text(german, encoding="utf-8")
    (folder / "plan.yaml").write_text(PLAN, encoding="utf-8")
    return folder


def train(*arguments: str, steps: int = 6) -> int:
    """Train one small run in ``runs/`` and return the exit code."""
    return main(["train", *TINY, "--training.steps", str(steps), "--output", "runs", *arguments])


def compare(texts: str, *arguments: str) -> int:
    """Compare small models and return the exit code."""
    few = ("--seeds", "2", "--steps", "6", "--windows", "4", "--threads", "1")
    return main(["compare", texts, *SIZE, *few, "--tokenizer", "characters", *arguments])


def line_of_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run, expect exit code 2, nothing on stdout and one line on stderr; return the line."""
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert err.startswith("elbowroom: ")
    return err


def record(folder: Path) -> dict[str, Any]:
    """Return the record of a finished run."""
    found: dict[str, Any] = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return found


def weights(folder: Path) -> dict[str, bytes]:
    """Return the bytes of the weights of all runs in a folder."""
    return {x.parent.name: x.read_bytes() for x in sorted(folder.glob("*/model.safetensors"))}
