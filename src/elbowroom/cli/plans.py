"""Configurations on the command line: flags over a file; runs as a file; values as flags."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elbowroom.cli.main import UsageError, read
from elbowroom.lab.config import RunConfig, as_plain, merge
from elbowroom.lab.strict import write_yaml

PLAN = ("base", "runs", "seeds")


def with_fields(values: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with flags over it; in a plan they go over every run.

    Args:
        values: of the file; more than one run, or more than one seed, makes it a plan.
        fields: of the command line.

    Example:
        >>> with_fields({"name": "ce"}, {"seeds": 2, "training": {"steps": 5}})
        {'base': {'name': 'ce'}, 'seeds': 2, 'runs': [{'training': {'steps': 5}}]}
    """
    for name in ("base", "runs"):
        if name in fields:
            raise UsageError(f"--{name}: fields of all runs are written --training.steps 100")
    if not {*PLAN} & (values.keys() | fields.keys()):
        return merge(values, fields)
    given: dict[str, Any] = dict(values) if {*PLAN} & values.keys() else {"base": dict(values)}
    if "seeds" in fields:
        given["seeds"] = fields["seeds"]
    change = {k: v for k, v in fields.items() if k != "seeds"}
    runs = given.get("runs") or [{}]
    if change and isinstance(runs, list):
        given["runs"] = [merge(x, change) if isinstance(x, Mapping) else x for x in runs]
    return given


def dumped(runs: Sequence[RunConfig]) -> str:
    """Return runs as a file to start from: the one, or a plan with what all have in common first.

    Args:
        runs: at least one.
    """
    plain = [as_plain(run) for run in runs]
    if len(runs) == 1:
        return write_yaml(plain[0])
    base = plain[0]
    for each in plain[1:]:
        base = _common(base, each)
    return write_yaml({"base": base, "runs": [_rest(each, base) for each in plain]})


def _common(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return what two configurations have in common, mapping by mapping."""
    found: dict[str, Any] = {}
    for name in a.keys() & b.keys():
        if isinstance(a[name], Mapping) and isinstance(b[name], Mapping):
            found[name] = _common(a[name], b[name])
        elif a[name] == b[name]:
            found[name] = a[name]
    return {name: found[name] for name in a if name in found}


def _rest(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `merge` has to put into a base to get some values."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in base:
            found[name] = value
        elif isinstance(value, Mapping) and (rest := _rest(value, base[name])):
            found[name] = rest
    return found


def repeat(command: str, *words: str | Mapping[str, Any]) -> str:
    """Return the command that repeats this, for records.

    Example:
        >>> repeat("train", "a.yaml", {"model": {"tied": False}, "loss": {"count_steps": None}})
        'elbowroom train a.yaml --model.tied=false --loss.count_steps=null'
    """
    said = ["elbowroom", command]
    for word in words:
        if isinstance(word, Mapping):
            said += [f"--{name}={_word(value)}" for name, value in _flat(word)]
        elif word:
            said.append(word)
    return shlex.join(said)


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def _word(value: Any) -> str:
    """Return a value as `elbowroom.cli.main.fields` reads it."""
    plain = isinstance(value, str) and read(value) == value
    return value if plain else json.dumps(value, ensure_ascii=False)
