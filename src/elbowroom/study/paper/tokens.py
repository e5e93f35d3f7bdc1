"""How often each token is expected in training, by language: the paper's token distribution."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from elbowroom.lab.tokens import Corpus

Counts: TypeAlias = dict[str, list[tuple[str, float]]]
# the most and the least frequent token of each language, in the figure's caption
PRINTED = {"hr": ("150,209.5", "0.98"), "lr": ("3,065.5", "0.02")}


def rarest(corpus: Corpus, count: int = 5) -> list[int]:
    """Return the ids of each language's rarest tokens, of those that occur.

    Args:
        corpus: what runs are trained on.
        count: how many a language.
    """
    found = []
    for stream in corpus.train:
        counts = np.bincount(np.asarray(stream.tokens, dtype=np.int64))
        order = [int(i) for i in np.argsort(counts, kind="stable") if counts[i]]
        found += [i + stream.offset for i in order[:count]]
    return found


def expected_counts(corpus: Corpus) -> Counts:
    """Return each language's tokens with their expected counts, the most frequent first.

    The count in the training text times how often the language is drawn; tokens that do not occur
    are left out. Paper, Figure "Token distribution".

    Args:
        corpus: what runs are trained on.
    """
    found: Counts = {}
    streams = zip(corpus.languages, corpus.train, corpus.default_shares, strict=True)
    for language, stream, share in streams:
        counts = np.bincount(np.asarray(stream.tokens, dtype=np.int64))
        order = np.argsort(-counts, kind="stable")
        found[language] = [
            (corpus.tokenizer.decode([int(i)]), share * float(counts[i]))
            for i in order
            if counts[i]
        ]
    return found
