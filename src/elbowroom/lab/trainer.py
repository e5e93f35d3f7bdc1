"""Trains runs from their configurations to their records, and goes on where it was stopped.

Runs that can share a program become one `Population`; populations are trained one after the other.
Whatever stops training (Ctrl-C, a time limit, a kill), ``resume=True`` goes on: from the newest
checkpoint that all runs of a population have whole.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab import checkpoints
from elbowroom.lab.config import RunConfig, as_plain, names_differ
from elbowroom.lab.evaluation import Judge
from elbowroom.lab.folder import Company, End, RunFolder, companies, writable
from elbowroom.lab.population import Population, population_key
from elbowroom.lab.tokens import Corpus
from elbowroom.provenance import provenance


@dataclass(frozen=True)
class Event:
    """What happened, for whoever watches.

    Attributes:
        kind: "start", "log", "eval", "save", "judge", "warning", "done".
        runs: the population's.
        step: steps made.
        steps: steps in all.
        tokens_per_second: of all runs together, lately.
        seconds_left: of this population's training, as far as can be told.
        population: which population, from 1.
        populations: how many there are.
        lines: for "log" and "eval": what was written of each run.
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
    message: str = ""


Observer = Callable[[Event], None]


@dataclass(frozen=True)
class Outcome:
    """How training ended.

    Attributes:
        folders: of all runs, in the order given.
        stopped: whether it was stopped before its end.
    """

    folders: tuple[RunFolder, ...]
    stopped: bool


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
) -> Outcome:
    """Train and evaluate runs; each gets a folder in ``output``.

    Args:
        runs: what to train.
        corpus: the texts.
        output: the folder that holds the runs' folders.
        device: where; CUDA where there is one, if None.
        resume: go on with runs that were begun; finished ones are left alone.
        max_minutes: stop cleanly after so long.
        command: that repeats this, for the records.
        observer: is told what happens.
    """
    if not runs:
        raise ArgumentValueError("runs", "at least one run", "none")
    names_differ(runs)
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
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    left = [run for run in runs if not folders[run.folder].is_finished]
    populations = group(left, companies([folders[run.folder] for run in left]))
    deadline = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
    with interruptible() as interrupted:

        def should_stop() -> bool:
            return interrupted() or time.monotonic() > deadline

        for number, members in enumerate(populations, start=1):
            if should_stop():
                return Outcome(tuple(folders.values()), stopped=True)
            own = [folders[run.folder] for run in members]
            job = Job(members, corpus, own, target, command=command, observer=observer)
            job.place = (number, len(populations))
            if not job.run(should_stop):
                return Outcome(tuple(folders.values()), stopped=True)
    return Outcome(tuple(folders.values()), stopped=False)


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
    ) -> None:
        self.origin = provenance(command)
        self.population = Population(runs, corpus, device)
        self.runs = self.population.runs  # in its order
        by_name = {folder.path.name: folder for folder in folders}
        self.folders = [by_name[run.folder] for run in self.runs]
        self.corpus, self.observer = corpus, observer
        self.training = self.runs[0].training
        self.place = (1, 1)
        self.judge = Judge(
            corpus,
            self.population.model,
            [run.loss.logit_scale for run in self.runs],
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
        self._resume()
        self._tell("start")
        if not self._train(should_stop):
            return False
        self._finish()
        return True

    # Going on

    def _resume(self) -> None:
        """Continue from the newest checkpoint that all runs have whole, if there is one."""
        ends = [folder.end for folder in self.folders]
        if None not in ends:
            self._resume_end([end for end in ends if end is not None])
            return
        population = self.population
        common = set.intersection(*(set(checkpoints.steps(f.state)) for f in self.folders))
        for step in sorted(common, reverse=True):
            try:
                found = [checkpoints.load(f.state, step) for f in self.folders]
            except FileError as error:
                self._tell("warning", message=f"{error}; trying the one before it")
                continue
            meta = found[0].meta
            population.load_run_states([c.tensors for c in found], step, int(meta["since"]))
            self._seconds = float(meta["seconds"])
            self._kept = [list(c.meta["kept"]) for c in found]
            break
        for folder in self.folders:
            folder.forget_after(population.done)

    def _resume_end(self, ends: Sequence[End]) -> None:
        """Continue where only the evaluation was cut off."""
        for r, folder in enumerate(self.folders):
            self.population.model.load_run_state(r, folder.load_model()[0])
        self.population.end_at(ends[0].done, [end.died_at for end in ends])
        self._seconds = ends[0].seconds
        self._kept = [end.kept for end in ends]

    def _save(self) -> None:
        """Write a checkpoint of every run."""
        for folder in self.folders:
            folder.settle_metrics()
        for r, folder in enumerate(self.folders):
            checkpoints.save(
                folder.state,
                self.population.done,
                self.population.run_state(r),
                {"since": self.population.since, "seconds": self._elapsed(), "kept": self._kept[r]},
            )
        self._saved = time.monotonic()
        self._tell("save")

    # Training

    def _train(self, should_stop: Callable[[], bool]) -> bool:
        population, training = self.population, self.training
        self._began = self._saved = time.monotonic()
        stop = False
        while population.done < training.steps and bool(population.alive.any()):
            ahead = min(self._to_next(n) for n in self._periods())
            start, before = time.monotonic(), population.done
            for _ in range(min(ahead, training.steps - before)):
                population.advance(1)
                stop = should_stop()
                if stop:
                    break
            self._after(start, before)
            if stop and population.done < training.steps:
                self._save()
                return False
        return True

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
        due = due or time.monotonic() - self._saved > 60 * training.checkpoint_minutes
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
        population, seconds = self.population, self._elapsed()
        population.settle()
        died = population.died_at.tolist()
        for r, folder in enumerate(self.folders):
            folder.save_end(End(population.done, died[r], self._kept[r], seconds))
            folder.save_model(population.model.run_state(r), population.done)
        self._tell("judge")
        records = self.judge.full()
        for r, (run, folder, judged) in enumerate(
            zip(self.runs, self.folders, records, strict=True)
        ):
            folder.finish(self._record(r, run, seconds) | judged | {"provenance": self.origin})
        self._tell("done")

    def _record(self, r: int, run: RunConfig, seconds: float) -> dict[str, Any]:
        population, died = self.population, int(self.population.died_at[r])
        kept = self._kept[r]
        record = {
            "name": run.name,
            "init_seed": run.init_seed,
            "data_seed": run.data_seed,
            "status": "done" if died < 0 else "failed",
            "steps": population.done if died < 0 else died,
            "parameters": population.model.size,
            "runs_in_population": len(self.runs),
            "wall_seconds": round(seconds, 2),
            "config": _finite(as_plain(run)),
            "corpus": self.corpus.fingerprint,
        }
        if died >= 0:
            record["reason"] = f"the loss or its gradient was not finite at step {died}"
        if kept:
            record["kept"] = sum(kept) / len(kept)
        if seconds > 0:
            tokens = record["steps"] * self._tokens_a_step() / len(self.runs)
            record["tokens_per_second"] = round(tokens / seconds, 1)
        return record

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


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a wish to stop; the second stops at once.

    Yields a function that tells whether the wish was made. In other threads than the main one,
    which alone gets signals, nothing changes.
    """
    wished: list[int] = []

    def wish(number: int, _frame: object) -> None:
        if wished:
            raise KeyboardInterrupt
        wished.append(number)

    names = (signal.SIGINT, signal.SIGTERM)
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {name: signal.signal(name, wish) for name in names}
    try:
        yield lambda: bool(wished)
    finally:
        for name, handler in before.items():  # None: it was not set from Python
            signal.signal(name, signal.SIG_DFL if handler is None else handler)


def _plain(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _finite(value: Any) -> Any:
    """Return plain data with infinite numbers as the words that YAML has for them."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".inf" if value > 0 else "-.inf"
    return value
