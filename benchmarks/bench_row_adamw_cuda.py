"""Time RowAdamW beside torch's fused AdamW on a GPU: a large matrix, and a population of runs.

All optimizers step in turn, in one process; a copy before each step keeps the device busy while the
host prepares it, so that times are the device's. Run it on an idle machine::

    python benchmarks/bench_row_adamw_cuda.py

It prints a table and writes ``evidence/speed/row_adamw_cuda.csv``, with versions, commit, hardware
and single measurements beside it in a file ``.json``. ``--sweep`` also times other tile shapes;
``--smoke`` runs everything at a tiny size on a CPU, with the kernels interpreted, and its times
mean nothing.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if "--smoke" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton asks when it is imported

import torch
from torch import Tensor
from torch.nn import Parameter

from elbowroom.optim import RowAdamW, fused
from elbowroom.provenance import provenance, write_bytes, write_json

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch fused"
TARGETS = {"all rows, searched": 1.05, "all rows, marked": 1.05, "5% of rows, marked": 0.2}
# The parameters of the paper's GPT-2 of .8M: 4 blocks, 128 wide, 130 tokens.
BLOCK = [(128,), (128, 384), (128, 128), (128,), (128, 512), (512, 128)]
SHAPES = [(130, 128), (64, 128), *BLOCK * 4, (128,)]
SWEEP = [  # TILE, WARPS, TURNS, WIDEST
    (2048, 8, 8, 4096), (2048, 4, 8, 4096), (2048, 16, 8, 4096), (4096, 8, 8, 4096),
    (2048, 8, 1, 4096), (2048, 8, 4, 4096), (2048, 8, 16, 4096), (2048, 4, 1, 4096),
    (1024, 4, 8, 1024), (2048, 8, 8, 1024),
]  # fmt: skip


@dataclass
class Case:
    """One way to step, the bytes it cannot avoid, and its times."""

    group: str
    name: str
    step: Callable[[], object]
    bytes: float
    weight: Parameter | None = None
    seconds: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)


class Timer:
    """Measures a step on the device; on a CPU, by the clock."""

    def __init__(self, device: str, elements: int) -> None:
        self.cuda = device == "cuda"
        self.source, self.target = (torch.zeros(elements, device=device) for _ in range(2))

    def copy(self) -> None:
        """Keep the device busy; also what bandwidth is measured with."""
        self.target.copy_(self.source)

    def __call__(self, step: Callable[[], object], copies: int = 2) -> tuple[float, float]:
        """Return the seconds of a step on the device, and those the host took to hand it over."""
        if not self.cuda:
            began = time.perf_counter()
            step()
            return (time.perf_counter() - began,) * 2
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for _ in range(copies):
            self.copy()
        start.record()
        began = time.perf_counter()
        step()
        host = time.perf_counter() - began
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3, host

    def rate(self, repetitions: int) -> float:
        """Return the bytes a second of a copy, reading and writing."""
        seconds = [self(self.copy)[0] for _ in range(repetitions)]
        return 2 * self.source.nbytes / statistics.median(seconds)


def share_of_rows(grad: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a gradient with that share of its rows left, and which they are."""
    count = round(share * len(grad))
    ids = torch.randperm(len(grad), generator=generator, device=grad.device)[:count]
    mask = torch.zeros(len(grad), dtype=torch.bool, device=grad.device)
    mask[ids] = True
    return grad * mask[:, None], mask


def matrix_cases(args: argparse.Namespace, device: str) -> list[Case]:
    """Return the cases of one matrix: all rows touched, 5% and .5%, searched and marked."""
    generator = torch.Generator(device).manual_seed(args.seed)
    shape = (args.rows, args.width)
    start = 0.02 * torch.randn(shape, generator=generator, device=device)
    full = 1e-3 * torch.randn(shape, generator=generator, device=device)
    size = full.nbytes
    group = f"{args.rows} x {args.width}"

    def stepping(optimizer: torch.optim.Optimizer, grad: Tensor, mask: Tensor | None = None):
        weight = optimizer.param_groups[0]["params"][0]

        def step() -> None:
            weight.grad = grad
            if mask is not None:
                optimizer.touch(weight, mask)
            optimizer.step()

        return step

    def ours(**options: Any) -> RowAdamW:
        weight = Parameter(start.clone())
        return RowAdamW([weight], rows=[weight], **options)

    weight = Parameter(start.clone())
    peer = torch.optim.AdamW([weight], fused=True)
    cases = [Case(group, TORCH, stepping(peer, full), 7 * size, weight)]
    for name, share in (("all rows", 1.0), ("5% of rows", 0.05), ("0.5% of rows", 0.005)):
        grad, mask = share_of_rows(full, share, generator) if share < 1 else (full, None)
        mask = torch.ones(args.rows, dtype=torch.bool, device=device) if mask is None else mask
        touched = float(mask.sum()) / args.rows
        for way, marks, need in (
            ("searched", None, (1 + 6 * touched) * size),
            ("marked", mask, 7 * touched * size + args.rows),
        ):
            optimizer = ours()
            (weight,) = optimizer.param_groups[0]["params"]
            case = Case(group, f"{name}, {way}", stepping(optimizer, grad, marks), need, weight)
            cases.append(case)
    before = stepping(ours(fused=False, capturable=True), full)
    cases.append(Case(group, "all rows, not fused", before, 7 * size))
    return cases


def population_cases(args: argparse.Namespace, device: str) -> list[Case]:
    """Return the cases of 27 parameters ``[R, ...]``: eager, and replayed from CUDA graphs."""
    generator = torch.Generator(device).manual_seed(args.seed)
    shapes = [(args.runs, *shape) for shape in (SHAPES[:2] if args.smoke else SHAPES)]
    starts = [0.02 * torch.randn(x, generator=generator, device=device) for x in shapes]
    lr = torch.logspace(-4, -2, args.runs, device=device)
    size = sum(x.nbytes for x in starts)
    makers: dict[str, Callable[[list[Parameter]], torch.optim.Optimizer]] = {
        TORCH: lambda x: torch.optim.AdamW(x, lr=1e-3, fused=True, capturable=device == "cuda"),
        "ours, lr [R]": lambda x: RowAdamW(x, lr=lr, capturable=True),
        "ours, lr [R], not fused": lambda x: RowAdamW(x, lr=lr, fused=False, capturable=True),
    }
    cases = []
    for mode in ("eager", "graph"):
        for name, make in makers.items():
            weights = [Parameter(start.clone()) for start in starts]
            for weight in weights:
                weight.grad = 1e-3 * torch.randn(weight.shape, generator=generator, device=device)
            step = make(weights).step
            replay = captured(step) if mode == "graph" and device == "cuda" else step
            cases.append(Case(f"{args.runs} runs, {mode}", name, replay, 7 * size))
    return cases


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """Return a step replayed from a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    kept = (graph, step)  # the step owns the memory that the graph reads

    return lambda: kept[0].replay()


def measure(cases: list[Case], timer: Timer, args: argparse.Namespace) -> None:
    """Let all ways to step run in turn, in an order that rotates."""
    order = list(cases)
    for turn in range(args.warmup + args.repetitions):
        for case in order:
            seconds, host = timer(case.step)
            if turn >= args.warmup:
                case.seconds.append(seconds)
                case.host.append(host)
        order = order[1:] + order[:1]


def summarize(cases: list[Case], rate: float) -> list[dict[str, Any]]:
    """Return a row a case: its times, the ratio to torch's in its group, its share of a copy."""
    peers = {x.group: statistics.median(x.seconds) for x in cases if x.name == TORCH}
    rows = []
    for case in cases:
        median, fifths = (
            statistics.median(case.seconds),
            statistics.quantiles(case.seconds, n=5, method="inclusive"),
        )
        rows.append(
            {
                "group": case.group,
                "case": case.name,
                "median_ms": round(1e3 * median, 4),
                "p20_ms": round(1e3 * fifths[0], 4),
                "p80_ms": round(1e3 * fifths[3], 4),
                "ratio": round(median / peers[case.group], 4),
                "target": TARGETS.get(case.name, ""),
                "gigabytes": round(case.bytes / 1e9, 4),
                "share_of_copy": round(case.bytes / median / rate, 4),
                "host_ms": round(1e3 * statistics.median(case.host), 4),
            }
        )
    return rows


def sweep(cases: list[Case], timer: Timer, repetitions: int) -> list[dict[str, Any]]:
    """Time the matrix with other tiles; return medians in milliseconds."""
    names = ("TILE", "WARPS", "TURNS", "WIDEST")
    usual = tuple(getattr(fused, name) for name in names)
    chosen = [x for x in cases if x.name.endswith((", searched", ", marked"))]
    results = []
    for setting in SWEEP:
        for name, value in zip(names, setting, strict=True):
            setattr(fused, name, value)
        row: dict[str, Any] = dict(zip(names, setting, strict=True))
        for case in chosen:
            times = [timer(case.step)[0] for _ in range(2 + repetitions)][2:]
            row[case.name] = round(1e3 * statistics.median(times), 4)
        print(row, flush=True)
        results.append(row)
    for name, value in zip(names, usual, strict=True):
        setattr(fused, name, value)
    return results


def difference(cases: list[Case]) -> dict[str, float]:
    """Return how far weights, all of whose rows moved, are from torch's after as many steps."""
    weights = {x.name: x.weight.data for x in cases if x.weight is not None}
    return {
        name: float((weight - weights[TORCH]).abs().max())
        for name, weight in weights.items()
        if name.startswith("all rows")
    }


def show(rows: list[dict[str, Any]], rate: float) -> None:
    print(f"copy: {rate / 1e9:.0f} GB/s")
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    for row in (dict(zip(names, names, strict=True)), *rows):
        print("  ".join(f"{row[name]!s:<{w}}" for name, w in zip(names, widths, strict=True)))


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=248320, help="rows of the matrix")
    parser.add_argument("--width", type=int, default=2048, help="elements a row")
    parser.add_argument("--runs", type=int, default=86, help="runs of the population")
    parser.add_argument("--repetitions", type=int, default=41, help="measured steps of each")
    parser.add_argument("--warmup", type=int, default=5, help="steps of each before measuring")
    parser.add_argument("--seed", type=int, default=0, help="of weights, gradients and rows")
    parser.add_argument("--sweep", action="store_true", help="also time other tile shapes")
    parser.add_argument("--smoke", action="store_true", help="tiny and interpreted, on a CPU")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "evidence/speed/row_adamw_cuda.csv",
        help="file to write",
    )
    return parser.parse_args()


def main() -> None:
    args = parse()
    device, elements = "cuda", 2**28
    if args.smoke:
        device, elements, fused.DEVICES = "cpu", 2**10, ("cpu",)
        args.rows, args.width, args.runs, args.repetitions, args.warmup = 60, 33, 2, 2, 1
    elif not torch.cuda.is_available():
        raise SystemExit("this needs a CUDA device; --smoke runs it on a CPU, at a tiny size")
    if fused.kernels() is None:
        raise SystemExit("this needs Triton: pip install triton")
    record: dict[str, Any] = provenance("python benchmarks/bench_row_adamw_cuda.py", seed=args.seed)
    settings = {name: x for name, x in vars(args).items() if name not in ("output", "smoke")}
    timer = Timer(device, elements)
    matrix = matrix_cases(args, device)
    measure(matrix, timer, args)
    extra: dict[str, Any] = {"largest_difference_to_torch": difference(matrix)}
    print(extra)
    if args.sweep:
        extra["sweep_ms"] = sweep(matrix, timer, max(2, args.repetitions // 4))
    population = population_cases(args, device)
    measure(population, timer, args)
    cases = matrix + population
    rate = timer.rate(max(2, args.repetitions))
    rows = summarize(cases, rate)
    show(rows, rate)
    seconds = {f"{x.group}: {x.name}": [round(s, 7) for s in x.seconds] for x in cases}
    import triton

    record["versions"]["triton"] = triton.__version__
    write_bytes(args.output, as_csv(rows))
    write_json(
        args.output.with_suffix(".json"),
        {
            **record,
            "settings": {**settings, "dtype": "float32"},
            "copy_bytes_per_second": rate,
            "seconds": seconds,
            **extra,
        },
    )


if __name__ == "__main__":
    main()
