"""What a run's metrics say over its training, as short series, and who discovered the letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from elbowroom.study.paper.results import Study
from elbowroom.study.statistics import Interval, wilson_interval

Series: TypeAlias = dict[str, list[Any]]
DIGITS = 4
SHARED = 1 / 3  # of the rows find their translation: the run has discovered the shared letters
GOOD_PPL = 7.5  # the best perplexity of the rare language below which the paper's runs had


def curves_of(
    metrics: Sequence[Mapping[str, Any]], record: Mapping[str, Any]
) -> dict[str, Series] | None:
    """Return the share of entries kept and the translation score over training.

    A series has ``steps`` and ``values``; one that was not measured while training is left out.
    The evaluation at the end is the last of the translation scores.

    Args:
        metrics: the lines of a run's ``metrics.jsonl``.
        record: of the run.

    Example:
        >>> lines = [{"step": 5, "kept": 0.25}, {"step": 5, "eval": {"lr": {"translation": 0.5}}}]
        >>> curves_of(lines, {"steps": 9, "translation": 0.75})["translation"]
        {'steps': [5, 9], 'values': [0.5, 0.75]}
    """
    kept = [(line["step"], line["kept"]) for line in metrics if line.get("kept") is not None]
    found = [
        (line["step"], scores["translation"])
        for line in metrics
        for scores in line.get("eval", {}).values()
        if scores.get("translation") is not None
    ]
    if found and record.get("translation") is not None:
        found.append((record["steps"], record["translation"]))
    both = {"kept": _series(kept), "translation": _series(found)}
    return {name: series for name, series in both.items() if series["steps"]} or None


def curves(study: Study, method: str, name: str) -> dict[int, Series]:
    """Return one series of each finished run of a method that has it, by seed.

    Args:
        study: our runs; their records hold "curves".
        method: whose.
        name: "kept" or "translation".
    """
    listed = ((int(r["init_seed"]), r.get("curves") or {}) for r in study.of(method))
    return {seed: found[name] for seed, found in listed if name in found}


def discoverers(study: Study, method: str) -> dict[int, bool]:
    """Return of each run of a method that has a translation score whether it found the letters.

    That is, at least `SHARED` of the rare rows find their translation at the end.

    Args:
        study: our runs.
        method: whose.
    """
    scores = {int(r["init_seed"]): r.get("translation") for r in study.of(method)}
    return {seed: score >= SHARED for seed, score in scores.items() if score is not None}


def discovered(study: Study, method: str) -> Interval | None:
    """Return the share of a method's runs that discovered the shared letters, by Wilson's interval.

    None where no run has a score.

    Args:
        study: our runs.
        method: whose.
    """
    found = discoverers(study, method)
    return wilson_interval(sum(found.values()), len(found)) if found else None


def _series(points: Sequence[tuple[int, float]]) -> Series:
    values = [float(f"{value:.{DIGITS}g}") for _, value in points]
    return {"steps": [step for step, _ in points], "values": values}
