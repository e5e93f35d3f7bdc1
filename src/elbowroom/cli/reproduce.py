"""Make the paper's tables and figures again, with seeds and intervals, beside its numbers.

Trains what is missing and writes report.html, tables (Markdown, LaTeX, CSV) and figures (SVG, PDF)
to the output folder; after each stretch of seeds, so that there is always a report of what is done.
The whole of it, every method with ten seeds and families of rivals and ours that are tuned first,
is meant for a GPU: a CPU would need days.
--quick is a look on a CPU: every row, from smaller models and shorter runs, marked as such; rivals
with a smaller budget, also marked.

For example:

elbowroom reproduce

elbowroom reproduce --quick

elbowroom reproduce --only table-metrics,figure-temperature --seeds 3

elbowroom reproduce --protocol clean

elbowroom reproduce --records runs/reproduce/records.jsonl --output runs/again

elbowroom reproduce --only table-effective --weights gpt2=model.safetensors
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import torch
import tyro

from elbowroom import checks
from elbowroom.cli.live import clock
from elbowroom.cli.main import UsageError
from elbowroom.cli.plans import repeat
from elbowroom.cli.show import File, Integer, counted, progress, say
from elbowroom.cli.train import Training, load_corpus
from elbowroom.cli.weights import Choice, load, named
from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab.config import RunConfig
from elbowroom.lab.distributed import is_first, joined
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.tokens import Corpus
from elbowroom.lab.trackers import tracking
from elbowroom.report.paper import Extras, write_reproduction
from elbowroom.report.paper.runs import (
    finished,
    first_heads,
    looked_into,
    read_records,
    write_records,
)
from elbowroom.report.paper.verdict import verdict_lines
from elbowroom.study.paper import (
    QUICK_SEEDS,
    SEEDS,
    Part,
    Study,
    base_of,
    methods_of,
    parts_of,
    runs_of,
    studies_of,
    study_of,
)
from elbowroom.study.paper.effective import Trained, effective_margins, trained_margin
from elbowroom.study.paper.layout import EFFECTIVE
from elbowroom.study.paper.rows import FIRST_TUNING_SEED, stretches
from elbowroom.study.paper.tokens import expected_counts, rarest
from elbowroom.study.paper.translations import letters_of
from elbowroom.study.paper.tuning import settled, tuning_runs

HEADS = {"figure-cosines", "figure-components"}  # need what records do not hold
LOOKED_INTO = {
    *("table-translations", "figure-cosines", "figure-tail", "figure-gradients"),
    *("figure-optimisation", "figure-discovery", "figure-kept"),
}
# paper if left out; None tells that it was, for --records, whose runs say it themselves
ProtocolName: TypeAlias = Annotated[
    Literal["paper", "clean"] | None, tyro.conf.arg(metavar="{paper,clean}")
]
# Runs that are trained in one stretch, about: on CUDA each stretch is compiled, so few are better.
AT_ONCE = {"cuda": 240, "cpu": 40}
ROOMY = 48 * 2**30  # bytes of a device that has room for twice as many


@dataclass(kw_only=True)
class Command(Training):
    """The command's arguments."""

    output: Path = Path("runs/reproduce")
    """The folder for the runs, report.html, tables/, figures/ and records.jsonl."""
    only: tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")]] = ()
    """Some parts only, with commas between: table-metrics, table-extended, table-untied,
    table-softminus, table-detached, table-rivals, table-protocols, table-effective,
    table-hyperparameters, table-translations, figure-optimisation, figure-tokens,
    figure-gradients, figure-tail, figure-cosines, figure-components, figure-temperature,
    figure-discovery, figure-kept, figure-margins, figure-distributions."""
    seeds: Integer = None
    """Starts and orders of data of each method; 10, with --quick 2."""
    quick: bool = False
    """Smaller models and shorter runs, for a look on a CPU; not judged against print."""
    protocol: ProtocolName = None
    """How runs are made and judged. paper, if left out: the same text for both languages, the
    weights with the lowest noisy validation loss, temperatures chosen on the test text; what the
    paper prints is judged by these. clean: disjoint text, the last iterate, temperatures fitted on
    other text; these lie in clean/ in the output folder."""
    weights: tyro.conf.UseAppendAction[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=FILE")]
    ] = ()
    """Weights of pre-trained models for table-effective, such as gpt2=model.safetensors."""
    records: File = None
    """Train nothing: make the report from the records of runs, one a line of JSON."""
    dry_run: bool = False
    """Say what would be trained, and stop."""

    def run(self) -> None:
        """Train what is missing and write the report."""
        self.check()
        parts = parts_of(name for word in self.only for name in word.split(",") if name)
        if self.weights and all(part.name != EFFECTIVE.name for part in parts):
            raise UsageError(f"--weights: they are shown in {EFFECTIVE.name}; add it to --only")
        named("--weights", self.weights)  # what is wrong with them shows before the work
        if self.records is not None:
            self._from_records(parts)
            return
        if self.protocol == "clean":
            self.output /= "clean"  # the other protocol's runs and report stay what they are
        self._stages(parts)  # names what is wrong before any work
        device, start = self.place(), time.monotonic()
        if self.dry_run:
            self._remaining(parts, print)
            return
        page = self._train(parts, device)
        if page is not None:
            print(f"\nreport: {page}   ({clock(time.monotonic() - start)})")

    def _stages(self, parts: Sequence[Part]) -> list[list[RunConfig]]:
        """Return the runs that the parts need: the paper's rows, then the tuning, then its choice.

        What it chooses follows from its runs' records, so that stage is there once they all are.
        """
        if self.seeds is not None:
            checks.integer("--seeds", self.seeds, at_least=1)
            if self.seeds > FIRST_TUNING_SEED:
                expected = (
                    f"at most {FIRST_TUNING_SEED:,}: the seeds from there on are the tuning's"
                )
                raise ArgumentValueError("--seeds", expected, self.seeds)
        base, seeds = self._base(), range(self._seeds())
        stages = [runs_of(methods_of(parts), seeds, base)]
        tuning = tuning_runs(parts, base, quick=self.quick)
        if not tuning:
            return stages
        records = finished(self.output, tuning)
        stages.append(tuning)
        if len(records) == len(tuning):
            chosen = methods_of(settled(parts, study_of(records)))
            known = {run.name for run in stages[0]}
            more = [method for method in chosen if method not in known]
            stages.append(runs_of(more, seeds, base))
        return stages

    def _base(self) -> dict[str, Any]:
        protocol = self.protocol or "paper"
        return base_of(quick=self.quick, change=self.fields, protocol=protocol)

    def _to_choose(self, parts: Sequence[Part], stages: Sequence[Sequence[RunConfig]]) -> int:
        """Return how many runs the settings still to be chosen will need, at most."""
        families = sum(len(part.families) for part in parts)
        return 0 if len(stages) > 2 else families * self._seeds()

    def _remaining(self, parts: Sequence[Part], tell: Callable[[str], None]) -> None:
        """Say what is finished, what was begun, and what is left."""
        stages = self._stages(parts)
        runs = _flat(stages)
        folders = [(run, RunFolder(self.output / run.folder)) for run in runs]
        left = [(run, folder) for run, folder in folders if not folder.is_finished]
        begun = sum(folder.exists for _, folder in left)
        steps = sum(run.training.steps for run, _ in left)
        methods = len({run.name for run in runs})
        tell(
            f"{counted(len(runs))} of {methods} methods: {len(runs) - len(left)} finished, "
            f"{begun} begun, {len(left) - begun} to begin; "
            f"at most {steps:,} steps left, over all runs"
        )
        if len(stages) > 1:
            more = self._to_choose(parts, stages)
            after = f"; what they choose needs {more} more at most" if more else ""
            tell(f"{counted(len(stages[1]))} of these tune{after}")

    def _seeds(self) -> int:
        return self.seeds or (QUICK_SEEDS if self.quick else SEEDS)

    def _stretches(self, parts: Sequence[Part], most: int) -> Iterator[list[RunConfig]]:
        """Yield what to train at once, stage by stage; a later stage may follow from records."""
        at, stages = 0, self._stages(parts)
        while at < len(stages):
            yield from stretches(stages[at], most)
            at, stages = at + 1, self._stages(parts)

    def _train(self, parts: Sequence[Part], device: torch.device) -> Path | None:
        """Train stretch by stretch, with a report after each; return where it is."""
        page, ends = None, time.monotonic() + 60 * (self.max_minutes or 0.0)
        if is_first() and not self.quiet:
            self._remaining(parts, lambda said: print(said, file=sys.stderr))
        with tracking(self.trackers(), self.output) as tracker, joined(device) as ranks:
            with ranks.one_first():
                corpus = self._corpus(parts, _flat(self._stages(parts)))
            extras = cache(lambda: self._extras(parts, corpus))
            for stretch in self._stretches(parts, _at_once(device)):
                assert corpus is not None
                new = any(not RunFolder(self.output / run.folder).is_finished for run in stretch)
                if self.max_minutes is not None:
                    self.max_minutes = max(0.0, (ends - time.monotonic()) / 60)
                command = self._repeat("")
                done = self.fit(stretch, corpus, device=device, command=command, tracker=tracker)
                if ranks.is_first and new:
                    page = self._report(parts, corpus, extras())
                if done.stopped:
                    return None
            if ranks.is_first and page is None:
                page = self._report(parts, corpus, extras())
        if ranks.is_first:
            study = study_of(finished(self.output, _flat(self._stages(parts))))
            say(verdict_lines(study, settled(parts, study), whole=False))
            _failures(study)
        return page

    def _report(self, parts: Sequence[Part], corpus: Corpus | None, extras: Extras) -> Path:
        """Write the records and the report of what is finished."""
        stages, names = self._stages(parts), {part.name for part in parts}
        runs = _flat(stages)
        records = finished(self.output, runs)
        if corpus is not None and names & LOOKED_INTO:
            records = [looked_into(record, self.output, corpus) for record in records]
        write_records(self.output / "records.jsonl", records)
        heads, rare = [], []
        if corpus is not None and names & HEADS and letters_of(corpus) is not None:
            heads, rare = list(first_heads(records, self.output, corpus)), rarest(corpus)
        remaining = len(runs) - len(records) + self._to_choose(parts, stages)
        left = replace(extras, heads=heads, rarest=rare, remaining=remaining)
        if "table-protocols" in names:
            left = replace(left, beside=self._beside())
        return write_reproduction(study_of(records), parts, self.output, self._repeat, left)

    def _beside(self) -> Study | None:
        """Return the runs by the other protocol, where their records are in the output folder."""
        clean = self.protocol == "clean"
        path = (self.output.parent if clean else self.output / "clean") / "records.jsonl"
        return study_of(read_records(path)) if path.exists() else None

    def _corpus(self, parts: Sequence[Part], runs: Sequence[RunConfig]) -> Corpus | None:
        """Return the texts, where a part or its runs need them."""
        if not runs and all(part.name != "figure-tokens" for part in parts):
            return None
        runs = runs or runs_of(["ce-tied"], [0], self._base())
        return load_corpus(runs, offline=self.offline, quiet=self.quiet)

    def _extras(self, parts: Sequence[Part], corpus: Corpus | None = None) -> Extras:
        """Compute what no run holds: effective margins of initialised models, token counts."""
        names = {part.name for part in parts}
        found = Extras()
        if corpus is not None and "figure-tokens" in names:
            found = replace(found, tokens=expected_counts(corpus))
        if EFFECTIVE.name in names:
            with progress("effective margins", quiet=self.quiet) as on_draw:
                found = replace(found, effective=effective_margins(progress=on_draw))
            found = replace(found, trained=self._trained())
        return found

    def _trained(self) -> list[Trained]:
        """Compute the effective margins of the weights that were named."""
        found = []
        for name, weights in named("--weights", self.weights).items():
            with progress(name, quiet=self.quiet) as on_block:
                weight, norm, _ = load(weights, Choice())
                found.append(trained_margin(name, weight, norm, progress=on_block))
        return found

    def _from_records(self, parts: Sequence[Part]) -> None:
        """Make the report from records, without training."""
        for name in ("quick", "seeds", "resume", "dry_run", "fields", "max_minutes", "protocol"):
            if getattr(self, name):
                said = name.replace("_", "-")
                raise UsageError(f"--{said} and --records do not go together: nothing is trained")
        assert self.records is not None
        start = time.monotonic()
        study, *others = studies_of(read_records(self.records))
        if not study.records:
            raise FileError(f"{self.records}: no runs of the paper's methods in it")
        extras = replace(self._extras(parts), beside=others[0] if others else None)
        page = write_reproduction(study, parts, self.output, self._repeat, extras)
        say(verdict_lines(study, settled(parts, study), whole=False))
        _failures(study)
        print(f"\nreport: {page}   ({clock(time.monotonic() - start)})")

    def _repeat(self, part: str) -> str:
        """Return the command that makes a part again, or all that this makes."""
        only = part or ",".join(self.only)
        words = ["--only", only] if only else []
        if part in ("", EFFECTIVE.name):
            words += [word for one in self.weights for word in ("--weights", _brief(one))]
        if self.records is not None:
            return repeat("reproduce", *words, "--records", self.records.name)
        words += ["--quick"] if self.quick else []
        words += ["--protocol", self.protocol] if self.protocol else []
        words += ["--seeds", str(self.seeds)] if self.seeds is not None else []
        return repeat("reproduce", *words, "--resume", self.fields)


def _at_once(device: torch.device) -> int:
    """Return about how many runs are trained at once on a device."""
    room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    return AT_ONCE[device.type] * (2 if room > ROOMY else 1)


def _brief(word: str) -> str:
    """Return NAME=FILE with the files' names alone: folders are nobody else's."""
    name, _, files = word.partition("=")
    return f"{name}={','.join(Path(file).name for file in files.split(','))}"


def _flat(stages: Sequence[Sequence[RunConfig]]) -> list[RunConfig]:
    return [run for stage in stages for run in stage]


def _failures(study: Study) -> None:
    """Name the runs that failed."""
    for record in study.records:
        if record["status"] != "done":
            seed, why = record["init_seed"], record.get("reason")
            meant = "counts nowhere" if record in study.reported else "rules its setting out"
            said = f"{record['name']}, seed {seed} failed and {meant}: {why}"
            print(said, file=sys.stderr)
