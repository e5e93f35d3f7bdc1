"""From a configuration to the corpus it names."""

from __future__ import annotations

from elbowroom.lab.config import DataConfig
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
