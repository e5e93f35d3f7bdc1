"""Train the runs that a configuration describes.

Flags go over the file, the file over the defaults. Any field of the configuration is a flag, such
as --training.steps 2000, --loss.margin 1 or --model.tied false; --seeds 4 trains four starts. A
file with "base", "runs" and "seeds" is a plan of many runs, which train together where they can.

For example:

elbowroom train --dump-config > plan.yaml

elbowroom train plan.yaml --output runs/first

elbowroom train plan.yaml --output runs/first --resume

elbowroom train plan.yaml --training.steps 500 --loss.margin.start 2 --dry-run
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from elbowroom import checks
from elbowroom.cli.live import watching
from elbowroom.cli.main import UsageError
from elbowroom.cli.plans import PLAN, dumped, repeat, with_fields
from elbowroom.cli.show import Number, Text, counted, progress
from elbowroom.lab.config import RunConfig, plan
from elbowroom.lab.data import corpus_of
from elbowroom.lab.distributed import is_first, joined, own_device
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.strict import read_yaml
from elbowroom.lab.tokens import Corpus
from elbowroom.lab.trackers import MODULES, tracking
from elbowroom.lab.trainer import Observer, Outcome, group, train


@dataclass(kw_only=True)
class Device:
    """Where to compute."""

    device: Text = None
    """cpu, cuda or cuda:1; CUDA where there is one if left out."""
    threads: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Threads on a CPU."""

    def place(self) -> torch.device:
        """Return the device, of several processes this one's own; set the threads."""
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
        return own_device(device)


@dataclass(kw_only=True)
class Training(Device):
    """What commands that train have in common."""

    output: Path = Path("runs")
    """The folder that the runs' folders are made in."""
    resume: bool = False
    """Go on with runs that were begun; finished ones are left alone."""
    max_minutes: Number = None
    """Stop cleanly after so long; --resume goes on."""
    offline: bool = False
    """Download nothing: use what is here already."""
    quiet: bool = False
    """Show no progress."""
    track: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")]] = ()
    """Also send what is measured to tensorboard or wandb, or both with a comma between."""
    fields: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)

    def check(self, more: Collection[str] = ()) -> None:
        """Raise where an option cannot be meant, before any work.

        Args:
            more: fields besides those of a run.
        """
        known = {each.name for each in fields_of(RunConfig)} | set(more)
        for name in sorted(self.fields.keys() - known):
            options = [each.name.replace("_", "-") for each in fields_of(self)]
            near = difflib.get_close_matches(name.replace("_", "-"), [*options, *known], 1)
            hint = f"did you mean --{near[0]}?" if near else "--help lists what there is"
            raise UsageError(f"no option or field --{name}; {hint}")
        if self.max_minutes is not None:
            checks.number("--max-minutes", self.max_minutes, at_least=0.0)
        for name in self.trackers():
            checks.choice("--track", name, tuple(MODULES))

    def trackers(self) -> list[str]:
        """Return the names given to --track."""
        return [name for word in self.track for name in word.split(",") if name]

    def fit(
        self,
        runs: Sequence[RunConfig],
        corpus: Corpus,
        *,
        device: torch.device,
        command: str,
        tracker: Observer | None,
    ) -> Outcome:
        """Train, showing how it goes; where that was interrupted, leave with how to go on.

        Args:
            runs: what to train.
            corpus: the texts.
            device: where.
            command: that repeats it.
            tracker: is told what is measured.
        """
        with watching(self.quiet) as observer:
            outcome = train(
                runs,
                corpus,
                self.output,
                device=device,
                resume=self.resume,
                max_minutes=self.max_minutes,
                command=command,
                observer=observer,
                tracker=tracker,
            )
        if outcome.stopped:
            said = f"{self.output}: stopped; what was done is saved; go on with --resume"
            if outcome.interrupted:  # in all processes, or in none
                raise KeyboardInterrupt(said)
            if is_first():
                print(said, file=sys.stderr)
        return outcome


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

    def run(self) -> None:
        """Train, or say what would be trained."""
        self.check(PLAN)
        values = read_yaml(self.config) if self.config is not None else {}
        runs = plan(with_fields(values, self.fields))
        if self.dump_config:
            if is_first():
                print(dumped(runs), end="")
            return
        device = self.place()
        with tracking(self.trackers(), self.output) as tracker, joined(device) as ranks:
            with ranks.one_first():
                corpus = load_corpus(runs, offline=self.offline, quiet=self.quiet)
            if self.dry_run:
                if ranks.is_first:
                    describe(runs, corpus, device, self.output)
                return
            command = repeat("train", str(self.config or ""), self.fields)
            outcome = self.fit(runs, corpus, device=device, command=command, tracker=tracker)
            if ranks.is_first and not outcome.stopped:
                report(outcome)


def load_corpus(runs: Sequence[RunConfig], *, offline: bool, quiet: bool = False) -> Corpus:
    """Return the texts that all runs share; one command trains on one corpus."""
    first = runs[0]
    names = ("source", "tokenizer", "vocab_size", "validation")
    for run in runs:
        for name in names:
            if getattr(run.data, name) != getattr(first.data, name):
                raise UsageError(f"data.{name} differs between runs; train them by two commands")
    with progress("texts", quiet=quiet) as on_block:
        return corpus_of(
            first.data,
            max(run.model.context for run in runs),
            offline=offline,
            progress=lambda done, total: on_block(done, total or done),
        )


def describe(runs: Sequence[RunConfig], corpus: Corpus, device: torch.device, output: Path) -> None:
    """Print what would be trained."""
    lengths = [len(stream) for stream in corpus.train]
    print(f"device: {device}")
    print(f"vocabulary: {corpus.vocab_size} tokens")
    for language, length in zip(corpus.languages, lengths, strict=True):
        print(f"language: {language}, {length:,} training tokens")
    for number, members in enumerate(group(runs), start=1):
        steps = members[0].training.steps
        print(f"population {number}: {counted(len(members))}, {steps} steps")
        for run in members:
            folder = RunFolder(output / run.folder)
            state = " (finished)" if folder.is_finished else " (begun)" if folder.exists else ""
            print(f"  {folder.path}{state}")


def report(outcome: Outcome) -> None:
    """Say how each run ended and where it is."""
    for folder in outcome.folders:
        record = folder.record or {}
        scores = "  ".join(
            f"{language}: ppl {found['ppl']:.3f}"
            for language, found in record.get("languages", {}).items()
            if found.get("ppl") is not None
        )
        said = record.get("reason") or scores
        if record.get("chosen"):
            said += f"  weights of step {record['chosen']['step']}"
        print(f"{folder.path}  {record.get('status')}  {said}")
