"""Texts and a tokenizer make a corpus: ids of each language, for training and for validation.

With a folder the ids lie in files that are memory-mapped (`elbowroom.lab.token_files`). Texts are
read, encoded and written piece by piece, so that memory does not grow with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError, FileError
from elbowroom.lab import sampling
from elbowroom.lab.corpora.texts import Texts
from elbowroom.lab.fetch import Progress
from elbowroom.lab.splits import By, Parts, carve, pieces, size, split
from elbowroom.lab.token_files import Meter, Tokens, in_memory, map_file, narrowest, to_file
from elbowroom.lab.tokenizers import (
    Tokenizer,
    Twins,
    load_tokenizer,
    read_json,
    tokenizer_from_dict,
    train_tokenizer,
    training_key,
)
from elbowroom.provenance import write_json

FORMAT = 1
_OWN = 0.99  # of an id's use, from which on it belongs to a language


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """The text of one language in one split, as ids ``tokens + offset``."""

    tokens: Tokens
    """uint8, uint16 or uint32; memory-mapped where it comes from a file."""
    offset: int = 0
    """Added to every id: the simulated second language has V on the same text."""

    def __len__(self) -> int:
        return len(self.tokens)

    def ids(self, start: int = 0, stop: int | None = None) -> Int64[np.ndarray, " m"]:
        """Return ids as int64, the offset added."""
        return self.tokens[start:stop].astype(np.int64) + self.offset


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """What a model is trained and evaluated on; made by `prepare`."""

    languages: tuple[str, ...]
    vocab_size: int
    train: tuple[Stream, ...]
    """One a language, in the order of ``languages``."""
    validation: tuple[Stream, ...]
    """Disjoint from ``train``."""
    byte_lengths: Int64[np.ndarray, " V"]
    """Bytes of UTF-8 that each id stands for."""
    group_of_token: Int64[np.ndarray, " V"]
    """The language that an id belongs to: nearly all of its use, per token of text, is there. -1
    where several share it, or nobody uses it."""
    tokenizer: Tokenizer
    default_shares: tuple[float, ...]
    """How often languages are drawn unless told otherwise: as the text is, or the pair's."""
    fingerprint: str
    """SHA-256 over everything that decides the ids."""

    def counts(self) -> Int64[np.ndarray, "L V"]:
        """Return how often each id occurs in each language's training text."""
        streams, vocab_size = self.train, self.vocab_size
        return np.stack([_count(s.tokens, vocab_size, s.offset) for s in streams])

    def frequencies(self, shares: Sequence[float] | None = None) -> Float64[np.ndarray, " V"]:
        """Return how frequent each id is where languages are drawn with these shares.

        Paper, figure "Token distribution": the expected counts are these times the length of the
        training text.

        Args:
            shares: one a language; ``default_shares`` if None. They need not add up to 1.
        """
        lengths = np.array([len(stream) for stream in self.train])
        given = self.default_shares if shares is None else shares
        weights = np.array(sampling.shares(lengths.tolist(), "fixed", fixed=given))
        return np.asarray((weights / lengths) @ self.counts())


def prepare(
    texts: Texts,
    tokenizer: str | Tokenizer = "characters",
    *,
    vocab_size: int = 8192,
    validation: float = 0.1,
    split_by: By = "auto",
    context: int = 64,
    separator: str = "\n\n",
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Encode texts into a corpus, or reuse what an earlier call left in the folder.

    Args:
        texts: see `elbowroom.lab.corpora.load`.
        tokenizer: a tokenizer, or "characters", "bytes", "bpe", or the path of a ``.json`` file.
            Characters are those of all texts, as in the paper, so that validation has none that is
            unknown; a byte-pair encoding is trained on the training text alone.
        vocab_size: of a byte-pair encoding that is trained here.
        validation: the share of each language's text that is held out.
        split_by: how it is chosen, see `elbowroom.lab.splits.split`.
        context: the shortest text that will do, in tokens, less one.
        separator: what comes between two documents.
        folder: where to keep token files; each corpus gets a folder of its own in it. None keeps
            everything in memory.
        progress: called with characters encoded and their total.

    Example:
        >>> from elbowroom.lab.corpora import Document, Pair
        >>> hello = Document.from_text("hello", "hello " * 200)
        >>> texts = Texts(name="toy", documents={"en": (hello,)}).paired(Pair())
        >>> corpus = prepare(texts, "characters")
        >>> corpus.languages, corpus.vocab_size, len(corpus.train[0]), len(corpus.validation[1])
        (('hr', 'lr'), 10, 1080, 120)
        >>> corpus.train[0].ids(0, 5), corpus.train[1].ids(0, 5)
        (array([2, 1, 3, 3, 4]), array([7, 6, 8, 8, 9]))
    """
    checks.integer("context", context, at_least=1)
    if isinstance(tokenizer, str) and tokenizer.endswith(".json"):
        tokenizer = load_tokenizer(tokenizer)
    elif not isinstance(tokenizer, str) and not hasattr(tokenizer, "encode"):
        raise ArgumentTypeError("tokenizer", "a name or a tokenizer", checks.describe(tokenizer))
    plan = _plan(texts, validation, split_by)
    place = None
    if folder is not None:
        if isinstance(tokenizer, str):
            identity: object = training_key(tokenizer, vocab_size)
        else:
            identity = tokenizer.to_dict()
        key = _digest([FORMAT, texts.fingerprint, identity, validation, split_by, separator])
        place = Path(folder) / key[:20]
        if (place / "corpus.json").is_file():
            try:
                return _long_enough(load_corpus(place), context)
            except FileError:
                pass  # damaged: made again below, file by file
    if isinstance(tokenizer, str):
        tokenizer = _train(tokenizer, plan, separator, vocab_size)
    corpus = _encode(texts, tokenizer, plan, separator, place, progress)
    return _long_enough(corpus, context)


def load_corpus(folder: str | Path, *, verify: bool = True) -> Corpus:
    """Load the corpus that `prepare` left in its folder, memory-mapped.

    Args:
        folder: the one with ``corpus.json``.
        verify: compare the SHA-256 of every token file with its header.
    """
    folder = Path(folder)
    content = read_json(folder / "corpus.json")
    try:
        tokenizer = tokenizer_from_dict(content["tokenizer"])
        files = {row["file"] for key in ("train", "validation") for row in content[key]}
        tokens = {name: map_file(folder, name, verify) for name in sorted(files)}
        train, held_out = (
            tuple(Stream(tokens=tokens[s["file"]], offset=s["offset"]) for s in content[key])
            for key in ("train", "validation")
        )
        return Corpus(
            languages=tuple(content["languages"]),
            vocab_size=tokenizer.vocab_size,
            train=train,
            validation=held_out,
            byte_lengths=tokenizer.byte_lengths(),
            group_of_token=np.array(content["group_of_token"], dtype=np.int64),
            tokenizer=tokenizer,
            default_shares=tuple(content["default_shares"]),
            fingerprint=content["fingerprint"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{folder}: not a corpus of this version ({error!r})") from error


@dataclass(frozen=True)
class _Plan:
    """The parts to encode once each, and what the languages read of them."""

    parts: tuple[Parts, ...]
    train: tuple[tuple[int, int], ...]  # a language: (index into parts, copy of the vocabulary)
    validation: tuple[tuple[int, int], ...]
    copies: int


def _plan(texts: Texts, validation: float, by: By) -> _Plan:
    if texts.pair is None:
        halves = [split(documents, validation, by) for documents in texts.documents.values()]
        parts = tuple(half for pair in halves for half in pair)
        n = len(halves)
        train = tuple((2 * i, 0) for i in range(n))
        return _Plan(parts, train, tuple((2 * i + 1, 0) for i in range(n)), 1)
    both = split(next(iter(texts.documents.values())), validation, by)
    if texts.pair.protocol == "same":
        return _Plan(both, ((0, 0), (0, 1)), ((1, 0), (1, 1)), 2)
    carved = [carve(parts, texts.pair.second_part) for parts in both]
    parts = (*carved[0], *carved[1])
    return _Plan(parts, ((0, 0), (1, 1)), ((2, 0), (3, 1)), 2)


def _train(kind: str, plan: _Plan, separator: str, vocab_size: int) -> Tokenizer:
    wanted = range(len(plan.parts))
    if kind == "bpe":
        wanted = sorted({i for i, _ in plan.train})  # type: ignore[assignment]
    text = (piece for i in wanted for piece in pieces(plan.parts[i], separator))
    return train_tokenizer(kind, text, vocab_size=vocab_size)


def _encode(
    texts: Texts,
    tokenizer: Tokenizer,
    plan: _Plan,
    separator: str,
    folder: Path | None,
    progress: Progress | None,
) -> Corpus:
    base, whole = _base(tokenizer, plan.copies)
    meter = Meter(sum(size(parts) for parts in plan.parts), progress)
    width = narrowest(base.vocab_size)
    tokens, hashes = [], []
    for i, parts in enumerate(plan.parts):
        encoded = meter.encode(base, pieces(parts, separator), width)
        if folder is None:
            array, digest = in_memory(encoded, width)
        else:
            array, digest = to_file(encoded, width, folder / f"{i}.bin")
        tokens.append(array)
        hashes.append(digest)
    train, held_out = (
        [Stream(tokens=tokens[i], offset=copy * base.vocab_size) for i, copy in rows]
        for rows in (plan.train, plan.validation)
    )
    streams = [[(hashes[i], copy) for i, copy in rows] for rows in (plan.train, plan.validation)]
    corpus = Corpus(
        languages=texts.languages,
        vocab_size=whole.vocab_size,
        train=tuple(train),
        validation=tuple(held_out),
        byte_lengths=whole.byte_lengths(),
        group_of_token=_groups(train, whole.vocab_size, texts.pair is not None),
        tokenizer=whole,
        default_shares=_natural(texts, train),
        fingerprint=_digest([FORMAT, texts.languages, whole.to_dict(), streams]),
    )
    if folder is not None:
        _write(corpus, plan, folder)
    return corpus


def _base(tokenizer: Tokenizer, copies: int) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizer that encodes, and the one of the whole vocabulary."""
    if isinstance(tokenizer, Twins):
        if tokenizer.copies != copies:
            expected = f"one for {copies} copies of the vocabulary"
            raise ArgumentValueError("tokenizer", expected, f"one for {tokenizer.copies}")
        return tokenizer.base, tokenizer
    return tokenizer, tokenizer if copies == 1 else Twins(tokenizer, copies)


def _write(corpus: Corpus, plan: _Plan, folder: Path) -> None:
    """Write what is not in the token files; the last file, without which the rest is nothing."""
    content: dict[str, Any] = {
        "format": FORMAT,
        "languages": corpus.languages,
        "tokenizer": corpus.tokenizer.to_dict(),
        "group_of_token": corpus.group_of_token.tolist(),
        "default_shares": corpus.default_shares,
        "fingerprint": corpus.fingerprint,
    }
    for key, streams, rows in (
        ("train", corpus.train, plan.train),
        ("validation", corpus.validation, plan.validation),
    ):
        pairs = zip(streams, rows, strict=True)
        content[key] = [{"file": f"{i}.bin", "offset": s.offset} for s, (i, _) in pairs]
    write_json(folder / "corpus.json", content)


def _groups(streams: Sequence[Stream], vocab_size: int, pair: bool) -> Int64[np.ndarray, " V"]:
    if pair:
        return np.repeat(np.arange(2), vocab_size // 2)
    rates = np.stack([_count(s.tokens, vocab_size, s.offset) / max(len(s), 1) for s in streams])
    total = rates.sum(0)
    own = (rates >= _OWN * total) & (total > 0)
    return np.where(own.any(0), own.argmax(0), -1)


def _count(tokens: Tokens, vocab_size: int, offset: int) -> Int64[np.ndarray, " V"]:
    counts = np.zeros(vocab_size, dtype=np.int64)
    for i in range(0, len(tokens), 1 << 24):
        found = np.bincount(tokens[i : i + (1 << 24)], minlength=vocab_size - offset)
        counts[offset:] += found
    return counts


def _natural(texts: Texts, train: Sequence[Stream]) -> tuple[float, ...]:
    if texts.pair is not None:
        return (1 - texts.pair.share, texts.pair.share)
    total = max(sum(len(stream) for stream in train), 1)
    return tuple(len(stream) / total for stream in train)


def _long_enough(corpus: Corpus, context: int) -> Corpus:
    """Return the corpus if each language has a window and its next token."""
    for name, streams in (("training", corpus.train), ("validation", corpus.validation)):
        for language, stream in zip(corpus.languages, streams, strict=True):
            if len(stream) <= context:
                raise ArgumentValueError(
                    "texts",
                    f"at least {context + 1} tokens for {name} in {language!r} "
                    f"(a context of {context}, and the token after it)",
                    f"{len(stream)} tokens",
                    "add text, hold out another share, or make the context shorter",
                )
    return corpus


def _digest(values: object) -> str:
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
