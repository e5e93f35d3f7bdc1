"""A run's folder: its configuration, what was measured, the model, and the state to go on from.

::

    config.yaml          as resolved, all defaults included
    metrics.jsonl        a line a report
    tokenizer.json       to read and write the model's tokens
    model.safetensors    the weights, once trained
    state/               checkpoints, while training
    record.json          the evaluation, once finished

Each file is written whole or not at all; lines are appended whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab.config import RunConfig, as_plain, run_config
from elbowroom.lab.strict import read_yaml, write_yaml
from elbowroom.provenance import write_bytes, write_json

if TYPE_CHECKING:
    from elbowroom.lab.tokenizers import Tokenizer


class RunFolder:
    """The folder of one run.

    Args:
        path: where it is, or will be.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.state = self.path / "state"

    @property
    def exists(self) -> bool:
        """Whether a run was ever begun here."""
        return (self.path / "config.yaml").exists()

    @property
    def record(self) -> dict[str, Any] | None:
        """The record of a finished run, or None."""
        return read_json(self.path / "record.json") if self.is_finished else None

    @property
    def is_finished(self) -> bool:
        """Whether there is a record."""
        return (self.path / "record.json").exists()

    def begin(self, config: RunConfig, tokenizer: Tokenizer) -> None:
        """Make the folder, or check that it holds this very run."""
        if self.exists:
            self._check(config)
        self.state.mkdir(parents=True, exist_ok=True)
        tokenizer.save(self.path / "tokenizer.json")
        text = write_yaml(as_plain(config))
        write_bytes(self.path / "config.yaml", text.encode("utf-8"))

    def _check(self, config: RunConfig) -> None:
        old, new = as_plain(self.config()), as_plain(config)
        for name in new:
            if old[name] != new[name]:
                fix = "name another folder, or give the run another name"
                raise ArgumentValueError(
                    "output", f"{self.path.name} with the same {name}", f"another {name}", fix
                )

    def config(self) -> RunConfig:
        """Return the run's configuration."""
        if not self.exists:
            fix = "name a folder that elbowroom train or compare made"
            raise FileError(f"{self.path}: no run here (config.yaml is missing); {fix}")
        return run_config(read_yaml(self.path / "config.yaml"))

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        text = json.dumps(dict(line), ensure_ascii=False, allow_nan=False) + "\n"
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(text)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the metrics; one that was cut off by a kill is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        found = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps that will be made again."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
        write_bytes(self.path / "metrics.jsonl", text.encode("utf-8"))

    def save_model(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Write the weights."""
        data = save({k: x.contiguous() for k, x in tensors.items()}, {"step": str(step)})
        write_bytes(self.path / "model.safetensors", data)

    def load_model(self) -> tuple[dict[str, Tensor], int]:
        """Return the weights and after how many steps they were saved."""
        path = self.path / "model.safetensors"
        try:
            with safe_open(path, framework="pt") as file:
                step = int((file.metadata() or {}).get("step", 0))
                return {name: file.get_tensor(name) for name in file.keys()}, step  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            fix = "train the run to its end: elbowroom train ... --resume"
            raise FileError(f"{path}: no whole model there ({error}); {fix}") from error

    @property
    def has_model(self) -> bool:
        """Whether the weights were saved."""
        return (self.path / "model.safetensors").exists()

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the record; what was needed to go on is removed."""
        write_json(self.path / "record.json", record)
        shutil.rmtree(self.state, ignore_errors=True)

    def remove(self) -> None:
        """Remove everything of the run."""
        shutil.rmtree(self.path, ignore_errors=True)


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(found, dict):
        raise FileError(f"{path}: expected a JSON object")
    return found


def run_folders(path: str | Path) -> list[RunFolder]:
    """Return the runs in a folder, or the one that it is."""
    path = Path(path)
    here = RunFolder(path)
    if here.exists:
        return [here]
    inside = sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []
    found = [folder for folder in map(RunFolder, inside) if folder.exists]
    if not found:
        fix = "name a folder that elbowroom train or compare made"
        raise FileError(f"{path}: no runs here; {fix}")
    return found


def writable(path: Path) -> None:
    """Raise unless a folder can be made and written at ``path``."""
    parent = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise FileError(f"{path}: no folder can be made here; name another with --output")
