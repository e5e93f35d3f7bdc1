"""Tokenizers: characters, bytes, and byte-pair encodings trained here or loaded from a file.

Each turns text into ids and back, knows how many bytes of UTF-8 each id stands for (for bits per
byte), and is saved as JSON. A byte-pair encoding needs the package ``tokenizers``, the others need
nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int64, Integer

from elbowroom import checks
from elbowroom.errors import ArgumentValueError, FileError, MissingExtraError
from elbowroom.provenance import write_json

Ids = Int64[np.ndarray, " n"]
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer(Protocol):
    """What the lab asks of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """V: ids are from 0 to V - 1."""

    def encode(self, text: str) -> Ids:
        """Return the ids of a text."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids."""

    def byte_lengths(self) -> Int64[np.ndarray, " V"]:
        """Return how many bytes of UTF-8 each id stands for."""

    def to_dict(self) -> dict[str, Any]:
        """Return all there is to know, as plain data."""

    def save(self, path: str | Path) -> Path:
        """Write `to_dict` as JSON; `load_tokenizer` reads it."""


class _Saved:
    """Saving, the same for all."""

    def save(self, path: str | Path) -> Path:
        """Write `to_dict` as JSON; `load_tokenizer` reads it."""
        return write_json(path, self.to_dict())  # type: ignore[attr-defined]


class Characters(_Saved):
    """One id for each character (Unicode code point).

    Args:
        characters: the alphabet; ids follow its order.
        unknown: add one more id, the last, for all other characters. Without it they are an error.
            It decodes to U+FFFD and counts as one byte.

    Example:
        >>> tokenizer = Characters.train(["hello"])
        >>> tokenizer.encode("hole"), tokenizer.decode([1, 0, 2, 2, 3])
        (array([1, 3, 2, 0]), 'hello')
    """

    def __init__(self, characters: str, *, unknown: bool = False) -> None:
        if not characters or len(set(characters)) != len(characters):
            expected = "at least one character, each once"
            raise ArgumentValueError("characters", expected, f"{characters[:40]!r}")
        self.characters = characters
        self.unknown = checks.flag("unknown", unknown)
        self._codes = np.array([ord(c) for c in characters], dtype=np.int64)
        self._order = np.argsort(self._codes)
        self._sorted = self._codes[self._order]

    @classmethod
    def train(cls, texts: Iterable[str], *, unknown: bool = False) -> Characters:
        """Return the alphabet of these texts, in the order of code points."""
        alphabet: set[str] = set()
        for text in texts:
            alphabet.update(text)
        return cls("".join(sorted(alphabet)), unknown=unknown)

    @property
    def vocab_size(self) -> int:
        """V."""
        return len(self.characters) + self.unknown

    def encode(self, text: str) -> Ids:
        """Return one id a character."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        codes = codes.astype(np.int64)
        place = np.searchsorted(self._sorted, codes).clip(max=len(self._sorted) - 1)
        known = self._sorted[place] == codes
        ids = np.where(known, self._order[place], len(self.characters))
        if not self.unknown and not known.all():
            at = int(np.argmin(known))
            expected = f"characters among the {len(self.characters)} that the tokenizer knows"
            fix = "train it on all texts, or make it with unknown=True"
            raise ArgumentValueError("text", expected, f"{text[at]!r} at character {at}", fix)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return one character an id."""
        alphabet = self.characters + "\ufffd" * self.unknown
        return "".join(alphabet[i] for i in _checked(ids, self.vocab_size))

    def byte_lengths(self) -> Int64[np.ndarray, " V"]:
        """Return 1 to 4 for each character."""
        lengths = [len(c.encode("utf-8", "surrogatepass")) for c in self.characters]
        return np.array(lengths + [1] * self.unknown, dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return the alphabet as plain data."""
        return {"kind": "characters", "characters": self.characters, "unknown": self.unknown}


class Bytes(_Saved):
    """The 256 bytes of UTF-8; decoding puts U+FFFD where bytes make no character.

    Example:
        >>> Bytes().encode("né"), Bytes().decode([110, 195, 169])
        (array([110, 195, 169]), 'né')
    """

    vocab_size = 256

    def encode(self, text: str) -> Ids:
        """Return one id a byte."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that the bytes are."""
        return bytes(_checked(ids, self.vocab_size)).decode("utf-8", "replace")

    def byte_lengths(self) -> Int64[np.ndarray, " V"]:
        """Return 1 for each id."""
        return np.ones(self.vocab_size, dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Return the kind."""
        return {"kind": "bytes"}


class BPE(_Saved):
    """A byte-pair encoding of the package ``tokenizers``.

    `train` makes one that works on bytes, so that it knows every text; `from_file` takes any
    ``tokenizer.json``. Special tokens are never added to a text, and stand for no bytes.

    Args:
        description: the content of a ``tokenizer.json``.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        tokenizers = _package()
        text = json.dumps(description, ensure_ascii=False)
        try:
            self._inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the package raises bare exceptions
            raise FileError(f"not the content of a tokenizer.json ({error})") from error
        self._inner.no_truncation()
        self._inner.no_padding()
        self._description = description

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> BPE:
        """Train a byte-level encoding; the same texts give the same one.

        Args:
            texts: pieces of text, read once.
            vocab_size: V, at least 256. Less comes out where the texts have too few pairs.
        """
        checks.integer("vocab_size", vocab_size, at_least=256)
        tokenizers = _package()
        inner = tokenizers.Tokenizer(tokenizers.models.BPE())
        byte_level = tokenizers.pre_tokenizers.ByteLevel
        inner.pre_tokenizer = byte_level(add_prefix_space=False, use_regex=True)
        inner.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=sorted(byte_level.alphabet()),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        return cls(json.loads(inner.to_str()))

    @classmethod
    def from_file(cls, path: str | Path) -> BPE:
        """Load a ``tokenizer.json``."""
        try:
            return cls(read_json(Path(path)))
        except FileError as error:
            raise FileError(f"{path}: {error}") from error

    @property
    def vocab_size(self) -> int:
        """V, added tokens included: one more than the largest id."""
        vocabulary: dict[str, int] = self._inner.get_vocab(with_added_tokens=True)
        return 1 + max(vocabulary.values())

    def encode(self, text: str) -> Ids:
        """Return the ids of a text, without special tokens."""
        encoded = self._inner.encode(text, add_special_tokens=False)
        return np.array(encoded.ids, dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids."""
        checked = _checked(ids, self.vocab_size)
        return str(self._inner.decode(checked, skip_special_tokens=False))

    def byte_lengths(self) -> Int64[np.ndarray, " V"]:
        """Return the bytes of each token: exact for byte-level and for sentencepiece's tokens."""
        special = {t.content for t in self._inner.get_added_tokens_decoder().values() if t.special}
        added = {t.content for t in self._inner.get_added_tokens_decoder().values()}
        byte_level = "ByteLevel" in json.dumps(self._description.get("decoder"))
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for token, i in self._inner.get_vocab(with_added_tokens=True).items():
            if token in special:
                continue
            if byte_level and token not in added:
                lengths[i] = len(token)  # each byte is written as one character
            elif _BYTE_TOKEN.fullmatch(token):
                lengths[i] = 1
            else:
                lengths[i] = len(token.replace("\u2581", " ").encode())
        return lengths

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the ``tokenizer.json``."""
        return {"kind": "bpe", "tokenizer": self._description}


class Twins(_Saved):
    """A tokenizer whose ids exist several times over: ``id + copy * base.vocab_size``.

    The paper's simulated languages: the same text under ids of its own. Which of them a text is
    encoded with is the second argument; decoding does not tell them apart.

    Args:
        base: the tokenizer of one language.
        copies: how many languages there are.

    Example:
        >>> tokenizer = Twins(Characters("abc"))
        >>> tokenizer.vocab_size, tokenizer.encode("cab", copy=1), tokenizer.decode([5, 0, 4])
        (6, array([5, 3, 4]), 'cab')
    """

    def __init__(self, base: Tokenizer, copies: int = 2) -> None:
        self.base = base
        self.copies = checks.integer("copies", copies, at_least=1)

    @property
    def vocab_size(self) -> int:
        """V, of all copies together."""
        return self.base.vocab_size * self.copies

    def encode(self, text: str, copy: int = 0) -> Ids:
        """Return the ids of a text in one of the languages."""
        if not 0 <= checks.integer("copy", copy) < self.copies:
            raise ArgumentValueError("copy", f"a number from 0 to {self.copies - 1}", copy)
        return self.base.encode(text) + copy * self.base.vocab_size

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids of any of the languages."""
        checked = _checked(ids, self.vocab_size)
        return self.base.decode([i % self.base.vocab_size for i in checked])

    def byte_lengths(self) -> Int64[np.ndarray, " V"]:
        """Return those of the base, once for each copy."""
        return np.tile(self.base.byte_lengths(), self.copies)

    def to_dict(self) -> dict[str, Any]:
        """Return the base and the number of copies."""
        return {"kind": "twins", "base": self.base.to_dict(), "copies": self.copies}


def train_tokenizer(kind: str, texts: Iterable[str], *, vocab_size: int = 8192) -> Tokenizer:
    """Return a tokenizer by name.

    Args:
        kind: "characters", "bytes", "bpe", or the path of a file: a ``tokenizer.json``, or what
            `Tokenizer.save` wrote.
        texts: what characters and byte-pair encodings are made from.
        vocab_size: of a byte-pair encoding that is trained.
    """
    if kind == "characters":
        return Characters.train(texts)
    if kind == "bytes":
        return Bytes()
    if kind == "bpe":
        return BPE.train(texts, vocab_size)
    if kind.endswith(".json"):
        return load_tokenizer(kind)
    expected = "'characters', 'bytes', 'bpe' or the path of a .json file"
    raise ArgumentValueError("tokenizer", expected, repr(kind))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load what `Tokenizer.save` wrote, or a ``tokenizer.json``."""
    path = Path(path)
    content = read_json(path)
    try:
        return tokenizer_from_dict(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileError(f"{path}: not a tokenizer's file ({error})") from error


def tokenizer_from_dict(content: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer that `Tokenizer.to_dict` described."""
    kind = content.get("kind")
    if kind == "characters":
        return Characters(content["characters"], unknown=content["unknown"])
    if kind == "bytes":
        return Bytes()
    if kind == "bpe":
        return BPE(content["tokenizer"])
    if kind == "twins":
        return Twins(tokenizer_from_dict(content["base"]), content["copies"])
    if "model" in content:
        return BPE(content)
    raise FileError("it has neither a known kind nor a model")


def read_json(path: Path) -> Mapping[str, Any]:
    """Return a JSON object from a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise FileError(f"{path}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise FileError(f"{path}: expected a JSON object, got a {type(content).__name__}")
    return content


def require_tokenizers() -> None:
    """Raise unless the package ``tokenizers`` is installed; for checks before long work."""
    if importlib.util.find_spec("tokenizers") is None:
        raise MissingExtraError("tokenizers", "hf", "a byte-pair encoding")


def training_key(kind: str, vocab_size: int) -> list[str | int]:
    """Return what decides a tokenizer that `train_tokenizer` makes, beside the texts."""
    if kind != "bpe":
        return [kind]
    require_tokenizers()
    return [kind, vocab_size, importlib.metadata.version("tokenizers")]


def _package() -> Any:
    require_tokenizers()
    import tokenizers

    return tokenizers


def _checked(ids: Iterable[int] | Integer[np.ndarray, " n"], vocab_size: int) -> list[int]:
    values = [int(i) for i in ids]
    for i in values:
        if not 0 <= i < vocab_size:
            raise ArgumentValueError("ids", f"numbers from 0 to {vocab_size - 1}", i)
    return values
