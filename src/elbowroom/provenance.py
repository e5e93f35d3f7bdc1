"""Where a result comes from: the command, versions, commit and hardware; and a safe way to save it.

Every number that a document of this project states comes from a file that `write_json` wrote, with
what `provenance` returns in it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from elbowroom.errors import FileError


def version() -> str:
    """Return elbowroom's version.

    Example:
        >>> version().count(".") >= 2
        True
    """
    try:
        return metadata.version("elbowroom")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


def provenance(command: str, *, seed: int | None = None) -> dict[str, Any]:
    """Describe what a result depends on, as plain data for JSON.

    Call it before long work: the commit and the time are those of the call.

    Args:
        command: the command that anybody can repeat, without paths of this machine.
        seed: what decided random numbers, where there were any.

    Example:
        >>> sorted(provenance("elbowroom margin closed"))
        ['command', 'commit', 'hardware', 'seed', 'time', 'versions']
    """
    return {
        "command": command,
        "seed": seed,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {
            "elbowroom": version(),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "hardware": _hardware(),
    }


def write_json(path: str | Path, record: Mapping[str, Any]) -> Path:
    """Write a record as JSON, as `write_bytes` does, and return the path.

    Numbers that JSON does not know (NaN, infinite ones) are an error.

    Args:
        path: the file to write.
        record: plain data.
    """
    try:
        text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise FileError(f"{path}: the record is not plain JSON data ({error})") from error
    return write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a file, all of it or nothing, and return the path.

    The data go to a temporary file in the same folder, which then takes the place of ``path``, so
    that a process killed anywhere leaves the old file or the new one. The folder is made if it is
    missing.

    Args:
        path: the file to write.
        data: all of it.
    """
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path}: expected a file to write, got a folder; add a file's name")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp made it private
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _commit() -> dict[str, Any] | None:
    """Return the commit of the source tree, and whether it was changed; None for a wheel.

    A copy of the tree without its history may be told its commit by ``ELBOWROOM_COMMIT``.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or not (root / "src" / "elbowroom").is_dir():
        told = os.environ.get("ELBOWROOM_COMMIT")  # not this project's checkout, whatever is around
        return None if not told else {"id": told, "modified": None}
    head, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return None if head is None else {"id": head, "modified": bool(changes)}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _hardware() -> dict[str, Any]:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(gpus)],
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
