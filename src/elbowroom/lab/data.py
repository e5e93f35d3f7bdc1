"""From a configuration to the corpus it names."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom.lab import sampling
from elbowroom.lab.config import DataConfig, RunConfig
from elbowroom.lab.corpora import load
from elbowroom.lab.fetch import Progress, cache_folder
from elbowroom.lab.tokens import Corpus, prepare


def corpus_of(
    data: DataConfig,
    context: int,
    *,
    offline: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Load the texts and encode them, or reuse what an earlier call left in the cache.

    Args:
        data: which texts, and what counts as a token.
        context: the shortest text that will do.
        offline: download nothing.
        progress: called while texts arrive and are encoded.
    """
    return prepare(
        load(data.source, offline=offline, progress=progress),
        data.tokenizer,
        vocab_size=data.vocab_size,
        validation=data.validation,
        context=context,
        folder=cache_folder() / "corpora",
        progress=progress,
    )


def shares_of(run: RunConfig, corpus: Corpus) -> Float[Tensor, " L"]:
    """Return how often a run draws each language."""
    data = run.data
    lengths = [float(len(stream.tokens)) for stream in corpus.train]
    found = sampling.shares(
        lengths if data.sampling == "unimax" else corpus.default_shares,
        data.sampling,
        tau=data.tau,
        epochs=data.epochs,
        budget=float(run.training.steps * run.training.batch * run.model.context),
        fixed=data.shares,
    )
    return torch.tensor(found, dtype=torch.float64)
