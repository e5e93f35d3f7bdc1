"""Texts from a data set of the Hugging Face hub, as many characters of each language as wanted."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from elbowroom import checks
from elbowroom.errors import ArgumentValueError, FileError, MissingExtraError
from elbowroom.lab.corpora.texts import Document, Texts
from elbowroom.lab.fetch import Progress, Source, cache_folder, fetch, file_sha256

ADVICE = (
    "Check the data set's name, its configurations (one a language) and the connection to the "
    "hub; or put texts into a folder and pass that."
)


def hub(
    name: str,
    languages: Sequence[str] = (),
    *,
    column: str = "text",
    split: str = "train",
    characters: int = 5_000_000,
    offline: bool = False,
    progress: Progress | None = None,
) -> Texts:
    """Return the first documents of a data set; streamed, so that no more than that is downloaded.

    What was streamed is kept in the cache and used from then on, with or without a connection.

    Args:
        name: the data set, such as ``HuggingFaceFW/fineweb-2``.
        languages: its configurations, one a language; none for the only one it has.
        column: the column with the text.
        split: the data set's split.
        characters: the most that are taken of each language; the last document is cut there.
        offline: use the cache only.
        progress: called with characters, language by language.
    """
    checks.integer("characters", characters, at_least=1)
    if not name:
        raise ArgumentValueError("name", "a data set's name", repr(name))
    sources = {c: (name, c, split, column, characters) for c in languages or ("",)}
    files = {c: _file(source) for c, source in sources.items()}
    missing = [file for file in files.values() if not (cache_folder() / file).is_file()]
    if missing and not offline and importlib.util.find_spec("datasets") is None:
        raise MissingExtraError("datasets", "hf", f"the data set {name!r}")
    documents, notes = {}, []
    for configuration, file in files.items():
        path = fetch(
            file,
            (_source(*sources[configuration]),),
            offline=offline,
            advice=ADVICE,
            progress=progress,
        )
        language = configuration or name.rpartition("/")[2]
        documents[language] = tuple(_documents(path, language))
        notes.append(f"{name} {configuration}: SHA-256 of what was streamed {file_sha256(path)}")
    return Texts(name=f"hf:{name}", documents=documents, notes=tuple(notes))


def _file(source: tuple[object, ...]) -> str:
    return f"hf-{hashlib.sha256(repr(source).encode()).hexdigest()[:20]}.jsonl"


def _source(name: str, configuration: str, split: str, column: str, characters: int) -> Source:
    def write(target: Path, progress: Progress) -> None:
        done = 0
        with target.open("w", encoding="utf-8") as file:
            for text in _stream(name, configuration, split, column):
                text = text[: characters - done]
                done += len(text)
                file.write(json.dumps(text) + "\n")
                progress(done, characters)
                if done == characters:
                    break

    return Source(f"the hub's data set {name} {configuration}".rstrip(), write)


def _stream(name: str, configuration: str, split: str, column: str) -> Iterator[str]:
    datasets: Any = importlib.import_module("datasets")
    try:
        rows: Any = datasets.load_dataset(name, configuration or None, split=split, streaming=True)
        for row in rows:
            yield str(row[column])
    except KeyError as error:
        raise FileError(f"there is no column {error}; pass column=") from error
    except Exception as error:  # the package passes on the errors of many others
        raise FileError(f"{type(error).__name__}: {error}") from error


def _documents(path: Path, language: str) -> Iterator[Document]:
    with path.open(encoding="utf-8") as file:
        for i, line in enumerate(file):
            yield Document.from_text(f"{language} {i}", json.loads(line))
