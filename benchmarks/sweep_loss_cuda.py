"""Find the sizes of the loss's kernels that are fastest on this GPU, and where their time goes.

One group of sizes after another, each value is measured with the best of the others, at a few
shapes with kept entries scattered and clustered. First comes what the library's products take,
alone, and what each kernel takes::

    python benchmarks/sweep_loss_cuda.py --output runs/sweep.csv --max-minutes 6
    python benchmarks/sweep_loss_cuda.py --smoke --output runs/sweep.csv    # tiny, on a CPU

Each line is written as soon as it is measured; the winners stand in ``settings.json`` beside the
table, to be written into ``losses/kernels/settings.py``. Here nothing is chosen for users.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

if "--smoke" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton asks when it is imported

import torch

from elbowroom.losses import fused
from elbowroom.losses.kernels import settings
from elbowroom.losses.kernels.settings import Rows, Settings, Tile
from elbowroom.provenance import write_json
from elbowroom.study import speed

CASES = [  # tokens, width, vocabulary, clustered, share kept
    (4096, 4096, 128256, True, 0.01), (4096, 4096, 128256, False, 0.001),
    (12288, 768, 50304, True, 0.01), (4096, 576, 49152, True, 0.01),
]  # fmt: skip
GROUPS: dict[str, list[Any]] = {
    "survey": [
        Rows(b, w, s)
        for b, w, s in [
            (2048, 8, 3), (2048, 8, 1), (2048, 16, 3), (1024, 4, 3), (1024, 4, 4), (1024, 8, 3),
            (512, 2, 4), (512, 1, 4), (256, 1, 4), (4096, 16, 3),
        ]
    ],
    "half": [
        Tile(c, d, w, s)
        for c, d, w, s in [
            (256, 64, 8, 3), (256, 64, 8, 4), (128, 64, 8, 4), (128, 64, 4, 4), (256, 32, 8, 4),
            (128, 128, 8, 3),
        ]
    ],
    "pieces": [2, 1, 3, 4],
    "share": [1 / 250, 1 / 500, 1 / 170, 1 / 125],
    "entries": [(16, 256, 4), (16, 128, 4), (32, 256, 4), (16, 512, 4), (8, 512, 4), (32, 128, 2)],
    "grade": [Rows(2048, 8, 1), Rows(1024, 4, 1), Rows(2048, 4, 1), Rows(4096, 8, 1)],
    "tokens": [(8, 512), (16, 128), (4, 1024), (8, 1024), (16, 256)],
}  # fmt: skip
FIELDS = ["part", "case", "what", "value", "milliseconds", "ratio", "trouble"]


class Table:
    """Lines of a CSV file, written one by one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.file = path, path.open("w", encoding="utf-8", newline="")
        self.writer = csv.DictWriter(self.file, FIELDS, restval="", lineterminator="\n")
        self.writer.writeheader()

    def add(self, **line: Any) -> None:
        """Write a line, and show it."""
        self.writer.writerow(line)
        self.file.flush()
        print("  ".join(f"{x}" for x in line.values()), flush=True)


class Case:
    """A problem, and one step forward and backward of it."""

    def __init__(self, numbers: tuple[Any, ...], device: str) -> None:
        *shape, clustered, share = numbers
        kind = "clustered" if clustered else "scattered"
        self.name = f"{'x'.join(map(str, shape))} {kind} {share:g}"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        problem = speed.synthetic(
            speed.Shape(*shape), clustered=clustered, dtype=dtype, device=device
        )
        (way,) = speed.ours(problem, (), [share])
        self.leaves, self.loss, self.problem = problem.leaves(), way.loss, problem
        self.strips = way.strips

    def step(self) -> None:
        """Run the loss and its backward pass."""
        assert self.loss is not None
        self.loss(*self.leaves).backward()
        for leaf in self.leaves:
            leaf.grad = None


def median(timer: speed.Timer, work: Callable[[], object], rounds: int) -> float:
    """Return milliseconds."""
    work()
    work()
    return 1e3 * statistics.median(timer(work) for _ in range(rounds))


def library(case: Case, table: Table, timer: speed.Timer, rounds: int) -> None:
    """Time the products of a chunk by the vendor's library: what none of ours is faster than."""
    x, w = (leaf.detach() for leaf in case.leaves)
    v = len(w)
    n = min(len(x), fused.BUDGET // (v * x.itemsize))
    x, raw = x[:n], x.new_empty(n, v)
    of_hidden, sums = torch.empty_like(x), torch.empty_like(w, dtype=torch.float32)
    own = torch.empty_like(w)

    def add() -> None:
        fused._accumulate(sums, raw.mT, x, first=False)

    works: dict[str, Callable[[], object]] = {
        "logits": lambda: torch.mm(x, w.mT, out=raw),
        "hidden's gradient": lambda: torch.mm(raw, w, out=of_hidden),
        "weight's gradient": lambda: torch.mm(raw.mT, x, out=own),
        "weight's gradient, float32": lambda: fused._accumulate(sums, raw.mT, x, first=True),
        "weight's gradient, added": add,
        "weight's gradient, converted": lambda: own.copy_(sums),
    }
    operations = 2 * n * x.shape[1] * v
    for name, work in works.items():
        found = median(timer, work, rounds)
        rate = f"{operations / found / 1e9:.0f} TFLOP/s"
        table.add(part="library", case=case.name, what=name, value=rate, milliseconds=found)


def kernels(case: Case, table: Table) -> None:
    """Write what each kernel takes, the whole step beside it; CUDA only."""
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as seen:
        for _ in range(3):
            case.step()
        torch.cuda.synchronize()
    rows = [(x.device_time_total / 3e3, x.count / 3, x.key) for x in seen.key_averages()]
    for milliseconds, count, name in sorted(rows, reverse=True):
        if milliseconds > 0.002:
            value = f"{count:g} launches"
            found = round(milliseconds, 4)
            table.add(
                part="kernel", case=case.name, what=name[:60], value=value, milliseconds=found
            )


def choices(device: str, groups: list[str]) -> Iterator[tuple[str, list[Any]]]:
    for name in groups:
        now = getattr(settings.of(torch.device(device)), name)
        yield name, [now, *(x for x in GROUPS[name] if x != now)]


def sweep(cases: list[Case], table: Table, timer: speed.Timer, args: argparse.Namespace) -> None:
    """Measure each group of sizes, and go on with the best of it."""
    device = torch.device(args.device)
    best = settings.of(device)
    for group, values in choices(args.device, args.groups):
        scores = {}
        base: list[float] = []
        for value in values:
            if time.monotonic() > args.deadline:
                break
            settings.CHOSEN = replace(best, **{group: value})
            try:
                times = [median(timer, case.step, args.rounds) for case in cases]
            except Exception as error:  # too much shared memory, say: the others go on
                table.add(part="sweep", what=group, value=value, trouble=speed.said(error))
                continue
            base = base or times
            ratios = [a / b for a, b in zip(times, base, strict=True)]
            scores[statistics.geometric_mean(ratios)] = value
            for case, found, ratio in zip(cases, times, ratios, strict=True):
                table.add(
                    part="sweep", case=case.name, what=group, value=value,
                    milliseconds=round(found, 4), ratio=round(ratio, 4),
                )  # fmt: skip
        if scores and min(scores) < 1 - args.gain:
            best = replace(best, **{group: scores[min(scores)]})
        settings.CHOSEN = best
        write_json(table.path.with_name("settings.json"), asdict(best))


def read_settings(path: Path) -> Settings:
    """Return settings that a sweep wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))
    for name in ("survey", "grade"):
        found[name] = Rows(**found[name])
    for name in ("half", "single", "exact"):
        found[name] = Tile(**found[name])
    found |= {name: tuple(found[name]) for name in ("tokens", "entries")}
    return Settings(**found)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", choices=tuple(GROUPS), nargs="+", default=list(GROUPS))
    parser.add_argument("--rounds", type=int, default=7, help="measured steps of each")
    parser.add_argument("--gain", type=float, default=0.01, help="less is noise")
    parser.add_argument("--max-minutes", type=float, default=math.inf)
    parser.add_argument("--smoke", action="store_true", help="tiny and interpreted, on a CPU")
    parser.add_argument("--output", type=Path, required=True, help="the table to write")
    args = parser.parse_args()
    args.device = "cpu" if args.smoke else "cuda"
    args.deadline = time.monotonic() + 60 * args.max_minutes
    return args


def main() -> None:
    args = parse()
    cases = CASES
    if args.smoke:
        fused.DEVICES, args.rounds, cases = ("cpu",), 1, [(20, 8, 300, True, 0.1)]
    elif not torch.cuda.is_available():
        raise SystemExit("this needs a CUDA device; --smoke tries it on a CPU")
    table, timer = Table(args.output), speed.Timer(args.device)
    problems = [Case(numbers, args.device) for numbers in cases]
    for case in problems:
        table.add(part="case", case=case.name, what="strips kept", value=round(case.strips, 4))
        library(case, table, timer, args.rounds)
        case.step()
        if not args.smoke:
            kernels(case, table)
    sweep(problems, table, timer, args)
    if not args.smoke:
        kernels(problems[0], table)
    print(f"winners: {settings.of(torch.device(args.device))}")


if __name__ == "__main__":
    main()
