"""A made-up comparison: three methods, four seeds, two languages, one run that failed.

``python -m tests.report.example out.html`` writes its report, to be looked at.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from elbowroom.report import HeadMatrix, compare_report

METHODS = ("ce-tied", "ce-untied", "ours")
LANGUAGES = ("hr", "lr")
LEVELS = {  # nll at the end and its spread
    ("ce-tied", "hr"): (1.604, 0.004),
    ("ce-tied", "lr"): (2.36, 0.03),
    ("ce-untied", "hr"): (1.592, 0.004),
    ("ce-untied", "lr"): (2.16, 0.006),
    ("ours", "hr"): (1.583, 0.004),
    ("ours", "lr"): (2.13, 0.09),
}
BEST = {"ce-tied": 1.06, "ce-untied": 1.05, "ours": 0.97}
TEMPERATURES = [round(0.02 * i, 2) for i in range(1, 101)]
STEPS, EVERY = 8000, 250
HEADING = "\u05e9\u05dc\u05d5\u05dd"  # right to left


def record(method: str, seed: int) -> dict[str, Any]:
    """One run's record, as the lab writes it."""
    random = np.random.default_rng([seed, METHODS.index(method)])
    shared = np.random.default_rng(seed).normal()
    return {
        "name": method,
        "init_seed": seed,
        "data_seed": seed,
        "status": "done",
        "steps": STEPS,
        "config": {
            "name": method,
            "init_seed": seed,
            "model": {"tied": method != "ce-untied", "layers": 4, "d": 128},
            "loss": {"kind": "margin", "start": 1.0, "end": 16.0} if method == "ours" else {},
            "optim": {"lr": 1e-3},
        },
        "languages": {lang: scores(method, lang, shared, random) for lang in LANGUAGES},
        "temperatures": TEMPERATURES,
        "translation": float(random.uniform(0.05, 0.2)),
        "kept": 0.49 if method == "ours" else 1.0,
        "wall_seconds": float(random.uniform(100, 110)),
        "tokens_per_second": 1e6,
        "provenance": {
            "command": "elbowroom compare --seeds 4",
            "time": f"2026-01-0{seed + 1}T10:00:00+00:00",
            "commit": {"id": "0123abc", "modified": False},
            "versions": {"elbowroom": "0.1.0", "torch": "2.13.0", "python": "3.11"},
            "hardware": {"cpu": "a processor", "cores": 2, "gpus": []},
        },
    }


def scores(method: str, language: str, shared: float, random: Any) -> dict[str, Any]:
    """One language's scores."""
    level, spread = LEVELS[method, language]
    nll = level + spread * (0.8 * shared + 0.6 * random.normal())
    best = BEST[method]
    sweep = [nll + 0.35 * (math.log(t / best) ** 2 - math.log(best) ** 2) for t in TEMPERATURES]
    accuracy = 0.9 - 0.24 * nll
    return {
        "tokens": 111360,
        "nll": nll,
        "ppl": math.exp(nll),
        "best_ppl": math.exp(min(sweep)),
        "best_temperature": best,
        "fitted_ppl": math.exp(min(sweep) + 0.001),
        "fitted_temperature": best,
        "accuracy": accuracy,
        "recall@5": accuracy + 0.3,
        "mrr": accuracy + 0.13,
        "bits_per_byte": nll / math.log(2),
        "calibration_error": abs(0.01 + 0.003 * random.normal()),
        "isotropy_signfree": 0.8,
        "bins": [
            {"nll": nll + 0.6 * (3 - b) + 0.02 * random.normal(), "tokens": 10**b} for b in range(5)
        ],
        "nll_by_temperature": sweep,
    }


def metrics(run: dict[str, Any], last: int = STEPS) -> list[dict[str, Any]]:
    """One run's lines, as the trainer writes them."""
    random = np.random.default_rng(run["init_seed"])
    lines: list[dict[str, Any]] = []
    for step in range(0, last + 1, 50):
        progress = step / STEPS
        fall = {lang: 2.6 * math.exp(-9 * progress) for lang in LANGUAGES}
        line: dict[str, Any] = {"step": step, "lr": 1e-3, "seconds": step / 80}
        for lang in LANGUAGES:
            level = LEVELS[run["name"], lang][0]
            line[f"loss/{lang}"] = level + fall[lang] + 0.05 * random.normal()
        noise = 0.01 * random.normal()
        line["kept"] = 0.1 + 0.85 * progress**1.5 + noise if run["name"] == "ours" else 1.0
        lines.append(line)
        if step % EVERY == 0:
            found = run["languages"] or record(run["name"], run["init_seed"])["languages"]
            nll = {lang: found[lang]["nll"] + fall[lang] for lang in LANGUAGES}
            lines.append({"step": step, "eval": {k: {"nll": v} for k, v in nll.items()}})
    return lines


def runs(seeds: int = 4) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """All records and their lines; the last run of the second method failed."""
    records = [record(method, seed) for method in METHODS for seed in range(seeds)]
    failed = next(r for r in records if r["name"] == "ce-untied" and r["init_seed"] == seeds - 1)
    failed |= {"status": "nan", "languages": {}, "reason": "the loss was <NaN> at step 3100"}
    return records, [metrics(r, STEPS if r["status"] == "done" else 3100) for r in records]


def head(name: str = "ours, seed 0") -> HeadMatrix:
    """A head in which the second language's letters lie near the first's."""
    random = np.random.default_rng(0)
    letters = [*"abcdefghijklmnopqrstuvwxyz<&\"'", "\n", " ", "\x00", HEADING]
    first = random.normal(size=(len(letters), 16))
    second = first + 0.5 + 0.4 * random.normal(size=first.shape)
    n = len(letters)
    return HeadMatrix(
        name=name,
        weight=np.concatenate([first, second]),
        tokens=letters * 2,
        languages=["hr"] * n + ["lr"] * n,
        pairs=[(i, i + n) for i in range(n)],
    )


def write(out: Path) -> Path:
    """Write the example's report."""
    records, lines = runs()
    heads = [head(), head("ce-tied, seed 0")]
    return compare_report(records, lines, heads, out, references=("ce-tied", "ce-untied"))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
