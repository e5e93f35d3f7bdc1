"""Made-up records of the paper's runs, near what it prints."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from elbowroom.lab.config import as_plain
from elbowroom.study.paper import PRINTED, SCORES, config_of

TEMPERATURES = [0.5, 1.0, 1.5]


def record(
    method: str, seed: int = 0, base: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Return a record whose scores spread by 1% around the printed ones."""
    draw = random.Random(f"{method} {seed}")
    languages = {}
    for language in ("hr", "lr"):
        printed = PRINTED.get(method, PRINTED["margin-1"]).get(language, {})
        scores = {score: printed[score].value for score in SCORES if score in printed}
        spread = {s: value * (1 + 0.01 * draw.uniform(-1, 1)) for s, value in scores.items()}
        finite = {s: value for s, value in spread.items() if value < float("inf")}
        best = {k.replace("fitted", "best"): x for k, x in finite.items() if "fitted" in k}
        languages[language] = {**finite, **best, "nll_by_temperature": [2.1, 2.0, 2.2]}
    return {
        "name": method,
        "init_seed": seed,
        "data_seed": seed,
        "status": "done",
        "config": as_plain(config_of(method, base, seed)),
        "languages": languages,
        "temperatures": TEMPERATURES,
        **more,
    }


def records(methods: tuple[str, ...], seeds: int = 3) -> list[dict[str, Any]]:
    """Return records of some methods with the first seeds."""
    return [record(method, seed) for method in methods for seed in range(seeds)]
