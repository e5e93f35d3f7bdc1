"""Manual pages in many languages, from Debian's packages ``manpages-*``.

Technical prose, from millions of characters (German, French, Japanese) down to some ten thousands
(Macedonian, Greek): a natural imbalance. The packages are read here, as archives; nothing is
installed. Their translations are under free licences that each package names; they are fetched
for the user and never passed on.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab.corpora.roff import plain_text
from elbowroom.lab.corpora.texts import Document, Errors, Texts
from elbowroom.lab.fetch import Progress, apt_package, fetch, file_sha256

_CODES = "cs da de el es fi fr hu id it ja mk nb nl pl pt pt-br ro ru sr sv tr uk vi zh"
LANGUAGES = tuple(_CODES.split())
ADVICE = (
    "Where there is no apt-get: download the packages (manpages-de and so on) from Debian "
    "elsewhere, put the .deb files into one folder and pass it (?path=FOLDER)."
)
_PAGE = re.compile(r"(?:\./)?usr/share/man/[^/]+/man\w+/([^/]+)")
_LARGEST = 1 << 24  # bytes of a page, unpacked: no manual is so long


def manpages(
    languages: Sequence[str],
    *,
    path: str | Path | None = None,
    errors: Errors = "strict",
    offline: bool = False,
    progress: Progress | None = None,
) -> Texts:
    """Return manual pages, a document a page.

    Debian's packages change with its releases: compare results only where the notes agree.

    Args:
        languages: as in the packages' names: ``LANGUAGES``.
        path: a folder with the ``.deb`` files, where the user has them.
        errors: what happens to bytes that are not UTF-8, see `Document.from_file`.
        offline: use the cache only.
        progress: called as bytes arrive, package by package.
    """
    unknown = [language for language in languages if language not in LANGUAGES]
    if unknown or not languages:
        got = ", ".join(unknown) or "none"
        raise ArgumentValueError("languages", f"some of {', '.join(LANGUAGES)}", got)
    files = {}
    for language in languages:  # all of them, before the work begins
        name = f"manpages-{language}"
        own = None if path is None else _in_folder(Path(path).expanduser(), name)
        files[language] = fetch(
            f"{name}.deb",
            (apt_package(name),),
            path=own,
            offline=offline,
            advice=ADVICE,
            progress=progress,
        )
    documents = {language: tuple(_pages(file, errors)) for language, file in files.items()}
    notes = tuple(f"{file.name}: SHA-256 {file_sha256(file)}" for file in files.values())
    return Texts(name="manpages", documents=documents, notes=notes)


def _in_folder(folder: Path, package: str) -> Path:
    found = sorted([*folder.glob(f"{package}.deb"), *folder.glob(f"{package}_*.deb")])
    if not found:
        raise FileError(f"{folder}: expected a file {package}_*.deb, found none")
    return found[-1]


def _pages(deb: Path, errors: Errors) -> Iterator[Document]:
    """Yield the manual pages of a package, in the order of their names, none that is empty."""
    try:
        with _data(deb) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            pages = sorted(_sources(archive))
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
        raise FileError(f"{deb}: damaged, or not a Debian package ({error})") from error
    for name, raw in pages:
        try:
            source = raw.decode("utf-8-sig", errors)
        except UnicodeDecodeError as error:
            raise FileError(
                f"{deb}: expected UTF-8 text in {name}, got invalid bytes at byte {error.start}; "
                'pass errors="replace"'
            ) from None
        text = plain_text(source)
        if text:
            yield Document.from_text(name, text + "\n")


def _sources(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    for member in archive:
        match = _PAGE.fullmatch(member.name)
        file = archive.extractfile(member) if match and member.isfile() else None
        if file is None:  # links lead to pages that come by themselves
            continue
        raw = file.read(_LARGEST)
        if member.name.endswith(".gz"):
            with gzip.open(io.BytesIO(raw)) as unpacked:
                raw = unpacked.read(_LARGEST)
        yield member.name.removeprefix("./"), raw


def _data(deb: Path) -> IO[bytes]:
    """Return the stream of the tar archive with the files, out of the ar archive that a .deb is."""
    with deb.open("rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise OSError("no ar archive")
        while len(header := file.read(60)) == 60:
            name = header[:16].decode("ascii", "replace").strip().rstrip("/")
            size = int(header[48:58].decode("ascii", "replace").strip() or -1)
            if name.startswith("data.tar"):
                return _unpacked(name, file.read(size), deb)
            file.seek(size + size % 2, io.SEEK_CUR)
    raise OSError("no data in it")


def _unpacked(name: str, raw: bytes, deb: Path) -> IO[bytes]:
    if name.endswith(".xz"):
        return lzma.open(io.BytesIO(raw))
    if name.endswith(".gz"):
        return gzip.open(io.BytesIO(raw))  # type: ignore[return-value]
    if name.endswith(".tar"):
        return io.BytesIO(raw)
    tool = shutil.which("dpkg-deb")  # Ubuntu packs with zstd, which Python cannot read before 3.14
    if tool is None:
        raise OSError(f"{name} is packed in a way that needs dpkg-deb, which is not installed")
    command = [tool, "--fsys-tarfile", str(deb)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=300)
    if done.returncode:
        raise OSError(done.stderr.decode("utf-8", "replace").strip())
    return io.BytesIO(done.stdout)
