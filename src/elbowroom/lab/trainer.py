"""Trains runs from their configurations to their records, and goes on where it was stopped.

Runs that can share a program become one `Population`; populations are trained one after the other.
Whatever stops training (Ctrl-C, a time limit, a kill), ``resume=True`` goes on: from the newest
checkpoint that all runs of a population have whole, to the same bits on the same device with as
many threads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elbowroom import checks
from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentValueError
from elbowroom.lab import checkpoints, resume
from elbowroom.lab.config import RunConfig, names_differ
from elbowroom.lab.distributed import (
    ALONE,
    Onlooker,
    Ranks,
    by_run,
    check_shared,
    joined,
    own_device,
    spread,
)
from elbowroom.lab.evaluation import Judge
from elbowroom.lab.folder import Company, End, RunFolder, companies, unfinished, writable
from elbowroom.lab.population import Population, population_key
from elbowroom.lab.records import record_of
from elbowroom.lab.signals import interruptible
from elbowroom.lab.tokens import Corpus
from elbowroom.lab.trackers import join
from elbowroom.provenance import provenance


@dataclass(frozen=True)
class Event:
    """What happened, for whoever watches.

    Attributes:
        kind: "start", "log", "eval", "save", "judge", "judging", "warning", "done".
        runs: the population's.
        step: steps made.
        steps: steps in all.
        tokens_per_second: of all runs together, lately.
        seconds_left: of this population's training, as far as can be told.
        population: which population, from 1.
        populations: how many there are.
        lines: for "log" and "eval": what was written of each run.
        judged: for "judging": the share of the held-out text that is judged so far.
        message: for "warning".
    """

    kind: str
    runs: tuple[RunConfig, ...]
    step: int
    steps: int
    tokens_per_second: float = 0.0
    seconds_left: float | None = None
    population: int = 1
    populations: int = 1
    lines: tuple[Mapping[str, Any], ...] = ()
    judged: float = 0.0
    message: str = ""


Observer = Callable[[Event], None]


@dataclass(frozen=True)
class Outcome:
    """How training ended.

    Attributes:
        folders: of all runs, in the order given.
        stopped: whether it was stopped before its end.
        interrupted: whether that was by a signal, to whichever process, and not by a limit.
    """

    folders: tuple[RunFolder, ...]
    stopped: bool
    interrupted: bool = False


def train(
    runs: Sequence[RunConfig],
    corpus: Corpus,
    output: str | Path,
    *,
    device: torch.device | str | None = None,
    resume: bool = False,
    max_minutes: float | None = None,
    command: str = "",
    observer: Observer | None = None,
    tracker: Observer | None = None,
) -> Outcome:
    """Train and evaluate runs; each gets a folder in ``output``.

    Where ``torchrun`` started several processes, each calls this, and they share the work: see
    `elbowroom.lab.distributed`. Only the first tells the observer more than warnings.

    Args:
        runs: what to train.
        corpus: the texts.
        output: the folder that holds the runs' folders.
        device: where; CUDA where there is one, if None: each process's own.
        resume: go on with runs that were begun; finished ones are left alone.
        max_minutes: stop cleanly after so long.
        command: that repeats this, for the records.
        observer: is told what happens.
        tracker: likewise, but of each run by the process that trains it.
    """
    if not runs:
        raise ArgumentValueError("runs", "at least one run", "none")
    names_differ(runs)
    if max_minutes is not None:
        checks.number("max_minutes", max_minutes, at_least=0.0)
    runs = [replace(r, model=replace(r.model, vocab_size=corpus.vocab_size)) for r in runs]
    output = Path(output)
    writable(output)
    folders = {run.folder: RunFolder(output / run.folder) for run in runs}
    for run in runs:
        if folders[run.folder].exists:
            if not resume:
                fix = "go on with --resume, or name another folder"
                raise ArgumentValueError("output", "a folder without these runs", run.folder, fix)
            folders[run.folder].check(run, corpus.fingerprint)
    target = own_device(device)
    company = companies(list(folders.values()))
    names = unfinished(folders, company)
    left = [run for run in runs if run.folder in names]
    deadline = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
    with joined(target) as ranks, interruptible() as interrupted:
        ranks.same("the runs", str(runs))
        ranks.same("the texts", corpus.fingerprint)
        ranks.same("the folder", f"{output} {left} {company}")  # and all have looked
        tasks = assign(left, company, ranks, only=len(runs) == 1)
        if ranks.is_first:
            for name in folders.keys() - names:  # a kill may have come between record and this
                folders[name].forget_state()
        else:
            observer = _warnings_only(observer)

        def should_stop() -> bool:
            return interrupted() or time.monotonic() > deadline

        stopped = False
        for number, (members, among) in enumerate(tasks, start=1):
            stopped = among.any(should_stop())
            if stopped:
                break
            own = [folders[run.folder] for run in members]
            told = join(observer, tracker if among.is_first else None)
            job = Job(members, corpus, own, target, command=command, observer=told, ranks=among)
            job.place = (number, len(tasks))
            stopped = not job.run(should_stop)
            if stopped:
                break
        stopped = ranks.any(stopped)  # and all have finished
        by_signal = ranks.any(stopped and interrupted())
    return Outcome(tuple(folders.values()), stopped, by_signal)


def assign(
    runs: Sequence[RunConfig], company: Mapping[str, Sequence[str]], ranks: Ranks, *, only: bool
) -> list[tuple[list[RunConfig], Ranks]]:
    """Return what this process trains, and with which others: with all, or alone.

    Args:
        runs: those that are not finished.
        company: with whom some of them were trained so far; they go on in that company.
        ranks: all processes.
        only: whether no other run was asked for, so that one may take all processes.
    """
    if ranks.world == 1:
        return [(members, ALONE) for members in group(runs, company)]
    modes = ("fsdp", "ddp") if only else ("fsdp",)
    shared = [run for run in runs if run.training.parallel in modes]
    for run in shared:
        check_shared(run, ranks.world)
    rest = group([run for run in runs if run not in shared], company)
    apart = spread(rest, ranks.world, whole=lambda run: run.folder in company)[ranks.rank]
    return [([run], ranks) for run in shared] + [(members, ALONE) for members in apart]


def group(
    runs: Sequence[RunConfig], together: Mapping[str, Sequence[str]] | None = None
) -> list[list[RunConfig]]:
    """Return the populations that runs make: those that can share a program together.

    Args:
        runs: any.
        together: with whom some runs were trained so far, by their folders' names. These go on in
            that company: in another one they would get other bits, and have no common checkpoint.
    """
    found: dict[object, list[RunConfig]] = {}
    for run in runs:
        company = tuple((together or {}).get(run.folder, ()))
        found.setdefault((population_key(run), company), []).append(run)
    return list(found.values())


class Job:
    """The training of one population, from the start or a checkpoint to its records.

    Args:
        runs: of one `population_key`.
        corpus: the texts.
        folders: one a run.
        device: where to train.
        command: for the records.
        observer: is told what happens.
        ranks: the processes that train it together.
    """

    def __init__(
        self,
        runs: Sequence[RunConfig],
        corpus: Corpus,
        folders: Sequence[RunFolder],
        device: torch.device,
        *,
        command: str = "",
        observer: Observer | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.origin, self.ranks = provenance(command), ranks
        self.population = _population(runs, corpus, device, ranks)
        self.runs = self.population.runs  # in its order
        if not ranks.is_first:
            folders = [Onlooker(folder.path) for folder in folders]
        by_name = {folder.path.name: folder for folder in folders}
        self.folders = [by_name[run.folder] for run in self.runs]
        self.corpus, self.observer = corpus, observer
        self.training = self.runs[0].training
        self.place = (1, 1)
        self.judge = Judge(
            corpus,
            self.population.model,
            [run.loss.final_scale for run in self.runs],
            self.runs[0].evaluation,
            self._bins(),
        )
        self._seconds = 0.0  # of training, before this process
        self._speed = 0.0
        self._kept: list[list[float]] = [[] for _ in self.runs]

    def _bins(self) -> Tensor | None:
        """Return a bin of frequency for each token, by the first run's sampling."""
        count = self.runs[0].evaluation.bins
        if not count:
            return None
        counts: TokenCounts = self.population.token_counts[0]
        return counts.bins(count)

    def run(self, should_stop: Callable[[], bool]) -> bool:
        """Train, evaluate and record; return False if it was stopped before the end."""
        company = Company(tuple(run.folder for run in self.runs), self.corpus.fingerprint)
        for folder, run in zip(self.folders, self.runs, strict=True):
            folder.begin(run, self.corpus.tokenizer, company)
        over = self._resume()
        self._tell("start")
        if not over and not self._train(lambda: self.ranks.any(should_stop())):
            return False
        self._finish()
        return True

    # Going on

    def _resume(self) -> bool:
        """Continue from what was found, if anything; return whether training is over."""
        plain, tensors = self.ranks.share(
            lambda: resume.found(self.folders, lambda said: self._tell("warning", message=said))
        )
        states = by_run(tensors, len(self.runs))
        if "ends" in plain:
            self._resume_end([End(**end) for end in plain["ends"]], states)
            return True
        if plain:
            self.population.load_run_states(states, plain["step"], plain["since"])
            self._seconds, self._kept = plain["seconds"], plain["kept"]
        for folder in self.folders:
            folder.forget_after(self.population.done)
        return False

    def _resume_end(self, ends: Sequence[End], states: Sequence[Mapping[str, Tensor]]) -> None:
        """Continue where only the evaluation was cut off."""
        for r, state in enumerate(states):
            self.population.load_model_state(r, state)
        chosen = [(end.best_step, end.best_loss) for end in ends]
        self.population.end_at(ends[0].done, [end.died_at for end in ends], chosen)
        self._seconds = ends[0].seconds
        self._kept = [end.kept for end in ends]

    def _save(self) -> None:
        """Write a checkpoint of every run."""
        for folder in self.folders:
            folder.settle_metrics()
        since, seconds = self.population.since, self._elapsed()
        for r, folder in enumerate(self.folders):
            state = self.population.run_state(r)  # by all processes, where they share the run
            if self.ranks.is_first:
                meta = {"since": since, "seconds": seconds, "kept": self._kept[r]}
                checkpoints.save(folder.state, self.population.done, state, meta)
        self._saved = time.monotonic()
        self._tell("save")

    # Training

    def _train(self, should_stop: Callable[[], bool]) -> bool:
        population, training = self.population, self.training
        self._began = self._saved = time.monotonic()
        stop = False
        while self._goes_on():
            ahead = min(self._to_next(n) for n in self._periods())
            start, before = time.monotonic(), population.done
            for _ in range(min(ahead, training.steps - before)):
                population.advance(1)
                stop = should_stop()
                if stop:
                    break
            self._after(start, before)
            if stop and self._goes_on():
                self._save()
                return False
        return True

    def _goes_on(self) -> bool:
        """Return whether steps are left; without any run alive, only those up to a report.

        Thus the same steps are made whether training was stopped on the way to it or not.
        """
        done = self.population.done
        between = all(done % n for n in self._periods())
        return done < self.training.steps and (between or bool(self.population.alive.any()))

    def _periods(self) -> Iterator[int]:
        yield self.training.log_every
        yield self.training.eval_every
        if self.training.checkpoint_every is not None:
            yield self.training.checkpoint_every

    def _to_next(self, period: int) -> int:
        return period - self.population.done % period

    def _after(self, start: float, before: int) -> None:
        """Report, evaluate and save as is due after some steps."""
        population, training = self.population, self.training
        done, last = population.done, population.done >= training.steps
        if done % training.log_every == 0 or last:
            self._log(start, before)
        if done % training.eval_every == 0 and not last:
            self._quick()
        every = training.checkpoint_every
        due = every is not None and done % every == 0
        late = time.monotonic() - self._saved > 60 * training.checkpoint_minutes
        due = due or self.ranks.any(late)
        if due and not last:
            self._save()

    def _log(self, start: float, before: int) -> None:
        population = self.population
        found = population.log()  # waits for the device
        tokens = (population.done - before) * self._tokens_a_step()
        self._speed = tokens / max(1e-9, time.monotonic() - start)
        lines = []
        for r, folder in enumerate(self.folders):
            line: dict[str, Any] = {"step": population.done, "loss": _plain(found.loss[r])}
            for language, nll in zip(self.corpus.languages, found.nll[r], strict=True):
                if math.isfinite(nll):
                    line[f"nll/{language}"] = nll
            line |= {"kept": _plain(found.kept[r]), "lr": found.lr[r]}
            line["grad_norm"] = _plain(found.grad_norm[r])
            line["seconds"] = round(self._elapsed(), 2)
            line["tokens_per_second"] = round(self._speed / len(self.runs), 1)
            if math.isfinite(found.kept[r]):
                self._kept[r].append(found.kept[r])
            folder.append(line)
            lines.append(line)
        self._tell("log", lines=tuple(lines))

    def _quick(self) -> None:
        scores = self.judge.quick(self.training.eval_windows)
        lines = [{"step": self.population.done, "eval": one} for one in scores]
        for folder, line in zip(self.folders, lines, strict=True):
            folder.append(line)
        self._tell("eval", lines=tuple(lines))

    def _tokens_a_step(self) -> int:
        return len(self.runs) * self.training.batch * self.runs[0].model.context

    def _elapsed(self) -> float:
        """Return the seconds of training so far, in this process and before it."""
        return self._seconds + time.monotonic() - getattr(self, "_began", time.monotonic())

    # The end

    def _finish(self) -> None:
        population = self.population
        population.settle()
        ends = self._ends()
        for r, folder in enumerate(self.folders):
            folder.settle_metrics()
            folder.save_end(ends[r])
            folder.save_gradients(population.gradient_state(r))
            made = ends[r].best_step if ends[r].best_step >= 0 else population.done
            folder.save_model(population.model_state(r), made)
        self._tell("judge")
        judged = self.judge.full(lambda n, of: self._tell("judging", judged=n / of))
        for r, folder in enumerate(self.folders):
            record = record_of(population, r, ends[r], self.ranks.world)
            folder.finish(record | judged[r] | {"provenance": self.origin})
        for folder in self.folders:
            folder.forget_state()
        self._tell("done")

    def _ends(self) -> list[End]:
        """Return how the training of each run ended."""
        seconds, done = self._elapsed(), self.population.done
        died, chosen = self.population.died_at.tolist(), self.population.chosen()
        return [End(done, died[r], kept, seconds, *chosen[r]) for r, kept in enumerate(self._kept)]

    def _tell(self, kind: str, **more: Any) -> None:
        if self.observer is None:
            return
        left = None
        if self._speed and kind != "start":
            steps = self.training.steps - self.population.done
            left = steps * self._tokens_a_step() / self._speed
        self.observer(
            Event(
                kind=kind,
                runs=tuple(self.runs),
                step=self.population.done,
                steps=self.training.steps,
                tokens_per_second=self._speed,
                seconds_left=left,
                population=self.place[0],
                populations=self.place[1],
                **more,
            )
        )


def _warnings_only(observer: Observer | None) -> Observer | None:
    def tell(event: Event) -> None:
        if observer is not None and event.kind == "warning":
            observer(event)

    return tell


def _population(
    runs: Sequence[RunConfig], corpus: Corpus, device: torch.device, ranks: Ranks
) -> Population:
    if ranks.world > 1 and runs[0].training.parallel == "fsdp":
        from elbowroom.lab.sharded import ShardedPopulation  # loads much of torch

        return ShardedPopulation(runs, corpus, device, rank=ranks.rank, world=ranks.world)
    return Population(runs, corpus, device, rank=ranks.rank, world=ranks.world)


def _plain(x: float) -> float | None:
    return x if math.isfinite(x) else None
