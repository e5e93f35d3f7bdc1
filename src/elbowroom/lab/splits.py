"""Which part of the texts is held out: disjoint, and the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.corpora.texts import Document

By = Literal["auto", "documents", "position"]
BYS = ("auto", "documents", "position")
_ENOUGH = 10  # distinct documents, from which on whole ones are held out


@dataclass(frozen=True)
class Part:
    """The characters of a document from ``start`` to ``stop``."""

    document: Document
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


Parts = tuple[Part, ...]


def split(documents: Sequence[Document], validation: float, by: By = "auto") -> tuple[Parts, Parts]:
    """Return what to train on and what to validate on, each in the documents' order.

    Args:
        documents: of one language. Equal documents never end up on both sides.
        validation: the share of the characters that is held out, about.
        by: "documents": whole documents, chosen by the SHA-256 of their text, so that the choice
            depends on nothing else. "position": the end of each document, as the paper does with
            one. "auto": whole documents where there are ten different ones and they come near the
            share that is asked for (half to twice), else by position.

    Example:
        >>> train, held_out = split([Document.from_text("a", "0123456789")], 0.1)
        >>> train[0].stop, held_out[0].start
        (9, 9)
    """
    checks.number("validation", validation, above=0.0, below=1.0)
    checks.choice("by", by, BYS)
    documents = [document for document in documents if document.characters]
    distinct = len({document.sha256 for document in documents})
    if by == "position" or (by == "auto" and distinct < _ENOUGH):
        return _by_position(documents, validation)
    if distinct < 2:
        fix = 'pass by="position" (or "auto")'
        raise ArgumentValueError("by", "at least 2 different documents to choose from", by, fix)
    train, held_out = _by_documents(documents, validation)
    asked = validation * sum(document.characters for document in documents)
    if by == "auto" and not asked / 2 <= size(held_out) <= asked * 2:
        return _by_position(documents, validation)
    return train, held_out


def _by_position(documents: Sequence[Document], validation: float) -> tuple[Parts, Parts]:
    cuts = [int((1 - validation) * document.characters) for document in documents]
    pairs = list(zip(documents, cuts, strict=True))
    train = tuple(Part(document, 0, cut) for document, cut in pairs if cut)
    return train, tuple(Part(d, cut, d.characters) for d, cut in pairs if cut < d.characters)


def _by_documents(documents: Sequence[Document], validation: float) -> tuple[Parts, Parts]:
    """Hold out documents in the order of their hashes, each that brings the share nearer."""
    asked = validation * sum(document.characters for document in documents)
    chosen: set[str] = set()
    total = 0
    ordered = sorted(documents, key=lambda document: document.sha256)
    groups = [(key, sum(d.characters for d in g)) for key, g in groupby(ordered, _sha256)]
    for key, characters in groups:
        if len(chosen) + 1 < len(groups) and abs(total + characters - asked) < abs(total - asked):
            chosen.add(key)
            total += characters
    if not chosen:  # all are longer than twice what is asked for: the shortest then
        chosen.add(min(groups, key=lambda group: (group[1], group[0]))[0])
    whole = [Part(document, 0, document.characters) for document in documents]
    train = tuple(part for part in whole if part.document.sha256 not in chosen)
    return train, tuple(part for part in whole if part.document.sha256 in chosen)


def _sha256(document: Document) -> str:
    return document.sha256


def carve(parts: Parts, share: float) -> tuple[Parts, Parts]:
    """Return the text without its end, and the end: ``share`` of all characters.

    Example:
        >>> text = (Part(Document.from_text("a", "0123456789"), 0, 10),)
        >>> [len(part) for (part,) in carve(text, 0.2)]
        [8, 2]
    """
    cut = int((1 - share) * size(parts))
    first, second = [], []
    at = 0
    for part in parts:
        middle = part.start + min(max(cut - at, 0), len(part))
        if middle > part.start:
            first.append(Part(part.document, part.start, middle))
        if middle < part.stop:
            second.append(Part(part.document, middle, part.stop))
        at += len(part)
    return tuple(first), tuple(second)


def size(parts: Parts) -> int:
    """Return how many characters the parts have."""
    return sum(len(part) for part in parts)


def pieces(parts: Parts, separator: str) -> Iterator[str]:
    """Yield the text of the parts, with the separator between two of them."""
    for i, part in enumerate(parts):
        if i and separator:
            yield separator
        yield from part.document.pieces(part.start, part.stop)
