"""How the runs were made, what told the methods apart, and which runs failed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elbowroom.report.markup import Markup, element, join
from elbowroom.report.numbers import short
from elbowroom.report.records import Comparison, Run, number
from elbowroom.report.tables import Cell, Column, Table

SEEDS = ("name", "init_seed", "data_seed")


def configuration_table(comparison: Comparison) -> Table:
    """Return the settings in which methods differ, and nothing else.

    Example:
        >>> from elbowroom.report.records import comparison
        >>> common = {"init_seed": 0, "data_seed": 0, "status": "done"}
        >>> runs = comparison([
        ...     {"name": "ce-tied", "config": {"tied": True, "lr": 0.001}, **common},
        ...     {"name": "ce-untied", "config": {"tied": False, "lr": 0.001}, **common},
        ... ])
        >>> configuration_table(runs).text()
        [['setting', 'ce-tied', 'ce-untied'], ['tied', 'yes', 'no']]
    """
    settings: dict[str, dict[str, dict[str, None]]] = {}
    for run in comparison.runs:
        for key, value in _flat(run.record.get("config")):
            if key.rpartition(".")[2] not in SEEDS:
                settings.setdefault(key, {}).setdefault(run.name, {})[value] = None
    rows: list[list[Cell]] = []
    for key, by_method in sorted(settings.items()):
        said = [" | ".join(by_method.get(method, ())) for method in comparison.methods]
        if len(set(said)) > 1:
            rows.append([key, *(text or None for text in said)])
    columns = [Column(label="setting", text=True)]
    columns += [Column(label=method, text=True) for method in comparison.methods]
    return Table(title="What told the methods apart", columns=columns, rows=rows)


def origin_section(comparison: Comparison, command: str | None) -> Markup:
    """Return how the runs were made: command, seeds, commit, versions, hardware, time."""
    facts = [("command", [command] if command else _all(comparison, "command"))]
    facts.append(("seeds", _seeds(comparison)))
    facts += [(name, _all(comparison, name)) for name in ("commit", "versions", "hardware", "time")]
    facts.append(("training", _cost(comparison)))
    items = []
    for name, values in facts:
        if values:
            said = [element("dd", element("bdi", value)) for value in values]
            items.append(join(element("dt", name), *said))
    table = configuration_table(comparison)
    differences = table.html() if table.rows else None
    return join(element("dl", *items), differences)


def failure_section(comparison: Comparison) -> Markup:
    """Return the runs that did not end as they should, and what they said."""
    if not comparison.failures:
        return element("p", f"None: all {len(comparison.runs)} runs finished.")
    columns = [
        Column(label="method", text=True),
        Column(label="seeds", text=True),
        Column(label="status", text=True),
        Column(label="last step"),
        Column(label="what it said", text=True),
    ]
    rows = [
        [run.name, run.seed_label, run.status, _last_step(run), _reason(run)]
        for run in comparison.failures
    ]
    of = len(comparison.runs)
    title = f"{len(rows)} of {of} runs did not finish; they count in no mean and no difference"
    return Table(title=title, columns=columns, rows=rows).html()


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield dotted names and values as text."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(part, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, _plain(value)


def _plain(value: Any) -> str:
    """Return a value of a configuration or of a provenance as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return short(value) if number(value) is not None else str(value)
    if value is None or isinstance(value, str | int):
        return "none" if value is None else str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _all(comparison: Comparison, key: str) -> list[str]:
    """Return what the runs' provenance says, each thing once; of many times the ends."""
    found: dict[str, None] = {}
    for run in comparison.runs:
        origin = run.record.get("provenance")
        value = origin.get(key) if isinstance(origin, Mapping) else None
        if value not in (None, "", {}, []):
            found[_words(value)] = None
    listed = sorted(found) if key == "time" else list(found)
    return [f"{listed[0]} to {listed[-1]}"] if key == "time" and len(listed) > 1 else listed


def _words(value: Any) -> str:
    if isinstance(value, Mapping) and "id" in value:
        return f"{value['id']}{' with changes' if value.get('modified') else ''}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items() if v not in (None, "", []))
    if isinstance(value, list | tuple):
        return " and ".join(map(_words, value))
    return _plain(value)


def _seeds(comparison: Comparison) -> list[str]:
    by_seeds: dict[str, list[str]] = {}
    for method in comparison.methods:
        labels = [run.seed_label for run in sorted(comparison.of(method), key=lambda r: r.seeds)]
        by_seeds.setdefault(", ".join(labels), []).append(method)
    if len(by_seeds) == 1:
        return [f"{next(iter(by_seeds))}, the same for every method"]
    return [f"{' and '.join(methods)}: {seeds}" for seeds, methods in by_seeds.items()]


def _cost(comparison: Comparison) -> list[str]:
    said = []
    for method in comparison.methods:
        runs = [run for run in comparison.of(method) if run.done]
        parts = []
        for key, unit in (
            ("steps", "steps"),
            ("wall_seconds", "s"),
            ("tokens_per_second", "tokens/s"),
        ):
            known = [v for run in runs if (v := number(run.record.get(key))) is not None]
            parts += [f"{_range(known)} {unit}"] if known else []
        said += [f"{method}: {', '.join(parts)}"] if parts else []
    return said


def _range(values: Sequence[float]) -> str:
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low} to {high}"


def _last_step(run: Run) -> int | None:
    """Return the last step that it wrote down; else how many its record counts."""
    steps = [step for line in run.metrics if (step := number(line.get("step"))) is not None]
    last = max(steps, default=number(run.record.get("steps")))
    return None if last is None else int(last)


def _reason(run: Run) -> str | None:
    for key in ("reason", "error", "message"):
        if run.record.get(key):
            return str(run.record[key])
    return None
