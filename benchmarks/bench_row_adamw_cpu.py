"""Time RowAdamW beside torch's AdamW on a CPU, on one embedding matrix.

All optimizers step in turn, in one process, repetition by repetition, so that what else happens on
the machine meets all of them. Run it on an idle machine::

    python benchmarks/bench_row_adamw_cpu.py

It prints a table and writes ``evidence/row_adamw_cpu.json``: hardware, versions, commit, settings,
the single measurements, and medians as ratios to the fastest of torch's three.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor, nn

from elbowroom.optim import RowAdamW, native

ROOT = Path(__file__).resolve().parents[1]
TARGETS = {"all touched": 1.15, "share touched, marked": 0.25, "share touched, searched": 1.0}


class Case:
    """One optimizer with a weight of its own, and the gradients it meets in turn."""

    def __init__(
        self,
        start: Tensor,
        grads: list[Tensor],
        make: Callable[[nn.Parameter], torch.optim.Optimizer],
        marks: list[Tensor] | None = None,
    ) -> None:
        self.weight = nn.Parameter(start.clone())
        self.optimizer = make(self.weight)
        self.grads, self.marks = grads, marks
        self.seconds: list[float] = []

    def step(self, turn: int) -> float:
        """Make one step and return its seconds, handing over the marks included."""
        turn %= len(self.grads)
        self.weight.grad = self.grads[turn]
        began = time.perf_counter()
        if self.marks is not None:
            self.optimizer.touch(self.weight, self.marks[turn])
        self.optimizer.step()
        return time.perf_counter() - began

    def spread_counts(self, generator: torch.Generator) -> None:
        """Give each row a count of its own, so that no shortcut for equal counts applies."""
        self.step(0)
        state = self.optimizer.state[self.weight]
        counts = torch.randint(1, 2000, state["row_step"].shape, generator=generator)
        state["row_step"].copy_(counts)
        state["step"].fill_(2000.0)


def build(args: argparse.Namespace) -> dict[str, Case]:
    generator = torch.Generator().manual_seed(args.seed)
    shape = (args.rows, args.width)
    start = 0.02 * torch.randn(shape, generator=generator)
    full = [1e-3 * torch.randn(shape, generator=generator) for _ in range(args.gradients)]
    marks, sparse = [], []
    for grad in full:
        ids = torch.randperm(args.rows, generator=generator)[: round(args.share * args.rows)]
        mask = torch.zeros(args.rows, dtype=torch.bool)
        mask[ids] = True
        marks.append(mask)
        sparse.append(grad * mask[:, None])
    adamw = torch.optim.AdamW

    def ours(weight: nn.Parameter) -> RowAdamW:
        return RowAdamW([weight], rows=[weight])

    def ours_catching_up(weight: nn.Parameter) -> RowAdamW:
        return RowAdamW([weight], rows=[weight], catch_up=True)

    def ours_by_operations(weight: nn.Parameter) -> RowAdamW:  # as where there is no compiler
        return RowAdamW([weight], rows=[weight], fused=False)

    cases = {
        "torch AdamW, for-loop": Case(start, full, lambda w: adamw([w], foreach=False)),
        "torch AdamW, foreach": Case(start, full, lambda w: adamw([w], foreach=True)),
        "torch AdamW, fused": Case(start, full, lambda w: adamw([w], fused=True)),
        "all touched": Case(start, full, ours),
        "all touched, counts differ": Case(start, full, ours),
        "share touched, marked": Case(start, sparse, ours, marks),
        "share touched, searched": Case(start, sparse, ours),
        "share touched, marked, catch_up": Case(start, sparse, ours_catching_up, marks),
        "share touched, marked, operations": Case(start, sparse, ours_by_operations, marks),
    }
    for name, case in cases.items():
        if "differ" in name or "share" in name:
            case.spread_counts(generator)
    return cases


def measure(cases: dict[str, Case], args: argparse.Namespace) -> None:
    """Let all optimizers step in turn, in an order that rotates."""
    order = list(cases.values())
    for turn in range(args.warmup + args.repetitions):
        for case in order:
            seconds = case.step(turn)
            if turn >= args.warmup:
                case.seconds.append(seconds)
        order = order[1:] + order[:1]


def summarize(cases: dict[str, Case]) -> dict[str, dict[str, float]]:
    """Return milliseconds (median, p20, p80) and the ratio to the fastest of torch's medians."""
    medians = {name: statistics.median(case.seconds) for name, case in cases.items()}
    fastest = min(x for name, x in medians.items() if name.startswith("torch"))
    summary = {}
    for name, case in cases.items():
        fifths = statistics.quantiles(case.seconds, n=5)
        summary[name] = {
            "median_ms": 1e3 * medians[name],
            "p20_ms": 1e3 * fifths[0],
            "p80_ms": 1e3 * fifths[3],
            "ratio": medians[name] / fastest,
        }
        if name in TARGETS:
            summary[name]["target"] = TARGETS[name]
    return summary


def show(summary: dict[str, dict[str, float]]) -> None:
    print(f"{'optimizer':34}{'median ms':>10}{'p20':>8}{'p80':>8}{'ratio':>8}{'target':>8}")
    for name, row in summary.items():
        times = f"{row['median_ms']:10.2f}{row['p20_ms']:8.2f}{row['p80_ms']:8.2f}"
        target = f"{row['target']:8.2f}" if "target" in row else ""
        print(f"{name:34}{times}{row['ratio']:8.3f}{target}")


def environment() -> dict[str, object]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        "torch": torch.__version__,
        "compiled_loop": native.library() is not None,
        "python": platform.python_version(),
        "system": platform.platform(),
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--", "src/elbowroom/optim")),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=49152, help="rows of the matrix")
    parser.add_argument("--width", type=int, default=576, help="elements a row")
    parser.add_argument("--share", type=float, default=0.05, help="share of rows touched")
    parser.add_argument("--gradients", type=int, default=4, help="gradients met in turn")
    parser.add_argument("--repetitions", type=int, default=41, help="measured steps of each")
    parser.add_argument("--warmup", type=int, default=5, help="steps of each before measuring")
    parser.add_argument("--threads", type=int, default=2, help="threads")
    parser.add_argument("--seed", type=int, default=0, help="of weights, gradients and rows")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "evidence/row_adamw_cpu.json", help="file to write"
    )
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    settings = {name: value for name, value in vars(args).items() if name != "output"}
    record = {"environment": environment(), "settings": {**settings, "dtype": "float32"}}
    cases = build(args)
    measure(cases, args)
    summary = summarize(cases)
    show(summary)
    seconds = {name: [round(x, 7) for x in case.seconds] for name, case in cases.items()}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps({**record, "results": summary, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
