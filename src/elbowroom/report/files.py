"""Text files written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from elbowroom.provenance import write_bytes


def write_text(path: str | Path, text: str) -> Path:
    """Write text as UTF-8, all of it or nothing, and return the path; the folder is made."""
    return write_bytes(path, text.encode("utf-8"))
