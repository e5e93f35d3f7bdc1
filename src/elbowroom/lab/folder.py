"""A run's folder: its configuration, what was measured, the model, and the state to go on from.

::

    config.yaml          as resolved, all defaults included
    metrics.jsonl        a line a report
    tokenizer.json       to read and write the model's tokens
    model.safetensors    the weights, once trained
    gradients.safetensors  sums of gradients' norms by type, where they are measured
    state/               checkpoints, while training
    record.json          the evaluation, once finished

Each file is written whole or not at all; lines are appended whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from elbowroom.diagnose import GradientRatios
from elbowroom.errors import ArgumentValueError, ElbowroomError, FileError
from elbowroom.lab import checkpoints
from elbowroom.lab.config import RunConfig, as_plain, run_config
from elbowroom.lab.gradients import PREFIX
from elbowroom.lab.strict import read_yaml, write_yaml
from elbowroom.provenance import write_bytes, write_json

if TYPE_CHECKING:
    from elbowroom.lab.tokenizers import Tokenizer


@dataclass(frozen=True)
class Company:
    """What the bits of a run depend on besides its configuration.

    Attributes:
        runs: the folders' names of its population, in order. A run gets the same bits again in the
            same company; in another one, the same numbers to the rounding of batched products.
        corpus: the fingerprint of the texts.
    """

    runs: tuple[str, ...]
    corpus: str


@dataclass(frozen=True)
class End:
    """How a run's training ended, kept until its evaluation is.

    Attributes:
        done: steps that its population made.
        died_at: the step at which the run itself stopped, or -1.
        kept: the shares of entries kept that were reported.
        seconds: of training.
        best_step: after which step the weights were those that are kept; -1 for the last ones.
        best_loss: by which they were chosen.
    """

    done: int
    died_at: int
    kept: list[float]
    seconds: float
    best_step: int = -1
    best_loss: float | None = None


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

    def begin(self, config: RunConfig, tokenizer: Tokenizer, company: Company) -> None:
        """Make the folder; `check` first, where it exists.

        Args:
            config: the run's.
            tokenizer: that made the ids.
            company: what the run is trained with.
        """
        with saving(self.path):
            self.state.mkdir(parents=True, exist_ok=True)
            for path in self.path.glob(".*.*"):  # what a kill left of a file half written
                path.unlink(missing_ok=True)
            write_json(self.state / "company.json", asdict(company))
            tokenizer.save(self.path / "tokenizer.json")
            text = write_yaml(as_plain(config))
            write_bytes(self.path / "config.yaml", text.encode("utf-8"))

    def check(self, config: RunConfig, corpus: str) -> None:
        """Raise unless the folder holds this very run.

        Args:
            config: of the run that is to go on.
            corpus: the fingerprint of its texts.
        """
        fix = "name another folder, or give the run another name"
        old, new = _settings(as_plain(self.config())), _settings(as_plain(config))
        for name in old | new:
            was, now = old.get(name), new.get(name)
            if was != now:
                expected = f"{self.path.name} as it was begun, with {name} {was}"
                raise ArgumentValueError("output", expected, f"{name} {now}", fix)
        found = self.company.corpus if self.company else (self.record or {}).get("corpus", corpus)
        if found != corpus:
            expected = f"the texts that {self.path.name} was begun with"
            raise ArgumentValueError("output", expected, "other texts", fix)

    @property
    def company(self) -> Company | None:
        """What the run was last trained with; None where that is not known, or over."""
        path = self.state / "company.json"
        if not path.exists():
            return None
        found = read_json(path, Company)
        return Company(tuple(found["runs"]), str(found["corpus"]))

    def config(self) -> RunConfig:
        """Return the run's configuration."""
        if not self.exists:
            fix = "name a folder that elbowroom train or compare made"
            raise FileError(f"{self.path}: no run here (config.yaml is missing); {fix}")
        path = self.path / "config.yaml"
        try:
            return run_config(read_yaml(path))
        except ElbowroomError as error:
            said = str(error).removeprefix(f"{path}: ")
            fix = "put back what it was, or remove the run's folder to train it again"
            raise FileError(f"{path}: not as a run wrote it ({said}); {fix}") from error

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        text = json.dumps(dict(line), ensure_ascii=False, allow_nan=False) + "\n"
        path = self.path / "metrics.jsonl"
        with saving(path), path.open("a", encoding="utf-8") as file:
            file.write(text)

    def settle_metrics(self) -> None:
        """Force the metrics to the disk, before a checkpoint that builds on them."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            with saving(path), path.open("rb+") as file:
                os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the metrics; a last one that was cut off by a kill is left out."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return []
        *lines, _cut_off = path.read_bytes().split(b"\n")
        return [_metrics_line(path, number, line) for number, line in enumerate(lines, start=1)]

    def forget_after(self, step: int) -> None:
        """Drop the metrics and the checkpoints of steps that will be made again."""
        checkpoints.remove_after(self.state, step)
        kept = [line for line in self.metrics() if line["step"] <= step]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
        with saving(self.path):
            write_bytes(self.path / "metrics.jsonl", text.encode("utf-8"))

    def save_end(self, end: End) -> None:
        """Write how training ended, before `save_model`."""
        with saving(self.state):
            write_json(self.state / "end.json", asdict(end))

    @property
    def end(self) -> End | None:
        """How training ended, where the weights were saved and the evaluation is missing."""
        path = self.state / "end.json"
        if not (path.exists() and (self.path / "model.safetensors").exists()):
            return None
        return End(**read_json(path, End))

    def save_model(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Write the weights."""
        data = save({k: x.contiguous() for k, x in tensors.items()}, {"step": str(step)})
        with saving(self.path):
            write_bytes(self.path / "model.safetensors", data)

    def load_model(self) -> tuple[dict[str, Tensor], int]:
        """Return the weights and after how many steps they were so."""
        path = self.path / "model.safetensors"
        try:
            with safe_open(path, framework="pt") as file:
                step = int((file.metadata() or {}).get("step", 0))
                return {name: file.get_tensor(name) for name in file.keys()}, step  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            fix = "train the run to its end: elbowroom train ... --resume"
            raise FileError(f"{path}: no whole model there ({error}); {fix}") from error

    def save_gradients(self, tensors: Mapping[str, Tensor]) -> None:
        """Write what was measured of gradients, if anything was, before `save_model`."""
        if tensors:
            with saving(self.path):
                data = save({k.removeprefix(PREFIX): x.contiguous() for k, x in tensors.items()})
                write_bytes(self.path / "gradients.safetensors", data)

    @property
    def gradients(self) -> GradientRatios | None:
        """Ratios of gradients by type over training, ``[V]``, where they were measured."""
        path = self.path / "gradients.safetensors"
        if not path.exists():
            return None
        found = GradientRatios()
        try:
            found.load_state_dict(load(path.read_bytes()))
        except (OSError, SafetensorError, KeyError) as error:
            fix = "remove this file, or the run's folder to train it again"
            raise FileError(f"{path}: no whole sums there ({error}); {fix}") from error
        return found

    def finish(self, record: Mapping[str, Any]) -> None:
        """Write the record."""
        with saving(self.path):
            write_json(self.path / "record.json", record)

    def forget_state(self) -> None:
        """Remove what was needed to go on, once all of a company have their records."""
        shutil.rmtree(self.state, ignore_errors=True)

    def remove(self) -> None:
        """Remove everything of the run."""
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn what the system says of a full disk, or of another that fails, into what to do.

    Args:
        path: what is being written.
    """
    try:
        yield
    except OSError as error:
        fix = "make room, or see to the disk, and go on with --resume; what was saved is intact"
        said = error.strerror or error
        raise FileError(f"{path}: could not be written ({said}); {fix}") from error


def companies(folders: Sequence[RunFolder]) -> dict[str, tuple[str, ...]]:
    """Return with which runs each run was trained so far, by the folders' names.

    A process may have been killed when it had told some folders of a company and not all: the
    others are known from these.

    Args:
        folders: of all runs that may go on.
    """
    own = {folder.path.name: folder.company for folder in folders}
    known = {name: company.runs for name, company in own.items() if company is not None}
    named = {name: runs for runs in known.values() for name in runs}
    return named | known


def unfinished(folders: Mapping[str, RunFolder], company: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the names of the folders of runs that are to be trained, or only evaluated.

    A run that has its record is among them where another of its company has none: they were killed
    in between, and are evaluated together again, for the same bits.

    Args:
        folders: by name.
        company: with which runs some were trained, as `companies` found.
    """
    without = {name for name, folder in folders.items() if not folder.is_finished}
    return without | {name for name in folders if without & set(company.get(name, ()))}


def _settings(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return all values of nested mappings by their path, such as ``loss.margin.start``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{before}{name}"
        inner = isinstance(value, Mapping) and value
        found |= _settings(value, f"{path}.") if inner else {path: value}
    return found


def read_json(path: Path, kind: type[Company | End] | None = None) -> dict[str, Any]:
    """Return what a JSON file holds.

    Args:
        path: the file.
        kind: whose fields it must have; None for any.
    """
    fix = "remove this file and go on with --resume"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not readable as JSON ({error}); {fix}") from error
    names = {field.name for field in fields(kind)} if kind is not None else None
    if not isinstance(found, dict) or (names is not None and found.keys() != names):
        expected = f" with {', '.join(sorted(names))}" if names else ""
        raise FileError(f"{path}: expected a JSON object{expected}; {fix}")
    return found


def _metrics_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:  # also half a character
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        fix = "put it back or remove it, and go on with --resume"
        raise FileError(f"{path}: line {number} is damaged; {fix}")
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
    parent = next(p for p in (path, *path.absolute().parents) if _is_there(p))
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise FileError(f"{path}: no folder can be made here; name another with --output")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # it lies in a folder that others may not look into
        return False
