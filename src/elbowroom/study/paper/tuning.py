"""Each family's setting, chosen by runs that are not reported: the same budget and rule for all.

The rule, fixed before any run: the lowest mean, over the tuning's seeds and both languages, of the
logarithm of perplexity at a temperature fitted on other text. The tuning's seeds are none of those
that are reported. Of equal settings the earlier one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from elbowroom.lab.config import RunConfig
from elbowroom.study.paper.families import FAMILIES
from elbowroom.study.paper.layout import Part, Row
from elbowroom.study.paper.results import Study
from elbowroom.study.paper.rows import FIRST_TUNING_SEED, runs_of
from elbowroom.study.paper.settings import Family, Setting

LANGUAGES = ("hr", "lr")
SCORE = "fitted_ppl"
SEEDS, QUICK_SEEDS = 2, 1
QUICK_SETTINGS = 2


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting and what the tuning found of it."""

    setting: Setting
    scores: Mapping[int, float]
    """Of each of the tuning's seeds: the rule's mean over languages; infinite where a run failed
    or has no finite perplexity."""

    @property
    def mean(self) -> float | None:
        """What is compared; None where no run was made."""
        listed = list(self.scores.values())
        return sum(listed) / len(listed) if listed else None


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A family, what was tried of it, and what that chose."""

    family: Family
    trials: tuple[Trial, ...]
    """One a setting, in the family's order."""
    chosen: Setting | None
    """None where the family has not had the budget that others had, or no setting trained."""


def tuning_runs(
    parts: Iterable[Part], base: Mapping[str, Any] | None = None, *, quick: bool = False
) -> list[RunConfig]:
    """Return the runs by which the families of some parts are tuned; none without families.

    Args:
        parts: what a report shows.
        base: see `elbowroom.study.paper.base_of`.
        quick: half of the settings, and one seed.

    Example:
        >>> from elbowroom.study.paper import parts_of
        >>> runs = tuning_runs(parts_of(["table-rivals"]))
        >>> runs[0].folder, runs[-1].folder
        ('ce-tied-i1000-d1000', 'sampling-unimax-i1001-d1001')
    """
    most = QUICK_SETTINGS if quick else None
    names = dict.fromkeys(
        setting.method
        for part in parts
        for family in part.families
        for setting in FAMILIES[family].settings[:most]
    )
    count = QUICK_SEEDS if quick else SEEDS
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + count)
    return runs_of(names, seeds, base)


def tunings(study: Study, families: Iterable[str] = tuple(FAMILIES)) -> dict[str, Tuning]:
    """Return what was tried of each family and what that chose, by the records alone.

    The budget is the most that a family had: as many settings, and these seeds of each. A family
    that has not had all of it chooses nothing.

    Args:
        study: with the tuning's runs.
        families: their names.
    """
    tried = {name: _trials(study, FAMILIES[name]) for name in families}
    seeds = {seed for trials in tried.values() for trial in trials for seed in trial.scores}
    most = max((len(_made(trials)) for trials in tried.values()), default=0)
    found = {}
    for name, trials in tried.items():
        made = _made(trials)
        whole = len(made) == most and all(trial.scores.keys() == seeds for trial in made)
        best = min(made, key=_mean) if made and whole else None
        chosen = best.setting if best is not None and math.isfinite(_mean(best)) else None
        found[name] = Tuning(family=FAMILIES[name], trials=trials, chosen=chosen)
    return found


def settled(parts: Iterable[Part], study: Study) -> tuple[Part, ...]:
    """Return parts whose families have become rows: of each the setting that was chosen.

    Args:
        parts: what a report shows.
        study: with the tuning's runs; families that are not tuned have no row.
    """
    listed = list(parts)
    found = tunings(study, dict.fromkeys(name for part in listed for name in part.families))
    return tuple(
        replace(part, rows=tuple(_row(found[name]) for name in part.families if found[name].chosen))
        if part.families
        else part
        for part in listed
    )


def _row(tuning: Tuning) -> Row:
    assert tuning.chosen is not None
    label = f"{tuning.family.label}: {tuning.chosen.words}"
    return Row(label=label, method=tuning.chosen.method, printed=None, note=tuning.family.note)


def _trials(study: Study, family: Family) -> tuple[Trial, ...]:
    return tuple(
        Trial(
            setting=setting,
            scores={int(r["init_seed"]): _score(r) for r in study.tuning_of(setting.method)},
        )
        for setting in family.settings
    )


def _score(record: Mapping[str, Any]) -> float:
    """Return what a run is chosen by: the mean over languages of the logarithm of perplexity."""
    found = record.get("languages", {}) if record["status"] == "done" else {}
    values = [found.get(language, {}).get(SCORE) for language in LANGUAGES]
    known = [math.log(v) for v in values if isinstance(v, int | float) and 0 < v < math.inf]
    return sum(known) / len(known) if len(known) == len(LANGUAGES) else math.inf


def _made(trials: Iterable[Trial]) -> list[Trial]:
    """Return the settings that were tried."""
    return [trial for trial in trials if trial.scores]


def _mean(trial: Trial) -> float:
    return math.inf if trial.mean is None else trial.mean
