"""A folder of text files, one language a file or folder."""

from __future__ import annotations

from pathlib import Path

from elbowroom.errors import FileError
from elbowroom.lab.corpora.texts import Document, Errors, Texts

SUFFIX = ".txt"


def folder(path: str | Path, errors: Errors = "strict") -> Texts:
    """Read the texts in a folder; files and folders give the languages their names.

    ``de.txt`` is a document of ``de``, and so is every ``.txt`` file anywhere under ``de/``.
    Languages, and documents within a language, are in the order of their names. Hidden files and
    files of other kinds are left alone. Empty files are left out and named in the notes; a
    language that has nothing else is an error. A single file is a text of one language.

    Args:
        path: the folder, or one text file.
        errors: what happens to bytes that are not UTF-8, see `Document.from_file`.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileError(f"{path}: expected a folder of texts, found none; check the path")
    root, files = (path.parent, [path]) if path.is_file() else (path, _files(path))
    by_language: dict[str, list[Document]] = {}
    empty = []
    for file in files:
        document = Document.from_file(file, errors)
        relative = file.relative_to(root)
        language = relative.parts[0] if len(relative.parts) > 1 else relative.stem
        documents = by_language.setdefault(language, [])
        if document.characters:
            documents.append(document)
        else:
            empty.append(str(relative))
    bare = sorted(language for language, found in by_language.items() if not found)
    if bare:
        raise FileError(f"{path}: nothing but empty files for {', '.join(bare)}; remove them")
    notes = (f"empty files left out: {', '.join(empty)}",) if empty else ()
    documents_of = {k: tuple(by_language[k]) for k in sorted(by_language)}
    return Texts(name=f"folder:{path.resolve().name}", documents=documents_of, notes=notes)


def _files(path: Path) -> list[Path]:
    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() == SUFFIX
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise FileError(
            f"{path}: no {SUFFIX} files; put the text of each language into a file such as "
            f"de{SUFFIX}, or into files in a folder such as de/"
        )
    return files
