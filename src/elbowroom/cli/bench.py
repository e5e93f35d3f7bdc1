"""How fast head and loss are here: ours beside the peers that are installed.

Forward and backward of all of them in turn, on the same data, in one process. Without --margin and
--share, ours is ordinary cross-entropy (margin inf) and keeps 10, 1 and .1% of the logits.

For example:

elbowroom bench

elbowroom bench --tokens 8192 --width 4096 --vocab 131072 --dtype bfloat16 --device cuda

elbowroom bench --margin inf 1 2 --peers eager compile

elbowroom bench --share .5 .01 --scattered --clustered --json
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import tyro

from elbowroom import checks
from elbowroom.cli.main import UsageError
from elbowroom.cli.show import File, Integer, Output, progress, say
from elbowroom.errors import ElbowroomError
from elbowroom.study import speed

SHARES = (0.1, 0.01, 0.001)
SHAPES = {"cpu": speed.Shape(512, 256, 32768), "cuda": speed.Shape(4096, 2048, 128256)}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
USUAL = {"cpu": "float32", "cuda": "bfloat16"}
NONE = "–"
Peer = Literal["eager", "compile", "chunked", "torch", "liger", "cce"]
Numbers = Annotated[tuple[float, ...], tyro.conf.arg(metavar="FLOAT...")]


@dataclass(kw_only=True)
class Command(Output):
    """The command's arguments."""

    tokens: Integer = None
    """Tokens of a batch; 512 on a CPU, 4096 on CUDA."""
    width: Integer = None
    """Width of the hidden states; 256 on a CPU, 2048 on CUDA."""
    vocab: Integer = None
    """Rows of the head; 32768 on a CPU, 128256 on CUDA."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of hidden states and head; auto is float32 on a CPU, bfloat16 on CUDA."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to measure; auto is CUDA where it is there."""
    margin: Numbers = ()
    """Margins of ours; inf is ordinary cross-entropy."""
    share: Numbers = ()
    """Shares of the logits that ours keeps, by margins made for it, above 0 and at most 1."""
    clustered: bool = False
    """Data as of a trained model: kept logits gather in few tokens and frequent rows. This is meant
    where neither is said; with --scattered both are measured."""
    scattered: bool = False
    """Every token keeps as much as any other, anywhere in the vocabulary."""
    trained: File = None
    """A safetensors file with hidden, weight and target of your own model, instead of made data."""
    repetitions: int = 7
    """Measured rounds."""
    peers: Annotated[tuple[Peer, ...], tyro.conf.arg(metavar="PEER...")] = (
        *("eager", "compile", "chunked", "torch", "liger", "cce"),
    )
    """Of eager, compile, chunked, torch, liger and cce; all if left out."""
    seed: int = 0
    """Of the data."""

    def run(self) -> None:
        """Measure and print."""
        self._check()
        self.begin()
        device = self._device()
        dtype = USUAL[device] if self.dtype == "auto" else self.dtype
        found = []
        for data in self._kinds():
            try:
                found.append(self._measured(data, device, dtype))
            except (RuntimeError, MemoryError) as error:
                if not speed.is_full(error):
                    raise
                raise ElbowroomError(f"the {data} data do not fit; lower --tokens") from error
        record = {
            "what": "seconds of forward and backward of head and loss; ratios to the fastest dense "
            "peer in the same round; peak bytes beyond inputs and gradients",
            "device": device,
            "dtype": dtype,
            "packages": speed.versions(),
            "measured": found,
        }
        words = self._words(device, dtype)
        self.deliver(record, _table(found), command=words, seed=self.seed, spare=("p20", "p80"))
        if not self.json:
            say([line for one in found for line in _sentences(one)])

    def _check(self) -> None:
        """Raise where an option cannot be meant, before any work."""
        for name, least in (("tokens", 1), ("width", 1), ("vocab", 2), ("repetitions", 1)):
            if getattr(self, name) is not None:
                checks.integer(f"--{name}", getattr(self, name), at_least=least)
        for margin in self.margin:
            if math.isnan(margin) or margin < 0:
                raise UsageError(f"--margin has to be at least 0, got {margin:g}")
        for share in self.share:
            if not 0 < share <= 1:
                raise UsageError(f"--share has to be above 0 and at most 1, got {share:g}")
        if not self.peers:
            raise UsageError("--peers: name at least one")
        made = (self.tokens, self.width, self.vocab)
        if self.trained is not None and (
            any(x is not None for x in made) or self.clustered or self.scattered
        ):
            raise UsageError("--trained brings its own shape and data; leave the others out")

    def _device(self) -> str:
        there = torch.cuda.is_available()
        if self.device == "cuda" and not there:
            raise UsageError("--device cuda: torch sees no CUDA device here; pass cpu")
        return ("cuda" if there else "cpu") if self.device == "auto" else self.device

    def _kinds(self) -> Iterator[str]:
        """Yield the kinds of data to measure with."""
        if self.trained is not None:
            yield "trained"
            return
        if self.clustered or not self.scattered:
            yield "clustered"
        if self.scattered:
            yield "scattered"

    def _measured(self, data: str, device: str, dtype: str) -> dict[str, Any]:
        """Make the data, let all run, and return the rows as plain data."""
        with progress(f"measuring, {data} data") as on_step:
            problem = self._problem(data, device, DTYPES[dtype])
            plain = not self.margin and not self.share
            margins, shares = ((math.inf,), SHARES) if plain else (self.margin, self.share)
            ways = speed.peer_ways(problem, self.peers) + speed.ours(problem, margins, shares)
            speed.measure(
                problem,
                ways,
                speed.Timer(device),
                repetitions=self.repetitions,
                on_step=on_step,
            )
        best = speed.fastest(ways)
        return {
            "data": data,
            "shape": problem.shape._asdict(),
            "fastest_dense_peer": None if best is None else best.name,
            "rows": speed.results(ways),
        }

    def _problem(self, data: str, device: str, dtype: torch.dtype) -> speed.Problem:
        if self.trained is not None:
            return speed.read(self.trained, dtype, device)
        given = zip((self.tokens, self.width, self.vocab), SHAPES[device], strict=True)
        shape = speed.Shape(*(usual if x is None else x for x, usual in given))
        return speed.synthetic(
            shape, clustered=data == "clustered", dtype=dtype, device=device, seed=self.seed
        )

    def _words(self, device: str, dtype: str) -> list[str]:
        """Return the command that repeats this, without where its result goes."""
        words = ["elbowroom", "bench", "--device", device, "--dtype", dtype]
        if self.trained is None:
            given = zip((self.tokens, self.width, self.vocab), SHAPES[device], strict=True)
            shape = speed.Shape(*(usual if x is None else x for x, usual in given))
            for name, value in shape._asdict().items():
                words += [f"--{name}", str(value)]
            words += [f"--{kind}" for kind in self._kinds()]
        else:
            words += ["--trained", self.trained.name]
        for name in ("margin", "share"):
            if getattr(self, name):
                words += [f"--{name}", *(f"{x:g}" for x in getattr(self, name))]
        words += ["--peers", *self.peers, "--repetitions", str(self.repetitions)]
        return [*words, "--seed", str(self.seed)]


def _table(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return the rows for people, those without a time last; memory where it was measured."""
    heading = ["data", "method", "kept", "ms", "p20", "p80", "ratio", "MiB", "remark"]
    rows = []
    for one in found:
        ordered = sorted(one["rows"], key=lambda row: row["seconds"] is None)
        rows += [[one["data"], *_cells(row)] for row in ordered]
    unused = {
        i
        for i, name in enumerate(heading)
        if (name == "MiB" and all(row[i] == NONE for row in rows))
        or (name == "data" and len(found) == 1)
        or (name == "remark" and all(row[i] == NONE for row in rows))
    }
    return [[x for i, x in enumerate(row) if i not in unused] for row in (heading, *rows)]


def _cells(row: dict[str, Any]) -> list[str]:
    times, ratio, peak = row["seconds"], row["ratio"], row["peak_bytes"]
    shown = [NONE] * 3
    if times is not None:
        shown = [f"{1e3 * times[name]:.2f}" for name in ("median", "p20", "p80")]
    return [
        row["method"],
        f"{row['kept']:.3%}",
        *shown,
        NONE if ratio is None else f"{ratio['median']:.3f}",
        NONE if peak is None else f"{peak / 2**20:.0f}",
        row["trouble"] or NONE,
    ]


def _sentences(one: dict[str, Any]) -> Iterator[str]:
    """Yield what the ratios say."""
    best = one["fastest_dense_peer"]
    if best is None:
        yield "No peer could be measured, so there are no ratios."
        return
    shape = ", ".join(f"{name} {value}" for name, value in one["shape"].items())
    line = (
        f"{one['data'].capitalize()} data, {shape}: ratios are to {best!r}, the fastest dense peer"
    )
    own = [row for row in one["rows"] if not row["peer"] and row["ratio"]]
    if own:
        first = min(own, key=lambda row: row["ratio"]["median"])
        line += f"; {first['method']!r} takes {first['ratio']['median']:.2f} of its time"
    yield f"{line}."
