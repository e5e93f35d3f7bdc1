"""How wide the margin should be: in closed form, or effective for a model.

For example:

elbowroom margin closed --vocab-size 50257 --top-p 0.999

elbowroom margin effective model.safetensors --sample 4096

elbowroom margin init gpt2 gpt2-medium
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
import tyro
from torch import Tensor

from elbowroom import margins
from elbowroom.cli.main import UsageError
from elbowroom.cli.show import Integer, Number, Output, Text, progress
from elbowroom.cli.weights import Choice, Weights, load
from elbowroom.margins.norms import NormKind

VOCAB = 50257
WIDTHS = {"gpt2": 768, "gpt2-medium": 1024, "gpt2-large": 1280, "gpt2-xl": 1600}
# Paper, appendix B, table "effective margin and alpha", the columns "init": mean, deviation.
PAPER = {
    "gpt2": {"margin": [14.04, 0.02], "alpha": [0.940, 1.6e-3]},
    "gpt2-medium": {"margin": [18.93, 0.02], "alpha": [0.948, 1.2e-3]},
    "gpt2-large": {"margin": [23.83, 0.02], "alpha": [0.954, 9.5e-4]},
    "gpt2-xl": {"margin": [29.99, 0.02], "alpha": [0.958, 7.7e-4]},
}
Model = Literal["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]


@dataclass(kw_only=True)
class Closed(Output):
    """The margin that leaves nucleus (top-p) or min-p sampling as it is.

    For example:

    elbowroom margin closed --vocab-size 50257 --top-p 0.999

    elbowroom margin closed --min-p 0.05 --temperature 0.9
    """

    vocab_size: Integer = None
    """Tokens in the vocabulary; goes with --top-p."""
    top_p: Number = None
    """The nucleus, above 1 / vocab-size and below 1."""
    min_p: Number = None
    """The share of the largest probability, above 0 and at most 1."""
    temperature: float = 1.0
    """What sampling divides the logits by."""

    def run(self) -> None:
        """Compute and print the margin."""
        self.begin()
        given: dict[str, Any] = {"temperature": self.temperature}
        if (self.top_p is None) == (self.min_p is None):
            raise UsageError("pass either --top-p (with --vocab-size) or --min-p")
        if self.top_p is not None:
            if self.vocab_size is None:
                raise UsageError("--top-p needs --vocab-size")
            given = {"vocab_size": self.vocab_size, "top_p": self.top_p} | given
            margin = margins.top_p(**given)
        else:
            if self.vocab_size is not None:
                raise UsageError("--min-p does not depend on --vocab-size; leave it out")
            assert self.min_p is not None
            if not 0 < self.min_p <= 1:
                raise UsageError(f"--min-p has to be above 0 and at most 1, got {self.min_p}")
            margin = margins.min_p(self.min_p, self.temperature)
            given = {"min_p": self.min_p} | given
        rows = [[*given, "margin"], [*map(str, given.values()), f"{margin:.4f}"]]
        words = ["elbowroom", "margin", "closed", *_options(given)]
        self.deliver({**given, "margin": margin}, rows, command=words)


@dataclass(kw_only=True)
class Estimate(Output):
    """What the estimates have in common."""

    quantile: float = 0.05
    """The share of contexts in which a row may stay unshielded."""
    sample: Integer = None
    """Average over so many tokens, drawn at random; all if left out."""
    seed: int = 0
    """Of the sample, and of random weights."""

    def estimate(self, what: str, weight: Tensor, norm: margins.FinalNorm) -> dict[str, Any]:
        """Return the effective margin and alpha as plain data, and show progress."""
        start = time.perf_counter()
        with progress(what) as on_block:
            found = margins.effective(
                weight, norm, self.quantile, sample=self.sample, seed=self.seed, on_block=on_block
            )
        return {
            "margin": found.margin,
            "margin_std": found.margin_std,
            "alpha": found.alpha,
            "alpha_std": found.alpha_std,
            "vocab_size": weight.shape[0],
            "width": weight.shape[1],
            "tokens": len(found.tokens),
            "quantile": self.quantile,
            "seconds": round(time.perf_counter() - start, 1),
        }

    def words(self, *middle: str) -> list[str]:
        """Return the command that repeats this, without where its result goes."""
        options = {"quantile": self.quantile, "sample": self.sample, "seed": self.seed}
        return ["elbowroom", "margin", *middle, *_options(options)]


@dataclass(kw_only=True)
class Effective(Estimate):
    """The margin that is effective for a model's weights (appendix B of the paper).

    The embedding and the final norm are found by their usual names; eps is read from a config.json
    beside the weights. The result says what was chosen.

    For example:

    elbowroom margin effective model.safetensors

    elbowroom margin effective model-1.safetensors model-2.safetensors --sample 4096

    elbowroom margin effective m.safetensors --embedding head.weight --norm n.weight --eps 1e-6
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE...")]
    """One or more safetensors files of one model."""
    embedding: Text = None
    """The output embedding's name."""
    norm: Text = None
    """The name of the final norm's weight."""
    norm_kind: Annotated[NormKind | None, tyro.conf.arg(metavar="{layer,rms}")] = None
    """LayerNorm or RMSNorm."""
    norm_offset: Number = None
    """Added to the norm's weight; 1 for Gemma's."""
    eps: Number = None
    """The norm's eps."""

    def run(self) -> None:
        """Read the files, estimate and print."""
        self.begin()
        if not self.files:
            raise UsageError("pass at least one safetensors file")
        weights = Weights(self.files)
        choice = Choice(
            embedding=self.embedding,
            norm=self.norm,
            kind=self.norm_kind,
            eps=self.eps,
            offset=self.norm_offset,
        )
        weight, norm, chosen = load(weights, choice)
        names = [path.name for path in self.files]
        record = {"files": names, **chosen, **self.estimate(chosen["embedding"], weight, norm)}
        said = {k.replace("_", "-"): chosen[k] for k in ("embedding", "norm", "norm_kind")}
        said |= {"eps": chosen["eps"], "norm-offset": chosen["norm_offset"]}
        words = self.words("effective", *names, *_options(said))
        rows = _rows([(chosen["embedding"], record)])
        norm_row = f"{chosen['norm']} ({chosen['norm_kind']}, eps {chosen['eps']:g})"
        rows = [[*rows[0], "final norm"], [*rows[1], norm_row]]
        self.deliver(record, rows, command=words, seed=self.seed)


@dataclass(kw_only=True)
class Init(Estimate):
    """The margin that is effective before training, by the shape of the model.

    Embeddings are drawn from a normal distribution; the final norm is a LayerNorm with weight 1,
    bias 0 and eps 1e-5. The margin grows about as 0.02 times the width.

    For example:

    elbowroom margin init gpt2 gpt2-medium gpt2-large gpt2-xl

    elbowroom margin init --vocab-size 8192 --width 256 --sample 1024
    """

    models: Annotated[
        tuple[Model, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...")
    ] = ()
    """Of the GPT-2 family: gpt2, gpt2-medium, gpt2-large, gpt2-xl."""
    vocab_size: Integer = None
    """Tokens in the vocabulary; goes with --width."""
    width: Integer = None
    """Width of the embeddings."""
    std: float = 0.02
    """Standard deviation of the embeddings."""

    def run(self) -> None:
        """Draw embeddings, estimate and print."""
        self.begin()
        found = []
        for name, vocab, width in self._shapes():
            record = {"model": name, **self.estimate(name, self._draw(vocab, width), _NORM)}
            if name in PAPER:
                record["paper"] = PAPER[name]
            found.append((name, record))
        shape = {"vocab-size": self.vocab_size, "width": self.width, "std": self.std}
        words = self.words("init", *self.models, *_options(shape))
        record = {"std": self.std, "eps": _NORM.eps, "models": [r for _, r in found]}
        self.deliver(record, _rows(found), command=words, seed=self.seed)

    def _shapes(self) -> list[tuple[str, int, int]]:
        shapes = [(str(name), VOCAB, WIDTHS[name]) for name in self.models]
        if (self.vocab_size is None) != (self.width is None):
            raise UsageError("--vocab-size and --width go together")
        if self.vocab_size is not None and self.width is not None:
            if self.vocab_size < 2 or self.width < 1:
                raise UsageError("--vocab-size has to be at least 2, --width at least 1")
            name = f"{self.vocab_size} x {self.width}"
            shapes.append((name, self.vocab_size, self.width))
        if not shapes:
            raise UsageError(f"name a model ({', '.join(WIDTHS)}), or --vocab-size and --width")
        return shapes

    def _draw(self, vocab: int, width: int) -> Tensor:
        if not self.std > 0:
            raise UsageError(f"--std has to be above 0, got {self.std}")
        generator = torch.Generator().manual_seed(self.seed)
        return torch.empty(vocab, width).normal_(0.0, self.std, generator=generator)


_NORM = margins.FinalNorm("layer", eps=1e-5)


def _rows(found: Sequence[tuple[str, dict[str, Any]]]) -> list[list[str]]:
    rows = [["model", "vocab", "width", "tokens", "margin", "std", "alpha", "alpha std"]]
    with_paper = any("paper" in record for _, record in found)
    if with_paper:
        rows[0] += ["paper: margin", "paper: alpha"]
    for name, r in found:
        row = [name, str(r["vocab_size"]), str(r["width"]), str(r["tokens"])]
        row += [f"{r['margin']:.2f}", f"{r['margin_std']:.2f}"]
        row += [f"{r['alpha']:.3f}", f"{r['alpha_std']:.1e}"]
        if with_paper:
            paper = r.get("paper")
            row += ["", ""] if paper is None else [str(paper["margin"][0]), str(paper["alpha"][0])]
        rows.append(row)
    return rows


def _options(values: dict[str, Any]) -> list[str]:
    """Return the words of options; those without a value are left out."""
    return [
        word
        for name, value in values.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


Command: TypeAlias = (
    Annotated[Closed, tyro.conf.subcommand("closed")]
    | Annotated[Effective, tyro.conf.subcommand("effective")]
    | Annotated[Init, tyro.conf.subcommand("init")]
)
