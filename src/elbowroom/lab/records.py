"""What the record of a finished run says of it besides its evaluation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from elbowroom.lab.config import as_plain
from elbowroom.lab.folder import End

if TYPE_CHECKING:
    from elbowroom.lab.population import Population


def record_of(population: Population, r: int, end: End, processes: int) -> dict[str, Any]:
    """Return who a run is, how it ended and how long it took, as plain data.

    Args:
        population: at the end of training.
        r: which run.
        end: how its training ended.
        processes: how many trained it.
    """
    run, died = population.runs[r], end.died_at
    record = {
        "name": run.name,
        "init_seed": run.init_seed,
        "data_seed": run.data_seed,
        "status": "done" if died < 0 else "failed",
        "steps": end.done if died < 0 else died,
        "parameters": population.model.size,
        "runs_in_population": len(population.runs),
        "processes": processes,
        "wall_seconds": round(end.seconds, 2),
        "config": finite(as_plain(run)),
        "corpus": population.corpus.fingerprint,
    }
    if died >= 0:
        record["reason"] = f"the loss or its gradient was not finite at step {died}"
    if run.training.keep.which == "best":
        made = end.best_step if end.best_step >= 0 else record["steps"]
        record["chosen"] = {"step": made, "loss": end.best_loss}
    if end.kept:
        record["kept"] = sum(end.kept) / len(end.kept)
    if end.seconds > 0:
        tokens = record["steps"] * run.training.batch * run.model.context
        record["tokens_per_second"] = round(tokens / end.seconds, 1)
    return record


def finite(value: Any) -> Any:
    """Return plain data with infinite numbers as the words that YAML has for them.

    Example:
        >>> finite({"start": float("inf"), "shares": [0.5]})
        {'start': '.inf', 'shares': [0.5]}
    """
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".inf" if value > 0 else "-.inf"
    return value
