"""Checkpoints that survive: written whole or not at all, verified by hash, never pickled.

A checkpoint is a folder ``step-000001000`` with ``tensors.safetensors``, ``meta.json``, and
``manifest.json``, which holds the SHA-256 of both. It is written under another name, forced to the
disk, and renamed: a process killed anywhere, or a machine that loses its power, leaves the earlier
checkpoints, and the new one whole or not at all. One process at a time may save to a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentValueError, FileError

TENSORS, META, MANIFEST = "tensors.safetensors", "meta.json", "manifest.json"
_FORMAT = 1
_NAME = re.compile(r"(\.replaced-)?step-(\d{9,})")
_TEMPORARY = ".partial-"  # being written, or being removed
_REPLACED = ".replaced-"  # a checkpoint whose successor of the same step takes its place


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What `load` found: the step, the tensors on the CPU, the plain data, and where they lie."""

    step: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    path: Path


def save(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensor],
    meta: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """Save a checkpoint, then remove all but the newest good ones; return its folder.

    Where anything fails, a full disk above all, the earlier checkpoints stay as they were, nothing
    half-written stays, and the error says what to do.

    Args:
        folder: where checkpoints lie; made if it is missing.
        step: of training; one of the same step is replaced.
        tensors: by name, of any shape and device; they may share memory or be strided.
        meta: plain data for JSON, without NaN and infinite numbers.
        keep: how many good checkpoints stay, at least 1. Their hashes are computed to know.

    Example:
        >>> import tempfile, torch
        >>> folder = tempfile.mkdtemp()
        >>> save(folder, 1000, {"weight": torch.ones(2)}, {"seed": 3}).name
        'step-000001000'
        >>> found = load(folder)
        >>> found.step, found.tensors, found.meta
        (1000, {'weight': tensor([1., 1.])}, {'seed': 3})
    """
    folder = Path(folder)
    checks.integer("step", step, at_least=0)
    checks.integer("keep", keep, at_least=1)
    files = _encode(tensors, meta, step)
    path = folder / f"step-{step:09d}"
    temporary = folder / f"{_TEMPORARY}{path.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clean(folder)
        _write_all(temporary, files)
        _put(temporary, path)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise FileError(_failure(folder, step, files, error)) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _prune(folder, step, keep)
    return path


def load(
    folder: str | Path,
    step: int | None = None,
    *,
    on_damage: Callable[[str], None] | None = None,
) -> Checkpoint:
    """Load the newest checkpoint whose files are what was saved.

    Args:
        folder: where checkpoints lie.
        step: load this one alone; an error if it is damaged.
        on_damage: called with a message for each damaged checkpoint that is passed over.

    Raises:
        FileError: where there is no good checkpoint.
    """
    folder = Path(folder)
    found = _checkpoints(folder)
    if step is not None:
        found = {s: path for s, path in found.items() if s == step}
    damage: list[str] = []
    for path in reversed(found.values()):
        try:
            return _read(path)
        except FileError as error:
            damage.append(str(error))
            if on_damage is not None:
                on_damage(str(error))
    which = "checkpoint" if step is None else f"checkpoint of step {step}"
    if not damage:
        raise FileError(f"{folder}: there is no {which}; start the training from the beginning")
    raise FileError(f"{folder}: there is no good {which}; " + "; ".join(damage))


def steps(folder: str | Path) -> tuple[int, ...]:
    """Return the steps of the checkpoints in a folder, ascending, whether they are good or not.

    Example:
        >>> steps("no such folder")
        ()
    """
    return tuple(_checkpoints(Path(folder)))


def remove_after(folder: str | Path, step: int) -> None:
    """Remove the checkpoints of later steps: those will be made again.

    Args:
        folder: where checkpoints lie.
        step: the last one to stay.
    """
    for found, path in _checkpoints(Path(folder)).items():
        if found > step:
            _remove(path)


def _encode(tensors: Mapping[str, Tensor], meta: Mapping[str, Any], step: int) -> dict[str, bytes]:
    """Return the content of all files, the manifest last."""
    try:
        text = json.dumps(meta, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ArgumentValueError("meta", "plain data for JSON", str(error)) from error
    files = {
        TENSORS: safetensors.torch.save(dict(_own_memory(tensors))),
        META: text.encode("utf-8"),
    }
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = {"format": _FORMAT, "step": step, "sha256": hashes}
    return files | {MANIFEST: json.dumps(manifest, indent=2).encode("utf-8")}


def _own_memory(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors as safetensors takes them: on the CPU, dense, none sharing memory."""
    seen: set[int] = set()
    for name, tensor in tensors.items():
        value = checks.is_tensor(f"tensors[{name!r}]", tensor).detach().cpu().contiguous()
        memory = value.untyped_storage().data_ptr()
        yield name, value.clone() if memory in seen else value
        seen.add(memory)


def _write_all(temporary: Path, files: Mapping[str, bytes]) -> None:
    """Write all files of a checkpoint and force them, and their names, to the disk."""
    temporary.mkdir()
    for name, data in files.items():
        with (temporary / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    _sync_folder(temporary)


def _put(temporary: Path, path: Path) -> None:
    """Give a finished checkpoint its name.

    A folder cannot take another's place in one step. So one of the same step is set aside first,
    under a name by which `_checkpoints` finds it if the process ends here.
    """
    aside = path.with_name(f"{_REPLACED}{path.name}")
    if path.exists():
        path.rename(aside)
    temporary.rename(path)
    _sync_folder(path.parent)
    if aside.exists():
        _remove(aside)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints by step, ascending; one set aside only where its successor lacks."""
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.setdefault(int(match[2]), path)  # "step-" sorts after ".replaced-"
    return dict(sorted(found.items()))


def _clean(folder: Path) -> None:
    """Remove what processes that were killed have left."""
    current = set(_checkpoints(folder).values())
    for path in folder.iterdir():
        if path.name.startswith((_TEMPORARY, _REPLACED)) and path not in current:
            shutil.rmtree(path)


def _prune(folder: Path, saved: int, keep: int) -> None:
    """Remove checkpoints older than the newest ``keep`` good ones; the one just saved stays."""
    good = 1
    for step, path in reversed(_checkpoints(folder).items()):
        if step == saved:
            continue
        if good >= keep:
            _remove(path)
        elif _is_good(path):
            good += 1


def _remove(path: Path) -> None:
    """Remove a checkpoint so that it is never seen in part."""
    temporary = path.with_name(f"{_TEMPORARY}removed-{path.name}")
    try:
        path.rename(temporary)
    except OSError:  # what cannot be removed does no harm
        return
    shutil.rmtree(temporary, ignore_errors=True)


def _is_good(path: Path) -> bool:
    try:
        _verified(path)
    except FileError:
        return False
    return True


def _verified(path: Path) -> dict[str, bytes]:
    """Return the content of the files if their hashes are those of the manifest."""
    files = {}
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        for name in (TENSORS, META):
            files[name] = (path / name).read_bytes()
            if hashlib.sha256(files[name]).hexdigest() != manifest["sha256"][name]:
                raise FileError(f"{path}: {name} is damaged; its hash is not the manifest's")
        if (
            manifest["format"] != _FORMAT
            or path.name.rpartition("-")[2] != f"{manifest['step']:09d}"
        ):
            raise FileError(f"{path}: {MANIFEST} is of another format, or of another checkpoint")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: {MANIFEST} is damaged ({error})") from error
    return files


def _read(path: Path) -> Checkpoint:
    files = _verified(path)
    try:
        tensors = safetensors.torch.load(files[TENSORS])
        meta = json.loads(files[META])
    except (SafetensorError, ValueError) as error:
        raise FileError(f"{path}: the files cannot be read ({error})") from error
    step = int(path.name.rpartition("-")[2])
    return Checkpoint(step=step, tensors=tensors, meta=meta, path=path)


def _failure(folder: Path, step: int, files: Mapping[str, bytes], error: OSError) -> str:
    """Say why a checkpoint could not be saved, what it needed, and what to do."""
    needed = sum(map(len, files.values()))
    text = f"{folder}: the checkpoint of step {step} could not be saved "
    text += f"({error.strerror or error}); it needs {_mebibytes(needed)}"
    with contextlib.suppress(OSError):  # the folder itself may be what fails
        text += f", and {_mebibytes(shutil.disk_usage(folder).free)} are free"
    found = steps(folder)
    kept = f"the one of step {found[-1]} is intact" if found else "there is no earlier one"
    return f"{text}; {kept}; make room, or choose another folder, and resume"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
