"""Texts by language, read piece by piece: what every corpus source gives."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from elbowroom import checks
from elbowroom.errors import ArgumentValueError, FileError

Errors = Literal["strict", "replace"]
ERRORS = ("strict", "replace")
Protocol = Literal["same", "disjoint"]
PROTOCOLS = ("same", "disjoint")
PIECE = 1 << 20  # characters in memory at a time


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text in memory, or in a file that is read when it is needed.

    Make one with `from_text` or `from_file`. A byte-order mark at the start does not belong to the
    text, and every line ends in ``"\\n"``, however the file ends its lines.
    """

    name: str
    """Where it comes from, for messages."""
    characters: int
    sha256: str
    """Of the text as UTF-8, so that equal texts are found whatever their files are called."""
    text: str | None = field(default=None, repr=False)
    path: Path | None = None
    errors: Errors = "strict"

    @classmethod
    def from_text(cls, name: str, text: str) -> Document:
        """Make a document of a string.

        Example:
            >>> Document.from_text("greeting", "Hello\\r\\nthere").read()
            'Hello\\nthere'
        """
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        try:
            digest = hashlib.sha256(text.encode()).hexdigest()
        except UnicodeEncodeError as error:
            found = f"a lone surrogate at character {error.start}"
            raise FileError(f"{name}: expected Unicode text, got {found}") from error
        return cls(name=name, characters=len(text), sha256=digest, text=text)

    @classmethod
    def from_file(cls, path: Path, errors: Errors = "strict") -> Document:
        """Make a document of a UTF-8 file, reading it once to check it; memory stays bounded.

        Args:
            path: the file.
            errors: what happens to bytes that are not UTF-8: "strict" refuses the file and says
                where they are; "replace" puts U+FFFD in their place.
        """
        checks.choice("errors", errors, ERRORS)
        digest, characters = hashlib.sha256(), 0
        try:
            for piece in _read(path, errors):
                digest.update(piece.encode())
                characters += len(piece)
        except UnicodeDecodeError:
            place = _first_invalid(path)
            raise FileError(
                f"{path}: expected UTF-8 text, got invalid bytes at byte {place}; "
                'convert the file, or pass errors="replace"'
            ) from None
        except OSError as error:
            raise FileError(f"{path}: cannot be read ({error.strerror})") from error
        return cls(
            name=str(path),
            characters=characters,
            sha256=digest.hexdigest(),
            path=path,
            errors=errors,
        )

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[str]:
        """Yield the characters from ``start`` to ``stop`` in pieces of at most a million."""
        stop = self.characters if stop is None else min(stop, self.characters)
        if self.text is not None:
            whole = iter([self.text])
        else:
            assert self.path is not None
            whole = _read(self.path, self.errors)
        at = 0
        for text in whole:
            first, last = max(start - at, 0), min(stop - at, len(text))
            for i in range(first, last, PIECE):
                yield text[i : min(i + PIECE, last)]
            at += len(text)
            if at >= stop:
                return

    def read(self) -> str:
        """Return the whole text."""
        return "".join(self.pieces())


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A second language simulated from one: the same characters under other ids.

    Paper, section "Data and Model": 2% of the training windows are drawn in the second language,
    whose ids are those of the first plus V.

    Attributes:
        share: how often the second language is drawn.
        protocol: "same": both languages read the same text, as in the paper, in training and in
            validation. "disjoint": the second language has its own part of both.
        part: with "disjoint", the second language's part of the text; None for ``share``.
    """

    share: float = 0.02
    protocol: Protocol = "same"
    part: float | None = None

    def __post_init__(self) -> None:
        checks.number("share", self.share, above=0.0, below=1.0)
        checks.choice("protocol", self.protocol, PROTOCOLS)
        if self.part is not None:
            checks.number("part", self.part, above=0.0, below=1.0)
            if self.protocol == "same":
                fix = 'leave it out, or pass protocol="disjoint"'
                raise ArgumentValueError("part", "None with the same text", self.part, fix)

    @property
    def second_part(self) -> float:
        """The part of the text that only the second language reads; 0 if it is the same text."""
        return 0.0 if self.protocol == "same" else self.part or self.share


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Documents by language, in a fixed order, and where they come from."""

    name: str
    documents: Mapping[str, tuple[Document, ...]]
    pair: Pair | None = None
    """With a pair both languages have the same one document list; `tokens.prepare` splits it."""
    notes: tuple[str, ...] = ()
    """What a reader should know: versions, files that were left out."""

    def __post_init__(self) -> None:
        if not self.documents:
            raise FileError(f"{self.name}: no texts were found")
        for language, documents in self.documents.items():
            if not any(document.characters for document in documents):
                names = ", ".join(document.name for document in documents[:3]) or "no documents"
                raise FileError(f"{self.name}: the text of {language!r} is empty ({names})")

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages, in order."""
        return tuple(self.documents)

    @property
    def characters(self) -> dict[str, int]:
        """How many characters each language has."""
        return {k: sum(d.characters for d in v) for k, v in self.documents.items()}

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the languages' names, their documents in order, and the pair."""
        digest = hashlib.sha256(repr(self.pair).encode())
        for language, documents in self.documents.items():
            digest.update(f"\0{language}\0".encode())
            digest.update("".join(document.sha256 for document in documents).encode())
        return digest.hexdigest()

    def paired(self, pair: Pair, names: tuple[str, str] = ("hr", "lr")) -> Texts:
        """Return these texts, of one language, with a simulated second language.

        Example:
            >>> hello = Document.from_text("hello", "hello")
            >>> Texts(name="toy", documents={"en": (hello,)}).paired(Pair()).languages
            ('hr', 'lr')
        """
        if len(self.documents) != 1:
            expected = "texts of one language, for a simulated second one"
            raise ArgumentValueError("texts", expected, f"{len(self.documents)} languages")
        (only,) = self.documents.values()
        return replace(self, documents=dict.fromkeys(names, only), pair=pair)


def _read(path: Path, errors: str) -> Iterator[str]:
    with path.open(encoding="utf-8-sig", errors=errors, newline=None) as file:
        while piece := file.read(PIECE):
            yield piece


def _first_invalid(path: Path) -> int:
    """Return where the first byte is that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    at = 0
    with path.open("rb") as file:
        while True:
            kept = len(decoder.getstate()[0])  # bytes of an unfinished character
            piece = file.read(PIECE)
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                return at - kept + error.start
            assert piece, f"{path} changed while it was read"
            at += len(piece)
