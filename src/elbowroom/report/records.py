"""The runs of a comparison, by method, language and seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.report.scores import Score, score_of
from elbowroom.study import Interval, Verdict, mean_interval, verdicts

Seeds: TypeAlias = tuple[int, int]
Record: TypeAlias = Mapping[str, Any]
Pair: TypeAlias = tuple[str, str, str]  # language, method, reference


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One trained model."""

    name: str
    """The method."""
    seeds: Seeds
    """``init_seed`` and ``data_seed``: what pairs runs of different methods."""
    status: str
    """ "done", or how it ended."""
    record: Record
    """All that is known of it."""
    metrics: Sequence[Record] = ()
    """The lines it wrote while it trained."""

    @property
    def done(self) -> bool:
        """Whether it ended as it should; others count nowhere but are shown."""
        return self.status == "done"

    @property
    def seed_label(self) -> str:
        """Its seeds in words."""
        init, data = self.seeds
        return f"seed {init}" if init == data else f"seeds {init}/{data}"

    def scores(self, language: str) -> Record:
        """Return what its record says of a language."""
        found = self.record.get("languages", {}).get(language)
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Methods side by side over the same seeds."""

    runs: Sequence[Run]
    """All of them, also those that failed."""
    references: Sequence[str]
    """The methods that the others are compared with; the first is the main one."""
    score: Score
    """The score that is judged."""
    level: float = 0.95
    """Of all intervals."""
    languages: Sequence[str] = field(init=False)
    """In the order of the records."""
    methods: Sequence[str] = field(init=False)
    """The references first, then in the order of the records."""

    def __post_init__(self) -> None:
        names = dict.fromkeys((*self.references, *(run.name for run in self.runs)))
        said = (run.record.get("languages", {}) for run in self.runs)
        object.__setattr__(self, "methods", tuple(names))
        object.__setattr__(
            self, "languages", tuple(dict.fromkeys(k for each in said for k in each))
        )

    def of(self, method: str) -> list[Run]:
        """Return the runs of a method, also those that failed."""
        return [run for run in self.runs if run.name == method]

    def values(self, method: str, language: str, key: str) -> dict[Seeds, float]:
        """Return a score of each finished run that has it, by its seeds."""
        runs = (run for run in self.of(method) if run.done)
        found = {run.seeds: number(run.scores(language).get(key)) for run in runs}
        return {seeds: value for seeds, value in sorted(found.items()) if value is not None}

    def mean(self, method: str, language: str, key: str) -> Interval | None:
        """Return the mean over the seeds with its interval; None where there is no value."""
        values = list(self.values(method, language, key).values())
        return mean_interval(values, level=self.level) if values else None

    def has(self, key: str) -> bool:
        """Whether any finished run has a score."""
        return any(
            self.values(m, language, key) for m in self.methods for language in self.languages
        )

    def paired(self, pair: Pair, key: str) -> tuple[list[float], list[float]]:
        """Return a method's values and the reference's over the seeds that both have."""
        language, method, reference = pair
        ours, theirs = (self.values(name, language, key) for name in (method, reference))
        shared = [seeds for seeds in ours if seeds in theirs]
        return [ours[s] for s in shared], [theirs[s] for s in shared]

    def pairs(self, language: str) -> list[Pair]:
        """Return what is compared in a language: each method with each reference before it."""
        return [
            (language, method, reference)
            for method in self.methods
            for reference in self.references
            if self.methods.index(reference) < self.methods.index(method)
        ]

    def judge(self, score: Score) -> dict[Pair, Verdict]:
        """Return the verdicts on a score, corrected for their number."""
        pairs = [pair for language in self.languages for pair in self.pairs(language)]
        return verdicts(
            {pair: self.paired(pair, score.key) for pair in pairs},
            score=score.name,
            lower_is_better=score.lower_is_better,
            level=self.level,
        )

    @cached_property
    def verdicts(self) -> dict[Pair, Verdict]:
        """The verdicts on the score that is judged."""
        return self.judge(self.score)

    @property
    def failures(self) -> list[Run]:
        """The runs that did not end as they should."""
        return [run for run in self.runs if not run.done]


def comparison(
    records: Iterable[Record],
    metrics: Sequence[Iterable[Record]] = (),
    *,
    references: Sequence[str] = (),
    score: str = "ppl",
    level: float = 0.95,
) -> Comparison:
    """Return the runs of a comparison, checked and in order.

    Args:
        records: one a run, as in its ``record.json``.
        metrics: the lines of each run's ``metrics.jsonl``, in the same order; may be left out.
        references: the methods that the others are compared with, the main one first; the first
            record's if none are named.
        score: the one that is judged, a key such as "ppl" or "bits_per_byte".
        level: of the intervals.
    """
    listed = list(records)
    if not listed:
        raise ArgumentValueError("records", "at least one record", "none")
    lines = [list(each) for each in metrics] or [[] for _ in listed]
    if len(lines) != len(listed):
        raise ArgumentValueError("metrics", f"{len(listed)}, one a record", len(lines))
    runs = [_run(record, own) for record, own in zip(listed, lines, strict=True)]
    _check_unique(runs)
    names = tuple(dict.fromkeys(run.name for run in runs))
    for name in references:
        if name not in names:
            raise ArgumentValueError("references", f"names among {', '.join(names)}", repr(name))
    return Comparison(
        runs=runs,
        references=tuple(dict.fromkeys(references)) or names[:1],
        score=score_of("score", score),
        level=checks.number("level", level, above=0, below=1),
    )


def number(value: object) -> float | None:
    """Return a value of a record as a float; None for what is no finite number.

    Example:
        >>> number(3), number(None), number(float("nan"))
        (3.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _run(record: Record, lines: Sequence[Record]) -> Run:
    if not isinstance(record, Mapping):
        raise ArgumentTypeError("records", "dictionaries", checks.describe(record))
    for key in ("name", "init_seed", "data_seed", "status"):
        if key not in record:
            raise ArgumentValueError(
                "records", f"the key {key!r} in each", sorted(map(str, record))
            )
    return Run(
        name=str(record["name"]),
        seeds=(
            checks.integer("init_seed", record["init_seed"]),
            checks.integer("data_seed", record["data_seed"]),
        ),
        status=str(record["status"]),
        record=record,
        metrics=lines,
    )


def _check_unique(runs: Sequence[Run]) -> None:
    seen = set()
    for run in runs:
        if (run.name, run.seeds) in seen:
            got = f"two of {run.name!r} with {run.seed_label}"
            fix = "give methods that differ names that differ"
            raise ArgumentValueError("records", "one run a method and pair of seeds", got, fix)
        seen.add((run.name, run.seeds))
