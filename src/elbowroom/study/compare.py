"""The comparison that a newcomer runs: cross-entropy and ours, tied and untied, on some texts.

Ours is the margin annealed from 1 to ``top_p(V, .999)``. Where the second language is a simulated
twin of the first, its rows also start at zero and are protected from the first language's contexts
until half-way (see docs/study.md for what this does on real languages, and why it is no default).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elbowroom import checks
from elbowroom.lab.config import DataConfig, RunConfig, merge, plan
from elbowroom.lab.evaluation import twins
from elbowroom.lab.tokens import Corpus

REFERENCES = ("ce-tied", "ce-untied")
METHODS = (*REFERENCES, "ours", "ours-untied")
ANNEALED = {"start": 1.0, "end_top_p": 0.999}
BPE_FROM = 300_000  # characters of text from which on byte pairs are worth it


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large and how long the compared models are; made for a few minutes on two cores."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 64
    batch: int = 12
    steps: int = 2200
    lr: float = 3e-3
    windows: int = 400
    """Windows a language in the final evaluation."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context", "batch", "steps"):
            checks.integer(name, getattr(self, name), at_least=1)
        checks.integer("windows", self.windows, at_least=2)
        checks.number("lr", self.lr, above=0.0)


def data_for(source: str, tokenizer: str = "auto", characters: int | None = None) -> DataConfig:
    """Return the data of a comparison.

    Args:
        source: as `elbowroom.lab.corpora.load` takes it.
        tokenizer: "auto" for characters on the built-in texts, and on others for byte pairs where
            there is enough text and the package for it, else bytes.
        characters: how long the texts are, for "auto".
    """
    if tokenizer == "auto":
        known = source.partition("?")[0] in ("shakespeare", "pydoc")
        has_bpe = importlib.util.find_spec("tokenizers") is not None
        enough = characters is not None and characters >= BPE_FROM
        tokenizer = "characters" if known else "bpe" if has_bpe and enough else "bytes"
    return DataConfig(source=source, tokenizer=tokenizer, vocab_size=4096)


def comparison_runs(
    corpus: Corpus,
    data: DataConfig,
    *,
    seeds: int = 4,
    size: Size | None = None,
    change: Mapping[str, Any] | None = None,
) -> list[RunConfig]:
    """Return the runs of a comparison: each method with the same seeds.

    Args:
        corpus: what the data name.
        data: for the configurations.
        seeds: how many.
        size: how large and how long.
        change: values that all runs take over, as in a configuration file.
    """
    checks.integer("seeds", seeds, at_least=1)
    base = comparison_base(data, size=size, change=change)
    return plan({"seeds": seeds, "base": base, "runs": _methods(corpus)})


def comparison_base(
    data: DataConfig, *, size: Size | None = None, change: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what the runs of a comparison have in common, as in a configuration file.

    Args:
        data: for the configurations.
        size: how large and how long.
        change: values that all runs take over.
    """
    size = size or Size()
    every = max(1, size.steps // 20)
    base = {
        "data": data,
        "model": {
            "layers": size.layers,
            "width": size.width,
            "heads": size.heads,
            "context": size.context,
        },
        "optimizer": {
            "lr": size.lr,
            "min_lr": size.lr / 10,
            "warmup": min(100, max(1, size.steps // 10)),
        },
        "training": {
            "steps": size.steps,
            "batch": size.batch,
            "log_every": max(1, size.steps // 50),
            "eval_every": every,
            "eval_windows": 40,
        },
        "evaluation": {"windows": size.windows, "temperatures": 40},
    }
    return merge(base, change or {})


def _methods(corpus: Corpus) -> Sequence[dict[str, Any]]:
    ours: dict[str, Any] = {"name": "ours", "loss": {"margin": ANNEALED}}
    if twins(corpus) is not None:
        rare = {"languages": [corpus.languages[1]]}
        ours = merge(ours, {"loss": {"protect": rare, "protect_until": 0.5}, "zero_rows": rare})
    loose = {"model": {"tied": False}}
    return (
        {"name": "ce-tied"},
        {"name": "ce-untied", **loose},
        ours,
        {**ours, "name": "ours-untied", **loose},
    )
