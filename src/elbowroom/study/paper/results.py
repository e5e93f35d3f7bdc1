"""Our runs beside the paper's numbers: means, intervals, and whether one more run would do so."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elbowroom.errors import ArgumentValueError
from elbowroom.lab.config import RunConfig, as_plain, run_config
from elbowroom.study.paper.layout import Part, Row
from elbowroom.study.paper.printed import PRINTED, SCORES, Printed
from elbowroom.study.paper.protocols import PAPER, PROTOCOLS, Protocol, protocol_of
from elbowroom.study.paper.rows import FIRST_TUNING_SEED, METHODS, base_of, config_of
from elbowroom.study.statistics import Interval, mean_interval, prediction_interval

WHAT = (  # what makes a method
    *("loss.", "zero_rows.", "model.tied", "model.unigram_bias"),
    *("optimizer.name", "optimizer.center"),
)
# the setting
HOW = ("data.", "model.", "optimizer.", "training.steps", "training.batch", "training.keep.")
RATES = ("optimizer.lr", "optimizer.min_lr")  # of which a method may have a multiple
NEAR = {"training.steps": (8000, 8001)}  # the table prints 8,000, the code makes 8,001 updates
FEWEST = 2  # seeds for an interval


@dataclass(frozen=True, kw_only=True)
class Result:
    """One cell: a score of a row in a language."""

    values: Mapping[int, float]
    """One a seed."""
    mean: Interval | None
    """With the interval of the mean; None without a run."""
    new: Interval | None
    """Where one more seed would lie."""
    printed: Printed | None
    """What the paper prints, if it has the cell."""
    inside: bool | None
    """Whether that lies in the interval of one more seed; None where it cannot be said."""
    comparable: bool = True
    """Whether our runs were made in the paper's setting."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """The runs that a report is made of."""

    records: tuple[Mapping[str, Any], ...]
    """One a run, also those that failed; methods of the paper only."""
    differences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Setting: values in which runs differ from the paper's; where any, nothing is judged."""
    others: tuple[str, ...] = ()
    """Names of methods among the records that no row shows."""
    protocol: Protocol = PAPER
    """By which all of them were made."""

    @property
    def is_papers(self) -> bool:
        """Whether the runs were made in the paper's setting, on the paper's texts."""
        return self.protocol.compared and not self.differences

    @property
    def reported(self) -> tuple[Mapping[str, Any], ...]:
        """The runs that tables and figures are made of: all but those of the tuning."""
        return tuple(r for r in self.records if not _is_tuning(r))

    def of(self, method: str) -> list[Mapping[str, Any]]:
        """Return the finished runs of a method, by seed; none of the tuning."""
        return _by_seed(r for r in self.reported if r["name"] == method and r["status"] == "done")

    def tuning_of(self, method: str) -> list[Mapping[str, Any]]:
        """Return the runs by which a method was compared with its family's others, by seed."""
        return _by_seed(r for r in self.records if r["name"] == method and _is_tuning(r))

    def values(self, method: str, language: str, score: str) -> dict[int, float]:
        """Return a score of each finished run of a method that has it, as the protocol reads it."""
        key = self.protocol.scores.get(score, score)
        found: dict[int, float] = {}
        for record in self.of(method):
            value = record.get("languages", {}).get(language, {}).get(key)
            if isinstance(value, int | float) and math.isfinite(value):
                found[int(record["init_seed"])] = float(value)
        return found

    def result(self, row: Row, language: str, score: str) -> Result:
        """Return a cell.

        Args:
            row: of a table.
            language: "hr" or "lr".
            score: one of `elbowroom.study.paper.SCORES`.
        """
        values = self.values(row.method, language, score) if language in row.languages else {}
        listed = list(values.values())
        mean = mean_interval(listed) if listed else None
        new = prediction_interval(listed) if len(listed) >= FEWEST else None
        printed = PRINTED.get(row.printed or "", {}).get(language, {}).get(score)
        inside = _inside(printed, new) if self.is_papers else None
        return Result(
            values=values,
            mean=mean,
            new=new,
            printed=printed,
            inside=inside,
            comparable=self.is_papers,
        )

    def tally(self, parts: Iterable[Part]) -> tuple[int, int]:
        """Return how many printed numbers of some tables lie inside, of how many judged.

        A row that several tables print counts once.

        Args:
            parts: the tables.
        """
        found = {
            (row.printed, language, score): self.result(row, language, score).inside
            for part in parts
            for row in part.rows
            for language in row.languages
            for score in SCORES
        }
        judged = [inside for inside in found.values() if inside is not None]
        return sum(judged), len(judged)

    def outside(self, parts: Iterable[Part]) -> dict[tuple[str, str], list[str]]:
        """Return which scores of which rows and languages lie outside, each printed row once.

        Args:
            parts: the tables.
        """
        found: dict[tuple[str, str], list[str]] = {}
        for row in (row for part in parts for row in part.rows):
            for language in row.languages:
                out = [s for s in SCORES if self.result(row, language, s).inside is False]
                if out:
                    found.setdefault((row.label, language), out)
        return found


def study_of(records: Iterable[Mapping[str, Any]]) -> Study:
    """Return the runs of a report, compared with what they should be.

    A record of a method whose loss, zero rows, tying or optimizer is not the method's is an error,
    and so are records of several protocols; other settings that differ are named, and then nothing
    is judged against print.

    Args:
        records: as in a run's ``record.json``; methods that no row shows are left out and named.
    """
    kept: list[Mapping[str, Any]] = []
    others: dict[str, None] = {}
    found: dict[str, dict[str, None]] = {}
    seen: set[tuple[str, int, int]] = set()
    protocols: dict[str, Protocol] = {}
    for record in records:
        name = str(record.get("name"))
        if name not in METHODS:
            others[name] = None
            continue
        key = (name, int(record["init_seed"]), int(record["data_seed"]))
        if key in seen:
            raise ArgumentValueError("records", "each run once", f"two of {name}, seed {key[1]}")
        seen.add(key)
        protocol = protocol_of(config_in(record))
        protocols[protocol.name] = protocol
        for setting, value in differences(record).items():
            found.setdefault(setting, {})[value] = None
        kept.append(record)
    if len(protocols) > 1:
        raise ArgumentValueError("records", "runs of one protocol", " and ".join(protocols))
    named = {setting: tuple(values) for setting, values in found.items()}
    protocol = next(iter(protocols.values()), PAPER)
    return Study(records=tuple(kept), differences=named, others=tuple(others), protocol=protocol)


def studies_of(records: Iterable[Mapping[str, Any]]) -> list[Study]:
    """Return the runs of each protocol as a study, in the order of `PROTOCOLS`; at least one.

    Args:
        records: as for `study_of`, of any protocols.
    """
    apart: dict[str, list[Mapping[str, Any]]] = {name: [] for name in PROTOCOLS}
    others: list[Mapping[str, Any]] = []
    for record in records:
        known = record.get("name") in METHODS
        (apart[protocol_of(config_in(record)).name] if known else others).append(record)
    first, *rest = [listed for listed in apart.values() if listed] or [[]]
    return [study_of([*first, *others]), *map(study_of, rest)]


def differences(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings in which a run differs from those of its protocol, with its values.

    Args:
        record: of a run, with its ``config``.
    """
    run = config_in(record)
    expected = config_of(str(record["name"]), base_of(protocol=protocol_of(run).name))
    model = expected.model.vocab_size
    ours, theirs = _flat(run), _flat(expected)
    theirs["model.vocab_size"] = ours.get("model.vocab_size", model)  # follows from the texts
    found = {}
    for setting, value in ours.items():
        if value == theirs.get(setting) or value in NEAR.get(setting, ()):
            continue
        if setting.startswith("training.keep.") and run.training.keep.which == "last":
            continue  # how the best would have been found
        if setting.startswith(WHAT):
            got = f"{setting} {value}"
            expected_words = f"the method {record['name']}, with {setting} {theirs.get(setting)}"
            raise ArgumentValueError("records", expected_words, got)
        if setting in RATES:
            value = value / METHODS[str(record["name"])].rate  # the base's, from which it follows
        if setting.startswith(HOW):
            found[setting] = str(value)
    return found


def config_in(record: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that a record holds; settings it does not know have defaults.

    Args:
        record: of a run.
    """
    return run_config(_numbers(record.get("config") or {}))


def _is_tuning(record: Mapping[str, Any]) -> bool:
    return int(record["init_seed"]) >= FIRST_TUNING_SEED


def _by_seed(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(records, key=lambda r: (int(r["init_seed"]), int(r["data_seed"])))


def _inside(printed: Printed | None, new: Interval | None) -> bool | None:
    if printed is None or new is None or new.low is None or new.high is None:
        return None
    if not math.isfinite(printed.value):
        return None
    return new.low - printed.half_unit <= printed.value <= new.high + printed.half_unit


def _flat(run: RunConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping) and value:
            for key, part in value.items():
                walk(part, f"{name}.{key}" if name else str(key))
        else:
            found[name] = tuple(value) if isinstance(value, list) else value

    walk(as_plain(run), "")
    return found


def _numbers(value: Any) -> Any:
    """Return a record's configuration with the words for infinity as numbers."""
    if isinstance(value, Mapping):
        return {key: _numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return float(value.replace(".inf", "inf")) if value in (".inf", "-.inf") else value
