"""How much of each token's gradient is marginalization: the paper's figure of gradient ratios."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from elbowroom.diagnose import GradientRatios
from elbowroom.lab.tokens import Corpus

DIGITS = 4
KINDS = {  # of a record's ratios: what they are called
    "averages": "ratio of averages",
    "dropped": "average of ratios",
    "replaced": "average of ratios, lower bound",
}
# language and kind: tokens of the baseline below 1, and what margin 2 adds
PRINTED = {("lr", "averages"): ("14", "+12%"), ("lr", "dropped"): ("all", "+45%")}


def gradients_of(ratios: GradientRatios, corpus: Corpus, every: int) -> dict[str, Any]:
    """Return a run's ratios by language as plain data, the most frequent token first.

    Tokens that do not occur in training are left out; a ratio that is no number is None. Paper,
    Figure "Ratio of embedding gradients norms".

    Args:
        ratios: of one run, ``[V]``.
        corpus: that it was trained on.
        every: at which steps it was measured.
    """
    found = {
        "averages": ratios.ratio_of_averages(),
        "dropped": ratios.average_of_ratios("drop"),
        "replaced": ratios.average_of_ratios("replace"),
    }
    languages: dict[str, dict[str, list[Any]]] = {}
    for language, stream in zip(corpus.languages, corpus.train, strict=True):
        counts = np.bincount(np.asarray(stream.tokens, dtype=np.int64))
        order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
        ids = [i + stream.offset for i in order]
        languages[language] = {"tokens": [corpus.tokenizer.decode([i]) for i in order]}
        languages[language] |= {kind: _plain(x[ids]) for kind, x in found.items()}
    return {"every": every, "steps": ratios.steps, "languages": languages}


def ratios_of(
    records: Sequence[Mapping[str, Any]], language: str, kind: str
) -> dict[int, list[float | None]]:
    """Return one kind of ratio by seed, from the records that have it for the same tokens.

    Args:
        records: of one or more methods' runs, the first of which says what the tokens are.
        language: whose tokens.
        kind: one of `KINDS`.
    """
    tokens, found = None, {}
    for record in records:
        own = (record.get("gradients") or {}).get("languages", {}).get(language)
        if own is not None and (tokens is None or own["tokens"] == tokens):
            tokens = own["tokens"]
            found[int(record["init_seed"])] = own[kind]
    return found


def change(ours: Sequence[float | None], theirs: Sequence[float | None]) -> float | None:
    """Return the mean over tokens of a ratio's relative change, in percent; None without any.

    Example:
        >>> change([1.5, 2.0, None], [1.0, 1.0, 1.0])
        75.0
    """
    pairs = zip(ours, theirs, strict=False)
    each = [a / b - 1 for a, b in pairs if a is not None and b is not None and b > 0]
    return 100 * sum(each) / len(each) if each else None


def _plain(values: Float[Tensor, " n"]) -> list[float | None]:
    listed = values.tolist()
    return [float(f"{x:.{DIGITS}g}") if math.isfinite(x) else None for x in listed]
