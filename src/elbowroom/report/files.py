"""Text files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from elbowroom.errors import FileError


def write_text(path: str | Path, text: str) -> Path:
    """Write text as UTF-8, all of it or nothing, and return the path; the folder is made."""
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path}: expected a file to write, got a folder; add a file's name")
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = os.umask(0)
    os.umask(mask)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", newline="\n", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            temporary.chmod(0o666 & ~mask)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    return path
