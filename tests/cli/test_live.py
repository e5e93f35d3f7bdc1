"""What training shows: on a terminal, in a pipe, and if it is to be quiet."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from elbowroom.cli import live as module
from elbowroom.cli.live import Live, Plain, clock, means, watching
from elbowroom.lab.config import RunConfig
from elbowroom.lab.trainer import Event
from tests.cli.lab import TINY

Capture = pytest.CaptureFixture[str]
RUNS = (RunConfig(name="ce"), RunConfig(name="ce", init_seed=1), RunConfig(name="ours"))
START = Event(kind="start", runs=RUNS, step=0, steps=100, population=1, populations=2)


def log(step: int = 50, **values: Any) -> Event:
    """What is reported of three runs, the losses of which are 1, 3 and 5."""
    lines = tuple({"step": step, "loss": x, "kept": 0.5, "lr": 0.1, **values} for x in (1, 3, 5))
    common = {"tokens_per_second": 12345.6, "seconds_left": 75.0, "lines": lines}
    return replace(START, kind="log", step=step, **common)


def evaluation() -> Event:
    scores = ({"de": {"ppl": ppl, "nll": 1.0}} for ppl in (4.0, 6.0, None))
    lines = tuple({"step": 50, "eval": found} for found in scores)
    return replace(START, kind="eval", step=50, lines=lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0:00"), (59.6, "1:00"), (75, "1:15"), (3600, "1:00:00")],
)
def test_seconds_as_people_read_them(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


def test_means_are_over_the_runs_of_a_method_that_have_a_number() -> None:
    assert means(log()) == {"ce": {"loss": 2, "kept": 0.5}, "ours": {"loss": 5, "kept": 0.5}}
    assert means(evaluation()) == {"ce": {"ppl de": 5.0}, "ours": {}}
    event = log()
    broken = replace(event, lines=({**event.lines[0], "loss": None}, *event.lines[1:]))
    assert means(broken)["ce"] == {"loss": 3, "kept": 0.5}


def test_lines_in_a_pipe_now_and_then(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    plain = Plain()
    for event in (START, log(10), log(20), evaluation()):
        plain(event)
    now[0] += module.QUIET_SECONDS + 1
    done = [replace(START, kind=kind, step=100) for kind in ("save", "judge", "done")]
    for event in (log(60), *done, replace(START, kind="warning", message="a disk")):
        plain(event)
    for share in (0.125, 0.25, 0.5):  # the second comes too soon
        now[0] += module.QUIET_SECONDS * (0.5 if share == 0.25 else 1.1)
        plain(replace(START, kind="judging", step=100, judged=share))
    out, err = capsys.readouterr()
    assert not out
    assert err.splitlines() == [
        "[1/2] step 0/100: training 3 runs (ce, ours)",
        "[1/2] step 10/100, 12,346 tokens/s, 1:15 left: ce loss 2 kept 0.5; ours loss 5 kept 0.5",
        "[1/2] step 60/100, 12,346 tokens/s, 1:15 left: "
        "ce loss 2 kept 0.5 ppl de 5; ours loss 5 kept 0.5",
        "[1/2] step 100/100: evaluating 3 runs (ce, ours)",
        "[1/2] step 100/100: done 3 runs (ce, ours)",
        "[1/2] step 0/100: warning: a disk",
        "[1/2] step 100/100: evaluated 12% of the held-out text",
        "[1/2] step 100/100: evaluated 50% of the held-out text",
    ]


def test_quiet_is_silent_but_for_warnings(capsys: Capture) -> None:
    with watching(quiet=True) as observer:
        for event in (START, log(), evaluation(), replace(START, kind="done")):
            observer(event)
        assert capsys.readouterr() == ("", "")
        observer(replace(START, kind="warning", message="a disk"))
    assert capsys.readouterr().err == "[1/2] step 0/100: warning: a disk\n"


class Screen:
    """Stands in for rich's live display: keeps what was drawn last, as lines of text."""

    def __init__(self, width: int = 80) -> None:
        self.file = io.StringIO()
        self.console = Console(file=self.file, width=width)

    def update(self, drawing: Any) -> None:
        self.file.seek(0)
        self.file.truncate()
        self.console.print(drawing)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.file.getvalue().splitlines()]


def test_the_table_on_a_terminal() -> None:
    screen = Screen()
    live = Live(screen)
    live(START)
    assert screen.lines[0] == "training 3 runs (1 of 2), step 0/100"
    assert len(screen.lines) == 2  # nothing is known yet
    live(log())
    live(evaluation())
    live(log(60))
    head, bar, *table = screen.lines
    assert head == "training 3 runs (1 of 2), step 60/100, 12,346 tokens/s, 1:15 left"
    assert set(bar) <= set("━╸╺ ")
    assert [line.split() for line in table] == [
        ["method", "loss", "kept", "ppl", "de"],
        ["ce", "2", "0.5", "5"],
        ["ours", "5", "0.5"],
    ]


def test_the_table_keeps_what_is_over_and_says_what_is_done() -> None:
    screen = Screen()
    live = Live(screen)
    live(log())
    other = replace(log(), runs=(RunConfig(name="c"),), lines=({"step": 9, "loss": 9.0},))
    live(replace(other, population=2))
    assert [line.split()[0] for line in screen.lines[2:]] == ["method", "ce", "ours", "c"]
    for kind, words in (("judge", "evaluating"), ("save", "saving"), ("done", "done with")):
        live(replace(START, kind=kind, runs=RUNS[:1], populations=1))
        assert screen.lines[0] == f"{words} 1 run, step 0/100"
    live(replace(START, kind="judging", runs=RUNS[:1], populations=1, judged=0.5))
    assert screen.lines[0] == "evaluating 1 run, step 0/100, 50% of the held-out text"


def test_a_warning_stays_above_the_table() -> None:
    screen = Screen()
    live = Live(screen)
    live(replace(START, kind="warning", message="[red] is a name"))
    assert screen.lines == ["warning: [red] is a name"]


def test_only_the_first_of_several_processes_draws(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module, "is_first", lambda: False)
    with watching() as observer:
        assert isinstance(observer, Plain)
    monkeypatch.setattr(module, "is_first", lambda: True)
    with watching() as observer:
        assert isinstance(observer, Live)
        observer(log())
    assert "12,346 tokens/s" in capsys.readouterr().err


def test_in_a_real_terminal(home: Path) -> None:
    leader, follower = pty.openpty()
    arguments = ["train", *TINY, "--training.steps", "4", "--output", "runs"]
    done = subprocess.run(
        [sys.executable, "-m", "elbowroom.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80"},
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
    assert done.returncode == 0, seen.decode()
    assert done.stdout.startswith("runs/run-i0-d0  done  de: ppl ")
    lines = [x.strip() for x in re.sub(r"\x1b\[[?\d;]*\w", "", seen.decode()).split("\r")]
    assert any(line.startswith("done with 1 run, step 4/4") for line in lines)
    assert any(line.startswith("method") for line in lines)
