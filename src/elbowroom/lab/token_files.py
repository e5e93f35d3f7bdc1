"""Ids of text, encoded piece by piece, in memory or in files that are memory-mapped.

A token file is nothing but unsigned integers, little-endian, of the narrowest type. Its header, a
JSON file beside it, has their type, their number and the SHA-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt

from elbowroom.errors import FileError
from elbowroom.lab.corpora.texts import PIECE
from elbowroom.lab.fetch import Progress, file_sha256, replacing
from elbowroom.lab.tokenizers import Tokenizer, read_json
from elbowroom.provenance import write_json

Tokens = UInt[np.ndarray, " n"]
DTYPES = ("|u1", "<u2", "<u4")


class Meter:
    """Encodes pieces of text, and reports how far it is."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.done, self.progress = total, 0, progress

    def encode(
        self, tokenizer: Tokenizer, texts: Iterator[str], width: np.dtype[Any]
    ) -> Iterator[Tokens]:
        """Yield the ids of the texts, a piece at a time."""
        for text in _at_spaces(texts):
            yield tokenizer.encode(text).astype(width)
            self.done = min(self.done + len(text), self.total)  # separators are on top
            if self.progress is not None:
                self.progress(self.done, self.total)


def _at_spaces(texts: Iterator[str]) -> Iterator[str]:
    """Cut text anew, in pieces that end before white space.

    There a byte-level encoding never joins what comes before with what comes after, so that the
    ids are those of the whole text. Only within a word of a million characters a piece is cut.
    """
    rest = ""
    for text in texts:
        rest += text
        if len(rest) < PIECE:
            continue
        cut = _last_gap(rest)
        yield rest[:cut]
        rest = rest[cut:]
    if rest:
        yield rest


def _last_gap(text: str) -> int:
    """Return the last place between a character and a space or line's end; the end without one."""
    for i in range(len(text) - 1, 0, -1):
        if text[i] in " \n" and not text[i - 1].isspace():
            return i
    return len(text)


def narrowest(vocab_size: int) -> np.dtype[Any]:
    """Return the narrowest type that holds all ids."""
    return np.dtype(DTYPES[(vocab_size > 2**8) + (vocab_size > 2**16)])


def in_memory(encoded: Iterator[Tokens], width: np.dtype[Any]) -> tuple[Tokens, str]:
    """Return all ids, and their SHA-256."""
    tokens = np.concatenate([np.empty(0, dtype=width), *encoded])
    return tokens, hashlib.sha256(tokens.tobytes()).hexdigest()


def to_file(encoded: Iterator[Tokens], width: np.dtype[Any], path: Path) -> tuple[Tokens, str]:
    """Write ids and their header; return them memory-mapped, and their SHA-256."""
    digest, length = hashlib.sha256(), 0
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            for tokens in encoded:
                raw = tokens.tobytes()
                digest.update(raw)
                length += len(tokens)
                file.write(raw)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror})") from error
    header = {"dtype": width.str, "length": length, "sha256": digest.hexdigest()}
    write_json(path.with_suffix(".json"), header)
    return map_file(path.parent, path.name, verify=False), digest.hexdigest()


def map_file(folder: Path, name: str, verify: bool) -> Tokens:
    """Return a token file, memory-mapped, after comparing it with its header."""
    path = folder / name
    if path.parent != folder or path.suffix != ".bin":
        raise FileError(f"{folder}: expected the name of a token file, got {name!r}")
    header = read_json(path.with_suffix(".json"))
    dtype, length = header.get("dtype"), header.get("length")
    if dtype not in DTYPES or not isinstance(length, int):
        raise FileError(f"{path}: its header has no known type and length")
    found = path.stat().st_size if path.is_file() else -1
    if found != length * np.dtype(dtype).itemsize:
        raise FileError(f"{path}: expected {length} tokens of type {dtype}, got {found} bytes")
    if verify and file_sha256(path) != header.get("sha256"):
        raise FileError(f"{path}: damaged, its SHA-256 is not that of its header")
    if length == 0:  # nothing can be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
