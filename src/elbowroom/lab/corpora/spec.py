"""Which texts are meant: one line, or one dataclass, for every source; and `load`."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.corpora.debian import manpages
from elbowroom.lab.corpora.folder import folder
from elbowroom.lab.corpora.hub import hub
from elbowroom.lab.corpora.shakespeare import shakespeare
from elbowroom.lab.corpora.texts import ERRORS, Errors, Pair, Texts
from elbowroom.lab.corpora.topics import topics
from elbowroom.lab.corpora.udhr import udhr
from elbowroom.lab.fetch import Progress

Kind = Literal["shakespeare", "folder", "manpages", "udhr", "hf", "pydoc"]
KINDS = ("shakespeare", "folder", "manpages", "udhr", "hf", "pydoc")
PairName = Literal["none", "same", "disjoint"]
PAIRS = ("none", "same", "disjoint")
_FORMS = "shakespeare, folder:PATH, manpages:de,mk, udhr:eng,cym, hf:OWNER/NAME/CONFIG,... or pydoc"
_OPTIONS = re.compile(r"(\w+)=([^&]*)(?:&(\w+)=([^&]*))*")


@dataclass(frozen=True, kw_only=True)
class CorpusSpec:
    """A source of texts with its options. As one line: ``kind:target?option=value&option=value``.

    Example:
        >>> CorpusSpec.parse("manpages:de,fr,mk").languages
        ('de', 'fr', 'mk')
        >>> CorpusSpec.parse("shakespeare?pair=disjoint&share=0.05").share
        0.05
        >>> CorpusSpec.parse("hf:HuggingFaceFW/fineweb-2/mkd_Cyrl,ell_Grek").target
        'HuggingFaceFW/fineweb-2'
    """

    kind: Kind
    target: str = ""
    """The folder's path, or the data set's name."""
    languages: tuple[str, ...] = ()
    """Which languages, where the source has many."""
    path: str | None = None
    """Files that the user already has, in the place of a download."""
    pair: PairName | None = None
    """A simulated second language; None: "same" for shakespeare and pydoc, else "none"."""
    share: float = 0.02
    """Of the pair: how often the second language is drawn."""
    part: float | None = None
    """Of a disjoint pair: the second language's part of the text; None for ``share``."""
    errors: Errors = "strict"
    """What happens to bytes that are not UTF-8: "strict" or "replace"."""
    characters: int = 5_000_000
    """Of a data set: the most characters of each language."""
    column: str = "text"
    """Of a data set: the column with the text."""
    split: str = "train"
    """Of a data set: its split."""

    def __post_init__(self) -> None:
        checks.choice("kind", self.kind, KINDS)
        checks.choice("errors", self.errors, ERRORS)
        if self.pair is not None:
            checks.choice("pair", self.pair, PAIRS)
        used = _USED[self.kind]
        for field in fields(self):
            if field.name in ("kind", "pair", "share", "part"):
                continue
            if field.name not in used and getattr(self, field.name) != field.default:
                expected = f"nothing for {self.kind!r}"
                raise ArgumentValueError(field.name, expected, repr(getattr(self, field.name)))
        if self.simulated is None and (self.share, self.part) != (0.02, None):
            fix = "pass pair=same or pair=disjoint"
            raise ArgumentValueError("share", "a pair, for share and part", "none", fix)

    @classmethod
    def parse(cls, text: str) -> CorpusSpec:
        """Read the form of one line."""
        head, mark, tail = text.rpartition("?")
        if not mark or not _OPTIONS.fullmatch(tail):
            head, tail = text, ""
        kind, _, target = head.partition(":")
        if kind not in KINDS:
            if Path(text).expanduser().exists():
                return cls(kind="folder", target=text)
            if not Path(head).expanduser().exists():
                expected = f"a folder or file that exists, or one of {_FORMS}"
                raise ArgumentValueError("corpus", expected, repr(text))
            kind, target = "folder", head
        values: dict[str, Any] = {"kind": kind, **_target(kind, target)}
        for name, value in parse_qsl(tail, keep_blank_values=True):
            if name not in _READ or name in values:
                expected = f"each of {', '.join(_READ)} at most once"
                raise ArgumentValueError("corpus", expected, repr(name))
            try:
                values[name] = _READ[name](value)
            except ValueError:
                raise ArgumentValueError(name, "a number", repr(value)) from None
        return cls(**values)

    @property
    def simulated(self) -> Pair | None:
        """The pair, if there is one."""
        name = self.pair or ("same" if self.kind in ("shakespeare", "pydoc") else "none")
        if name == "none":
            return None
        return Pair(share=self.share, protocol="same" if name == "same" else name, part=self.part)


def load(
    spec: str | Path | CorpusSpec,
    *,
    offline: bool = False,
    progress: Progress | None = None,
) -> Texts:
    """Return the texts that a line or a spec describes, downloading them where that is needed.

    Args:
        spec: ``shakespeare``, ``folder:PATH`` or just the path, ``manpages:de,fr,mk``,
            ``udhr:eng,cym``, ``hf:OWNER/NAME/CONFIG,CONFIG``, ``pydoc``; options follow a ``?``.
            See `CorpusSpec`.
        offline: use what is here: the cache, given paths, folders.
        progress: called as bytes arrive, with their total or None.

    Example:
        >>> load("pydoc").languages
        ('hr', 'lr')
    """
    if isinstance(spec, Path):
        spec = CorpusSpec(kind="folder", target=str(spec))
    elif isinstance(spec, str):
        spec = CorpusSpec.parse(spec)
    elif not isinstance(spec, CorpusSpec):
        raise ArgumentTypeError("spec", "a line, a path or a CorpusSpec", checks.describe(spec))
    texts = _load(spec, offline, progress)
    return texts if spec.simulated is None else texts.paired(spec.simulated)


def _load(spec: CorpusSpec, offline: bool, progress: Progress | None) -> Texts:
    common: dict[str, Any] = {"offline": offline, "progress": progress}
    if spec.kind == "shakespeare":
        return shakespeare(spec.path, **common)
    if spec.kind == "folder":
        return folder(spec.target, spec.errors)
    if spec.kind == "manpages":
        return manpages(spec.languages, path=spec.path, errors=spec.errors, **common)
    if spec.kind == "udhr":
        return udhr(spec.languages, path=spec.path, **common)
    if spec.kind == "hf":
        chosen: dict[str, Any] = {
            "column": spec.column,
            "split": spec.split,
            "characters": spec.characters,
        }
        return hub(spec.target, spec.languages, **chosen, **common)
    return topics()


_USED: dict[str, tuple[str, ...]] = {
    "shakespeare": ("path",),
    "folder": ("target", "errors"),
    "manpages": ("languages", "path", "errors"),
    "udhr": ("languages", "path"),
    "hf": ("target", "languages", "characters", "column", "split"),
    "pydoc": (),
}
_READ: dict[str, Any] = {
    "path": str,
    "pair": str,
    "share": float,
    "part": float,
    "errors": str,
    "characters": int,
    "column": str,
    "split": str,
}


def _target(kind: str, text: str) -> dict[str, Any]:
    """Return what stands between the kind and the options."""
    if kind == "hf":
        owner, _, rest = text.partition("/")
        name, _, languages = rest.partition("/")
        found = tuple(filter(None, languages.split(",")))
        return {"target": f"{owner}/{name}".rstrip("/"), "languages": found}
    if kind in ("manpages", "udhr"):
        return {"languages": tuple(filter(None, text.split(",")))}
    return {"target": text}
