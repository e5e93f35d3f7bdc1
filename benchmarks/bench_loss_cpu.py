"""Head and loss on a CPU, forward and backward: thresholded against ``F.cross_entropy(F.linear)``.

All methods in turn, repetition by repetition, in one process, so that what else the machine does
hits all alike; memory in a fresh process for each::

    python benchmarks/bench_loss_cpu.py
    python benchmarks/bench_loss_cpu.py --tokens 512 --repetitions 3   # a quick look

Data are built so that a given share of the logits is kept. *Scattered*: every token keeps the same
share, anywhere in the vocabulary. *Trained*: shares are spread over tokens as a trained model's
are, where a tenth of the tokens holds most of what is kept, and kept entries gather in the rows
of frequent tokens. Writes evidence/loss_cpu.json.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import elbowroom as er
from elbowroom.provenance import provenance, write_json

SHARES = (0.5, 0.1, 0.01, 0.001)
TARGETS = {0.5: 0.9, 0.01: 0.5, 0.001: 0.5}  # of the peer's time
MEMORY_TARGET = 1 / 8  # of the peer's peak, beyond inputs and gradients
DATA = ("scattered", "trained")


class Problem:
    """Hidden states, head, targets, and the margins that keep a given share."""

    def __init__(self, data: str, options: argparse.Namespace) -> None:
        g = torch.Generator().manual_seed(options.seed)
        n, d, v = options.tokens, options.width, options.vocab
        self.hidden = torch.randn(n, d, generator=g)
        self.weight = torch.randn(v, d, generator=g) / d**0.5
        if data == "trained":  # one direction that all contexts share says how frequent a token is
            self.hidden[:, 0] = d**0.5 / 8
            self.weight[:, 0] = -torch.arange(1, v + 1).log() / v**0.1
        self.data, self.generator = data, g
        self.target = self._per_token(lambda z, _: z.topk(8).indices[:, 7])

    def margins(self, share: float) -> Tensor:
        """Return the margin of each token so that on average ``share`` of its row is kept."""
        vocab = self.weight.shape[0]
        shares = torch.full((len(self.hidden),), share)
        if self.data == "trained":
            spread = torch.randn(len(shares), generator=self.generator).mul(2).exp()
            low, high = 0.0, 1e6
            for _ in range(60):  # scale the spread to the mean, no token above 1
                middle = (low + high) / 2
                low, high = (
                    (middle, high)
                    if (spread * middle).clamp(max=1).mean() < share
                    else (low, middle)
                )
            shares = (spread * high).clamp(max=1)
        sample = torch.randperm(vocab, generator=self.generator)[: vocab // 6]
        count = (shares * len(sample)).ceil().long().clamp(1, len(sample))

        def threshold(z: Tensor, rows: slice) -> Tensor:
            ordered = z[:, sample].sort(descending=True).values.gather(1, count[rows, None] - 1)
            return z.gather(1, self.target[rows, None]) - ordered

        return self._per_token(threshold).flatten().clamp(min=0)

    def _per_token(self, f: Callable[[Tensor, slice], Tensor]) -> Tensor:
        parts = [slice(i, i + 64) for i in range(0, len(self.hidden), 64)]
        return torch.cat([f(self.hidden[rows] @ self.weight.T, rows) for rows in parts])

    def leaves(self) -> tuple[Tensor, Tensor]:
        """Return hidden and weight that collect gradients."""
        return self.hidden.clone().requires_grad_(), self.weight.clone().requires_grad_()


def method(problem: Problem, name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss by name: "peer", "margin inf" or the share that it keeps."""
    if name == "peer":
        return lambda h, w: F.cross_entropy(F.linear(h, w), problem.target)
    margin: Any = float("inf") if name == "margin inf" else problem.margins(float(name))
    return lambda h, w: er.linear_thresholded_cross_entropy(h, w, problem.target, margin)


def seconds(problem: Problem, loss: Callable[[Tensor, Tensor], Tensor]) -> float:
    hidden, weight = problem.leaves()
    start = time.perf_counter()
    loss(hidden, weight).backward()
    return time.perf_counter() - start


def peak(data: str, name: str, options: argparse.Namespace) -> int:
    """Return bytes beyond inputs and gradients at the highest point, in this process."""
    problem = Problem(data, options)
    loss = method(problem, name)
    warm_up()
    hidden, weight = problem.leaves()
    hidden.grad, weight.grad = torch.ones_like(hidden), torch.ones_like(weight)  # touched memory
    ctypes.CDLL(None).malloc_trim(0)  # what was freed so far is nobody's
    before = resident()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak so far
    hidden.grad = weight.grad = None
    loss(hidden, weight).backward()
    return resident("VmHWM") - before


def warm_up() -> None:
    """Let the libraries that both methods use load their code."""
    hidden, weight = torch.randn(64, 32, requires_grad=True), torch.randn(999, 32)
    target = torch.zeros(64, dtype=torch.long)
    for margin in (0.1, float("inf")):
        er.linear_thresholded_cross_entropy(
            hidden, weight.requires_grad_(), target, margin
        ).backward()
    F.cross_entropy(F.linear(hidden, weight), target).backward()


def resident(field: str = "VmRSS") -> int:
    """Return the resident size, or its peak, of this process in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(data: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row of results for each method on one kind of data."""
    names = ["peer", "margin inf", *map(str, SHARES)]
    problem = Problem(data, options)
    losses = {name: method(problem, name) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(options.repetitions + 1):
        for name, loss in losses.items():
            taken = seconds(problem, loss)
            times[name] += [taken] if turn else []  # the first round warms up
        print(f"{data}: round {turn} of {options.repetitions}", file=sys.stderr, flush=True)
    rows = []
    for name in names:
        ratios = [a / b for a, b in zip(times[name], times["peer"], strict=True)]
        rows.append(
            {
                "data": data,
                "method": name,
                "kept": kept_share(problem, name, losses),
                "seconds": summary(times[name]),
                "ratio": summary(ratios),
                "peak_bytes": fresh_peak(data, name, options),
                "all_seconds": [round(x, 4) for x in times[name]],
            }
        )
    for row in rows:
        row["peak_ratio"] = round(row["peak_bytes"] / rows[0]["peak_bytes"], 4)
    return rows


def kept_share(problem: Problem, name: str, losses: dict[str, Any]) -> float:
    if name in ("peer", "margin inf"):
        return 1.0
    problem.generator.manual_seed(1)  # margins draw; any draw has the same mean
    margin = problem.margins(float(name))
    _, stats = er.linear_thresholded_cross_entropy(
        problem.hidden, problem.weight, problem.target, margin, stats=True
    )
    return round(float(stats.kept.double().mean()) / len(problem.weight), 5)


def summary(x: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(x, n=10, method="inclusive")
    return {
        "median": round(statistics.median(x), 4),
        "p20": round(cuts[1], 4),
        "p80": round(cuts[7], 4),
    }


def fresh_peak(data: str, name: str, options: argparse.Namespace) -> int:
    """Measure `peak` in a process of its own."""
    command = [sys.executable, __file__, "--peak", data, name, *as_arguments(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout))


def as_arguments(options: argparse.Namespace) -> list[str]:
    names = ("tokens", "width", "vocab", "seed", "threads", "repetitions")
    return [word for name in names for word in (f"--{name}", str(getattr(options, name)))]


def verdict(row: dict[str, Any]) -> str:
    if row["method"] not in map(str, SHARES):
        return ""
    target = TARGETS.get(float(row["method"]))
    fast = target is None or row["ratio"]["median"] <= target
    small = row["peak_ratio"] <= MEMORY_TARGET
    wanted = "" if target is None else f"time <= {target}, "
    return f"{wanted}memory <= {MEMORY_TARGET}: " + ("met" if fast and small else "MISSED")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("evidence/loss_cpu.json"))
    parser.add_argument("--peak", nargs=2, metavar=("DATA", "METHOD"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(peak(*options.peak, options))
        return
    origin = provenance(
        " ".join(["python benchmarks/bench_loss_cpu.py", *as_arguments(options)]),
        seed=options.seed,
    )
    rows = [row for data in DATA for row in measure(data, options)]
    record = {
        "what": "forward and backward of head and loss, float32; ratios to F.cross_entropy "
        "(F.linear) of the same round; peak bytes beyond inputs and gradients",
        "rows": rows,
        "provenance": origin,
    }
    write_json(options.output, record)
    print(f"{'data':10} {'kept':>8} {'seconds':>8} {'ratio':>6} {'p20':>6} {'p80':>6} {'MiB':>6}")
    for row in rows:
        seconds_, ratio = row["seconds"]["median"], row["ratio"]
        kept = row["method"] if row["method"] in ("peer", "margin inf") else f"{row['kept']:.3%}"
        print(
            f"{row['data']:10} {kept:>8} {seconds_:8.3f} {ratio['median']:6.3f} "
            f"{ratio['p20']:6.3f} {ratio['p80']:6.3f} {row['peak_bytes'] / 2**20:6.0f}  "
            f"{verdict(row)}"
        )


if __name__ == "__main__":
    main()
