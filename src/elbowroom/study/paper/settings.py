"""Families of settings: a method, and the few choices of its hyperparameters that are tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

RATES = (1.0, 0.5, 2.0, 4.0)  # times the base's learning rate
RATE = "it has nothing of its own to tune, so its learning rate was"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One choice of a family's hyperparameters."""

    method: str
    """The name of its runs."""
    words: str
    """What tells it from the family's others."""
    change: Mapping[str, Any] | None = None
    """What tells it from the base; None for a method that the paper's tables have."""
    rate: float = 1.0
    """Times the base's learning rate."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A method, and the settings of it that are tried."""

    name: str
    """Such as "focal"."""
    label: str
    """What a table says."""
    settings: tuple[Setting, ...]
    """What its publication uses, or this library, is the first."""
    note: str = ""
    """What to know of it."""


def said(value: object) -> str:
    """Return a value as names have it.

    Example:
        >>> said(0.5), said(2.0), said("frequency"), said(False)
        ('.5', '2', 'frequency', 'no')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return text.replace("0.", ".", 1) if text.startswith("0.") else text


def known(method: str, words: str) -> Setting:
    """Return a method that the paper's tables have as a setting.

    Args:
        method: its name.
        words: what tells it from the family's others.
    """
    return Setting(method=method, words=words)


def by_rate(name: str, change: Mapping[str, Any], *, is_known: bool = False) -> tuple[Setting, ...]:
    """Return one method at several learning rates; the first has the method's own name.

    Args:
        name: of the method.
        change: what tells it from the base.
        is_known: whether the paper's tables have it.

    Example:
        >>> [setting.method for setting in by_rate("entmax15", {})]
        ['entmax15', 'entmax15-rate.5', 'entmax15-rate2', 'entmax15-rate4']
    """
    return tuple(
        Setting(
            method=name if rate == 1.0 else f"{name}-rate{said(rate)}",
            words=f"learning rate × {said(rate)}",
            change=None if is_known and rate == 1.0 else change,
            rate=rate,
        )
        for rate in RATES
    )


def by_options(
    name: str, loss: str, grid: Iterable[Mapping[str, Any]], **more: Any
) -> tuple[Setting, ...]:
    """Return a rival's loss with several choices of its own parameters.

    Args:
        name: the beginning of the methods' names.
        loss: its name in the lab.
        grid: the choices.
        **more: of the loss, the same for all.

    Example:
        >>> found = by_options("focal", "focal", [{"gamma": 2.0}, {"gamma": 0.5}])
        >>> [(setting.method, setting.words) for setting in found]
        [('focal-2', 'gamma 2'), ('focal-.5', 'gamma .5')]
    """
    found = []
    for options in grid:
        shown = {key.replace("_", " "): said(value) for key, value in options.items()}
        setting = Setting(
            method="-".join((name, *shown.values())),
            words=", ".join(f"{key} {value}" for key, value in shown.items()),
            change={"loss": {"name": loss, "options": dict(options), **more}},
        )
        found.append(setting)
    return tuple(found)


def by_weight(name: str, penalty: str, weights: Iterable[float]) -> tuple[Setting, ...]:
    """Return cross-entropy with a penalty on the head of several weights.

    Args:
        name: the beginning of the methods' names.
        penalty: its name in the lab.
        weights: the choices.
    """
    return tuple(
        Setting(
            method=f"{name}-{said(weight)}",
            words=f"weight {said(weight)}",
            change={"loss": {"penalty": penalty, "penalty_weight": weight}},
        )
        for weight in weights
    )
