"""Train the runs that a configuration describes.

Flags go over the file, the file over the defaults. Any field of the configuration is a flag:
--training.steps 2000, --loss.margin 1, --model.tied false. A file with "runs" and "seeds" is a plan
of many runs, which train together where they can.

For example:

elbowroom train --dump-config > plan.yaml

elbowroom train plan.yaml --output runs/first

elbowroom train plan.yaml --output runs/first --resume

elbowroom train plan.yaml --training.steps 500 --loss.margin.start 2 --dry-run
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from elbowroom.cli.live import watching
from elbowroom.cli.main import UsageError
from elbowroom.cli.show import Number, Text, progress
from elbowroom.lab.config import RunConfig, as_plain, merge, plan
from elbowroom.lab.data import corpus_of
from elbowroom.lab.strict import read_yaml, write_yaml
from elbowroom.lab.tokens import Corpus
from elbowroom.lab.trainer import Outcome, group, train


@dataclass(kw_only=True)
class Device:
    """Where to compute."""

    device: Text = None
    """cpu, cuda or cuda:1; CUDA where there is one if left out."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Threads on a CPU."""

    def place(self) -> torch.device:
        """Return the device; set the threads."""
        if self.threads is not None:
            if self.threads < 1:
                raise UsageError(f"--threads: expected at least 1, got {self.threads}")
            torch.set_num_threads(self.threads)
        name = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(name)
        except RuntimeError:
            raise UsageError(f"--device: expected cpu, cuda or cuda:N, got {name!r}") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError(f"--device: {name!r} was asked for, and there is no CUDA device here")
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"--device: expected cpu, cuda or cuda:N, got {name!r}")
        return device


@dataclass(kw_only=True)
class Training(Device):
    """What commands that train have in common."""

    resume: bool = False
    """Go on with runs that were begun; finished ones are left alone."""
    max_minutes: Number = None
    """Stop cleanly after so long; --resume goes on."""
    offline: bool = False
    """Download nothing: use what is here already."""
    quiet: bool = False
    """Show no progress."""


@dataclass(kw_only=True)
class Command(Training):
    """The command's arguments."""

    config: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")] = None
    """A YAML file; without one, the defaults: the paper's model on tiny-shakespeare."""
    output: Path = Path("runs/train")
    """The folder that the runs' folders are made in."""
    dump_config: bool = False
    """Print the configuration as it would be used, and stop."""
    dry_run: bool = False
    """Say what would be trained, and stop."""
    fields: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)

    def run(self) -> None:
        """Train, or say what would be trained."""
        values = read_yaml(self.config) if self.config is not None else {}
        runs = plan(with_fields(values, self.fields))
        if self.dump_config:
            print(dumped(runs), end="")
            return
        device = self.place()
        corpus = load_corpus(runs, offline=self.offline)
        if self.dry_run:
            describe(runs, corpus, device)
            return
        with watching(self.quiet) as observer:
            outcome = train(
                runs,
                corpus,
                self.output,
                device=device,
                resume=self.resume,
                max_minutes=self.max_minutes,
                command=repeat("train", str(self.config or ""), self.fields),
                observer=observer,
            )
        report(outcome, self.output)


def with_fields(values: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with flags over it; in a plan they go over every run."""
    if not {"runs", "base", "seeds"} & values.keys():
        return merge(values, fields)
    plan_keys = {k: v for k, v in fields.items() if k == "seeds"}
    change = {k: v for k, v in fields.items() if k != "seeds"}
    runs = [merge(run, change) for run in values.get("runs") or [{}]]
    return {**values, **plan_keys, "runs": runs}


def dumped(runs: list[RunConfig]) -> str:
    """Return runs as a file to start from: the one, or a plan of all."""
    if len(runs) == 1:
        return write_yaml(as_plain(runs[0]))
    return "\n".join(f"# {run.folder}\n{write_yaml(as_plain(run))}" for run in runs)


def load_corpus(runs: list[RunConfig], *, offline: bool) -> Corpus:
    """Return the texts that all runs share; one command trains on one corpus."""
    first = runs[0]
    names = ("source", "tokenizer", "vocab_size", "validation")
    for run in runs:
        for name in names:
            if getattr(run.data, name) != getattr(first.data, name):
                raise UsageError(f"data.{name} differs between runs; train them by two commands")
    with progress("texts") as on_block:
        return corpus_of(
            first.data,
            max(run.model.context for run in runs),
            offline=offline,
            progress=lambda done, total: on_block(done, total or done),
        )


def describe(runs: list[RunConfig], corpus: Corpus, device: torch.device) -> None:
    """Print what would be trained."""
    lengths = [len(stream) for stream in corpus.train]
    print(f"device: {device}")
    print(f"vocabulary: {corpus.vocab_size} tokens")
    for language, length in zip(corpus.languages, lengths, strict=True):
        print(f"language: {language}, {length:,} training tokens")
    for number, members in enumerate(group(runs), start=1):
        steps = members[0].training.steps
        print(f"population {number}: {len(members)} runs, {steps} steps")
        for run in members:
            print(f"  {run.folder}")


def report(outcome: Outcome, output: Path) -> None:
    """Say where the results are, or how to go on."""
    if outcome.stopped:
        print(f"stopped; what was done is saved in {output}; go on with --resume", file=sys.stderr)
        return
    for folder in outcome.folders:
        record = folder.record or {}
        scores = "  ".join(
            f"{language}: ppl {found['ppl']:.3f}"
            for language, found in record.get("languages", {}).items()
            if found.get("ppl") is not None
        )
        print(f"{folder.path}  {record.get('status')}  {scores}")


def repeat(command: str, *words: str | dict[str, Any]) -> str:
    """Return the command that repeats this, for records."""
    import shlex

    said = ["elbowroom", command]
    for word in words:
        if isinstance(word, dict):
            said += [f"--{name}={value}" for name, value in _flat(word)]
        elif word:
            said.append(word)
    return shlex.join(said)


def _flat(values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        inner = isinstance(value, dict)
        found += _flat(value, f"{before}{name}.") if inner else [(before + name, value)]
    return found
