"""What the head's rows say: the nearest of A and a, and mean cosines by the relation of letters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from elbowroom import diagnose
from elbowroom.lab.evaluation import twins
from elbowroom.lab.tokens import Corpus

Near: TypeAlias = list[list[Any]]  # name and cosine, the nearest first
LETTERS, NEAREST = ("A", "a"), 3


def neighbours_of(head: Float[Tensor, "V D"], corpus: Corpus) -> dict[str, Near] | None:
    """Return the nearest rows of each letter in both languages, as plain data.

    None where the texts are no simulated pair of characters that holds both letters.

    Args:
        head: ``[V, D]``, the output matrix.
        corpus: that it was trained on.
    """
    pairs = twins(corpus)
    if pairs is None:
        return None
    first = [int(i) for i in pairs[:, 1]]
    other = {int(a): int(b) for a, b in pairs.tolist()}  # rare to frequent
    names = {i: corpus.tokenizer.decode([i]) for i in first}
    ids = {text: i for i, text in names.items() if text in LETTERS}
    if len(ids) < len(LETTERS) or not bool(head.isfinite().all()):
        return None
    known = {i: f"{text} {corpus.languages[0]}" for i, text in names.items()}
    known |= {rare: f"{names[i]} {corpus.languages[1]}" for rare, i in other.items()}
    rare_of = {i: rare for rare, i in other.items()}
    letters = [ids[letter] for letter in LETTERS]
    asked = [*letters, *(rare_of[i] for i in letters)]
    found = diagnose.neighbours(head.float(), torch.tensor(asked), k=NEAREST)
    return {
        known[i]: [[known[j], round(c, 4)] for j, c in zip(near, cosines, strict=True)]
        for i, near, cosines in zip(asked, found.ids.tolist(), found.cosines.tolist(), strict=True)
    }


def cosines_of(head: Float[Tensor, "V D"], corpus: Corpus) -> dict[str, float] | None:
    """Return the mean cosine of the pairs of rows in each of the paper's classes.

    None where the texts are no simulated pair of single characters. Paper, Figure "Expected
    clusters mask and cosine similarity of embeddings".

    Args:
        head: ``[V, D]``, the output matrix.
        corpus: that it was trained on.
    """
    letters = letters_of(corpus)
    if letters is None or not bool(head.isfinite().all()):
        return None
    pairs = diagnose.letter_mask(letters)
    means = diagnose.cosine_by_group(head.float(), pairs.mask, count=len(pairs.names))
    named = zip(pairs.names, means.tolist(), strict=True)
    return {name: round(mean, 4) for name, mean in named if name != "ID" and math.isfinite(mean)}


def letters_of(corpus: Corpus) -> str | None:
    """Return the characters that a simulated pair shares, by id; None for other texts.

    Args:
        corpus: any.
    """
    pairs = twins(corpus)
    if pairs is None:
        return None
    letters = [corpus.tokenizer.decode([i]) for i in range(len(pairs))]
    single = all(len(letter) == 1 for letter in letters) and len(set(letters)) == len(letters)
    return "".join(letters) if single else None


def translated(near: Sequence[str], letter: str) -> int:
    """Return how many neighbours are the same letter in another language or case.

    Args:
        near: the neighbours, such as "a lr".
        letter: whose they are, such as "A hr".

    Example:
        >>> translated(["A lr", "a hr", "B lr"], "A hr")
        2
    """
    return sum(name != letter and name[:1].lower() == letter[:1].lower() for name in near)


def count(neighbours: dict[str, Near]) -> int:
    """Return how many of all neighbours are translations or capitalisations.

    Example:
        >>> count({"A hr": [["a hr", 0.4], ["E hr", 0.3]], "a hr": [["A lr", 0.2]]})
        2
    """
    return sum(translated([name for name, _ in near], key) for key, near in neighbours.items())
