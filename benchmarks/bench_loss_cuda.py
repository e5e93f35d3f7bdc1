"""Time head and loss on a GPU, forward and backward, beside every peer that is installed.

All ways run in turn, round by round, in one process, at shapes that peers publish; data are made on
the device. Times of the device only, memory beyond inputs and gradients, and the floor: (2 + 4f)NVD
operations at the measured rate of a matrix product, plus the bytes that cannot be avoided at the
measured rate of a copy, where f is the share of the logits that is kept. ::

    pip install --no-deps --target .peers liger-kernel cut-cross-entropy
    PYTHONPATH=src:.peers python benchmarks/bench_loss_cuda.py --max-minutes 8
    PYTHONPATH=src:.peers python benchmarks/bench_loss_cuda.py --trained states.safetensors
    python benchmarks/bench_loss_cuda.py --device cpu --shapes 64,32,999 --output runs/try.csv

``--trained`` adds hidden states and head of a model that was really trained, such as
``make_trained_states.py`` writes. Results go to ``evidence/speed/loss_cuda.csv``, with single
times, rates and where they come from beside it in a file ``.json``, as soon as a shape's data of
one kind are measured. What is there already is not measured again: call it until it says that all
is done, or remove the files to begin anew.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch

import elbowroom as er
from elbowroom.provenance import provenance, write_bytes, write_json
from elbowroom.study import speed

ROOT = Path(__file__).resolve().parents[1]
SHAPES = [
    (4096, 4096, 128256),
    (8192, 2304, 256000),
    (16384, 2048, 248320),
    (8192, 4096, 131072),
    (12288, 768, 50304),
]
SHARES = (0.5, 0.1, 0.01, 0.001)
MARGINS = (math.inf, 8.0, 4.0, 2.0, 1.0, 0.3)  # of ours, with trained states
KINDS = ("trained", "scattered", "clustered")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
LEAST = 45  # seconds; with fewer left, no further data are begun on a GPU
LAST = 8  # seconds that are kept for the errors, and for writing
SIZES = {"cuda": (8192, 2**30), "cpu": (256, 2**20)}  # of the product and the copy that give rates
ERRORS = ("loss", "hidden", "weight")
WHAT = """\
Forward and backward of head and loss. ratio: to the fastest dense peer in the same round; \
ratio_any: to the fastest of all. peak_mib: beyond inputs and gradients. floor_ms: (2 + 4 kept) \
N V D operations and the bytes that cannot be avoided, at rates of the same run. *_error: \
relative, against float64, of ours and of the eager reference in the same dtype, over a slice of \
the tokens; entries that fall on the other side of the threshold by rounding count as errors."""


class Group:
    """One shape with one kind of data: what is measured, and written, at once."""

    def __init__(self, kind: str, shape: tuple[int, ...] | None, args: argparse.Namespace) -> None:
        self.kind, self.shape, self.args = kind, shape, args
        self.key = f"{kind} {'x'.join(map(str, shape or ()))} {args.dtype} {args.seed}"
        if shape is None:
            self.key = f"{args.trained.name} {args.dtype}"

    def problem(self) -> speed.Problem:
        """Return the data, on the device."""
        args = self.args
        if self.shape is None:
            return speed.read(args.trained, DTYPES[args.dtype], args.device)
        return speed.synthetic(
            speed.Shape(*self.shape),
            clustered=self.kind == "clustered",
            dtype=DTYPES[args.dtype],
            device=args.device,
            seed=args.seed,
        )

    def measure(self, timer: speed.Timer, deadline: float) -> dict[str, Any]:
        """Return rows with floors and errors, single times, and where they come from."""
        args, began = self.args, time.monotonic()
        origin = provenance(command(args), seed=args.seed)
        origin["versions"] |= speed.versions()
        problem = self.problem()
        if self.shape is None:
            own = speed.ours(problem, args.margins)
        else:
            own = speed.ours(problem, shares=args.shares)
        ways = speed.peer_ways(problem, args.peers) + own
        speed.measure(problem, ways, timer, repetitions=args.repetitions, deadline=deadline)
        size, moved = SIZES[args.device]
        matrix = speed.matrix_rate(timer, DTYPES[args.dtype], args.device, size)
        copy = speed.copy_rate(timer, args.device, moved)
        rows = []
        for way, row in zip(ways, speed.results(ways), strict=True):
            itemsize = problem.hidden.dtype.itemsize
            row["floor"] = speed.floor(problem.shape, way.kept, itemsize, matrix, copy)
            row["errors"] = {} if way.peer or way.trouble else errors(problem, way, args.slice)
            rows.append(row)
        return {
            "key": self.key,
            "data": problem.data,
            "shape": problem.shape._asdict(),
            "dtype": args.dtype,
            "operations_per_second": matrix,
            "copy_bytes_per_second": copy,
            "rounds": max(len(way.seconds) for way in ways),
            "took_seconds": round(time.monotonic() - began, 1),
            "rows": rows,
            "provenance": origin,
        }


def errors(problem: speed.Problem, way: speed.Way, count: int) -> dict[str, float]:
    """Return relative errors against float64 over some of the tokens: ours, and eager's."""
    n = len(problem.target)
    some = torch.linspace(0, n - 1, min(n, count), device=problem.target.device).long()
    margin: Any = way.margin
    if way.share is not None:
        margin = speed.share_margins(problem, way.share)[some]
    target = problem.target[some]

    def made(dtype: torch.dtype, backend: Any) -> list[torch.Tensor]:
        x = problem.hidden[some].to(dtype).requires_grad_()
        w = problem.weight.detach().to(dtype).requires_grad_()
        loss = er.linear_thresholded_cross_entropy(x, w, target, margin, backend=backend)
        return [loss.detach(), *torch.autograd.grad(loss, (x, w))]

    found = {}
    try:
        exact = made(torch.float64, "reference")
        mine = speed.our_backend(problem.hidden)
        for name, backend in (("ours", mine), ("eager", "reference")):
            got = made(problem.hidden.dtype, backend)
            for what, a, b in zip(ERRORS, got, exact, strict=True):
                error = (a.double() - b).norm() / b.norm().clamp(min=1e-30)
                found[f"{name}_{what}"] = float(f"{float(error):.4g}")
    except RuntimeError as error:
        if not speed.is_full(error):
            raise
    return found


def line_of(group: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as the columns of the table; empty where there is no number."""

    def times(name: str, part: str, factor: float = 1.0) -> Any:
        return "" if row[name] is None else float(f"{factor * row[name][part]:.5g}")

    seconds = row["seconds"]
    line = {
        **group["shape"],
        "dtype": group["dtype"],
        "data": group["data"],
        "method": row["method"],
        "kept": row["kept"],
        "strips": row["strips"],
        "rounds": group["rounds"],
        **{f"{part}_ms": times("seconds", part, 1e3) for part in ("median", "p20", "p80")},
        "ratio": times("ratio", "median"),
        "ratio_p20": times("ratio", "p20"),
        "ratio_p80": times("ratio", "p80"),
        "ratio_any": times("ratio_any", "median"),
        "peak_mib": "" if row["peak_bytes"] is None else round(row["peak_bytes"] / 2**20, 1),
        "floor_ms": float(f"{1e3 * row['floor']:.5g}"),
        "over_floor": "" if seconds is None else round(seconds["median"] / row["floor"], 3),
    }
    for name in ("ours", "eager"):
        for what in ERRORS:
            line[f"{name}_{what}_error"] = row["errors"].get(f"{name}_{what}", "")
    return {**line, "trouble": row["trouble"]}


def write(path: Path, groups: list[dict[str, Any]]) -> None:
    """Write all that was measured so far: single times as JSON, and the table made of it."""
    write_json(path.with_suffix(".json"), {"what": WHAT, "groups": groups})
    lines = [line_of(group, row) for group in groups for row in group["rows"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_bytes(path, text.getvalue().encode())


def show(group: dict[str, Any]) -> None:
    rate, copy = group["operations_per_second"] / 1e12, group["copy_bytes_per_second"] / 1e9
    print(f"{group['key']}: {group['rounds']} rounds, {rate:.0f} TFLOP/s, copy {copy:.0f} GB/s, "
          f"{group['took_seconds']} s")  # fmt: skip
    for row in group["rows"]:
        x = line_of(group, row)
        print(f"  {x['method']:18} kept {x['kept']:8.4%} strips {x['strips']:7.2%}  "
              f"{x['median_ms']!s:>8} ms ({x['p20_ms']} to {x['p80_ms']})  ratio {x['ratio']!s:7} "
              f"any {x['ratio_any']!s:7} peak {x['peak_mib']!s:>8} MiB  x floor {x['over_floor']}  "
              f"{' '.join(f'{k} {v:.1e}' for k, v in row['errors'].items())}{x['trouble']}",
              flush=True)  # fmt: skip


def command(args: argparse.Namespace) -> str:
    """Return the command that repeats this, without paths of this machine."""
    words = ["python benchmarks/bench_loss_cuda.py"]
    words += ["--device", args.device, "--dtype", args.dtype, "--seed", str(args.seed)]
    words += ["--repetitions", str(args.repetitions), "--peers", *args.peers]
    words += ["--shapes", *(",".join(map(str, shape)) for shape in args.shapes)]
    words += [] if args.trained is None else ["--trained", args.trained.name]
    return " ".join(words)


def shape_of(text: str) -> tuple[int, ...]:
    found = tuple(int(x) for x in text.split(","))
    if len(found) != 3 or min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected N,D,V, got {text}")
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16")
    parser.add_argument("--shapes", type=shape_of, nargs="*", default=SHAPES, metavar="N,D,V")
    parser.add_argument("--data", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--trained", type=Path, help="safetensors: hidden, weight, target")
    parser.add_argument("--margins", type=float, nargs="+", default=MARGINS, help="for --trained")
    parser.add_argument("--peers", choices=tuple(speed.PEERS), nargs="+", default=list(speed.PEERS))
    parser.add_argument("--repetitions", type=int, default=11, help="measured rounds")
    parser.add_argument("--slice", type=int, default=64, help="tokens that errors are taken over")
    parser.add_argument("--max-minutes", type=float, default=math.inf, help="stop cleanly by then")
    parser.add_argument("--seed", type=int, default=0, help="of the data")
    parser.add_argument("--output", type=Path, default=ROOT / "evidence/speed/loss_cuda.csv")
    return parser.parse_args()


def main() -> None:
    began, args = time.monotonic(), parse()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this needs a CUDA device; --device cpu tries it at a small shape")
    if args.output.suffix != ".csv":
        raise SystemExit("--output: expected a file .csv; the details go beside it")
    deadline = began + 60 * args.max_minutes - LAST
    saved = args.output.with_suffix(".json")
    done = json.loads(saved.read_text(encoding="utf-8"))["groups"] if saved.exists() else []
    groups = [Group("trained", None, args)] if args.trained and "trained" in args.data else []
    groups += [Group(x, shape, args) for shape in args.shapes for x in KINDS[1:] if x in args.data]
    left = [group for group in groups if group.key not in {one["key"] for one in done}]
    timer = speed.Timer(args.device)
    for number, group in enumerate(left):
        least = LEAST if args.device == "cuda" else 0
        try:
            if time.monotonic() + least > deadline:
                raise speed.OutOfTime("time is over")
            found = group.measure(timer, deadline)
        except speed.OutOfTime as stop:
            print(f"{group.key}: {stop}; {len(left) - number} left, call it again", file=sys.stderr)
            return
        if args.device == "cuda":
            torch.cuda.empty_cache()
        done.append(found)
        write(args.output, done)
        show(found)
    print(f"all done: {len(done)} in {args.output.name}")


if __name__ == "__main__":
    main()
