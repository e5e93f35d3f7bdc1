"""Training that is killed at random moments and goes on: the bits of training that nothing stopped.

Four small runs, three of them in one population, are trained without a stop, twice. Then, thirty
times, children that train them are killed by SIGKILL, at any moment or while a checkpoint is being
written, one to three times; and this process trains to the end what they left. Weights are compared
byte by byte, metrics and records number by number, without times::

    python benchmarks/bench_kill.py
    python benchmarks/bench_kill.py --repetitions 3     # a quick look

The texts are made up here. Needs a system that can fork: Linux, macOS. Writes evidence/kill.json
and fails if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from elbowroom.lab import checkpoints
from elbowroom.lab.config import RunConfig, merge, run_config
from elbowroom.lab.corpora import Document, Pair
from elbowroom.lab.corpora.texts import Texts
from elbowroom.lab.folder import RunFolder, run_folders
from elbowroom.lab.tokens import Corpus, prepare
from elbowroom.lab.trainer import Event, Outcome, train
from elbowroom.provenance import provenance, write_json

TIMES = ("seconds", "tokens_per_second", "wall_seconds", "provenance")
BASE: dict[str, Any] = {
    "model": {"layers": 2, "heads": 2, "width": 32, "context": 16},
    "optimizer": {"warmup": 10},
    "training": {"steps": 120, "log_every": 5, "eval_every": 20, "checkpoint_every": 10},
    "evaluation": {"windows": 20, "temperatures": 20, "bins": 4},
}
CHANGES: list[dict[str, Any]] = [
    {"name": "plain"},
    {"name": "annealed", "loss": {"margin": {"start": 0.3, "end_top_p": 0.999}}},
    {"name": "counts", "loss": {"name": "agg", "count_steps": 7}},
    {
        "name": "rows",
        "loss": {"margin": 1.0},
        "model": {"tied": False},
        "optimizer": {"name": "row_adamw", "catch_up": True},
    },
]


def texts() -> Corpus:
    """Return a text of made-up words and its twin."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(1, 7))) for _ in range(200)]
    text = " ".join(words[int(200 * draw.random() ** 3)] for _ in range(8000))
    document = Document.from_text("made up", text)
    made = Texts(name="made up", documents={"en": (document,)})
    return prepare(made.paired(Pair()), "characters", context=16)


class Training:
    """The runs, what they are trained on, and how they end when nothing stops them."""

    def __init__(self, root: Path) -> None:
        self.root, self.corpus = root, texts()
        self.runs: list[RunConfig] = [run_config(merge(BASE, change)) for change in CHANGES]
        self.told: list[Event] = []
        first = self.train("first")  # warms up
        start = time.monotonic()
        self.expected = self.train("whole")
        self.seconds = round(time.monotonic() - start, 2)
        assert all(self.same(first).values()), "without a stop it is not the same twice"

    def train(self, name: str) -> Outcome:
        """Begin or go on."""
        self.told = []
        return train(
            self.runs,
            self.corpus,
            self.root / name,
            device="cpu",
            resume=True,
            observer=self.told.append,
        )

    def same(self, outcome: Outcome) -> dict[str, bool]:
        """Tell what is the same as without a stop, in all runs."""
        pairs = list(zip(outcome.folders, self.expected.folders, strict=True))
        return {
            name: all(what(a) == what(b) for a, b in pairs)
            for name, what in (
                ("files", lambda f: sorted(path.name for path in f.path.iterdir())),
                ("weights", lambda f: (f.path / "model.safetensors").read_bytes()),
                ("metrics", lambda f: [timeless(line) for line in f.metrics()]),
                ("record", lambda f: timeless(f.record or {})),
            )
        }


def timeless(values: dict[str, Any]) -> str:
    """Return plain data without what depends on the clock; a text, in which -0 is not 0."""
    return json.dumps({k: v for k, v in values.items() if k not in TIMES}, sort_keys=True)


def kill(training: Training, name: str, draw: random.Random, aim: str) -> dict[str, Any] | None:
    """Train in a child and kill it; return when, and what it left. None: it had finished before."""
    wait = draw.uniform(0.02, 0.98) * training.seconds
    more = draw.uniform(0.0, 0.003)  # into the writing of a checkpoint
    child = os.fork()
    if not child:
        code = 1
        try:
            training.train(name)
            code = 0
        finally:
            os._exit(code)
    start = time.monotonic()
    ended = 0
    while not ended and time.monotonic() < start + wait:
        time.sleep(0.0005)
        ended, status = os.waitpid(child, os.WNOHANG)
    if aim == "while a checkpoint is written":
        while not ended and not partial(training.root / name):
            ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(more)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    after = round(time.monotonic() - start, 4)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, "a child failed by itself"
        return None
    assert os.WTERMSIG(status) == signal.SIGKILL
    return {"aim": aim, "after_seconds": after} | left(training.root / name)


def partial(root: Path) -> list[Path]:
    """Return the checkpoints that are half written."""
    return list(root.glob("*/state/.partial-step-*"))


def left(root: Path) -> dict[str, Any]:
    """Describe what a killed child left: which part it was in, and what there is to go on from."""
    folders = run_folders(root) if any(root.glob("*/config.yaml")) else []
    marks = {
        "a checkpoint half written": partial(root),
        "an old checkpoint half removed": list(root.glob("*/state/.partial-removed-*")),
        "a file half written": list(root.glob("*/.*.*")) + list(root.glob("*/state/.*.json.*")),
        "a line half written": [f for f in folders if cut_off(f)],
    }
    found = [mark for mark, where in marks.items() if where]
    state = {f.path.name: list(checkpoints.steps(f.state)) for f in folders}
    finished = [f.path.name for f in folders if f.is_finished]
    return {"left": found or ["nothing in part"], "checkpoints": state, "finished": finished}


def cut_off(folder: RunFolder) -> bool:
    path = folder.path / "metrics.jsonl"
    return path.exists() and not (path.read_bytes() or b"\n").endswith(b"\n")


def repeat(training: Training, number: int, seed: int) -> dict[str, Any]:
    """Kill, go on, compare; once more with other moments where the child was always faster."""
    draw, name = random.Random(f"{seed} {number}"), f"killed {number}"
    kills: list[dict[str, Any]] = []
    while not kills:
        shutil.rmtree(training.root / name, ignore_errors=True)
        for _ in range(draw.choice((1, 1, 2, 3))):
            aim = draw.choice(("any moment", "while a checkpoint is written"))
            found = kill(training, name, draw, aim)
            kills += [found] if found is not None else []
    outcome = training.train(name)
    told = training.told
    row = {
        "repetition": number,
        "kills": kills,
        "went_on_at": {e.runs[0].name: e.step for e in told if e.kind == "start"},
        "warnings": sum(e.kind == "warning" for e in told),
        "same": training.same(outcome),
    }
    shutil.rmtree(training.root / name)
    return row


def show(row: dict[str, Any]) -> None:
    kills = "; ".join(f"{k['after_seconds']:.2f} s: {', '.join(k['left'])}" for k in row["kills"])
    verdict = "the same" if all(row["same"].values()) else f"DIFFERS: {row['same']}"
    print(f"{row['repetition']:3}  {verdict}  ({kills})", flush=True)


def summary(rows: list[dict[str, Any]]) -> dict[str, int]:
    kills = [k for row in rows for k in row["kills"]]
    return {
        "repetitions": len(rows),
        "same": sum(all(row["same"].values()) for row in rows),
        "kills": len(kills),
        "kills_in_a_checkpoint": sum("a checkpoint half written" in k["left"] for k in kills),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="decides the moments, up to the clock")
    parser.add_argument("--output", type=Path, default=Path("evidence/kill.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # other threads would not be there after a fork
    origin = provenance("python benchmarks/bench_kill.py", seed=options.seed)
    with tempfile.TemporaryDirectory() as root:
        training = Training(Path(root))
        print(f"without a stop: {training.seconds:.2f} s")
        rows = []
        for number in range(1, options.repetitions + 1):
            rows.append(repeat(training, number, options.seed))
            show(rows[-1])
    total = summary(rows)
    print(total)
    setting = {"base": BASE, "runs": CHANGES, "seconds_without_a_stop": training.seconds}
    result = {"summary": total, "setting": setting, "rows": rows, "provenance": origin}
    write_json(options.output, result)
    if total["same"] < len(rows):
        raise SystemExit("some results differ")


if __name__ == "__main__":
    main()
