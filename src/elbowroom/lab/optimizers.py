"""The optimizer of a population and its learning rates, from the configurations of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elbowroom.lab.config import OptimizerConfig, RunConfig
from elbowroom.lab.schedule import Schedule
from elbowroom.optim import RowAdamW
from elbowroom.rivals import CoupledAdamW

PER_RUN = ("lr", "min_lr")  # numbers that may differ within a population


def schedule_of(runs: Sequence[RunConfig], device: torch.device) -> Schedule:
    """Return the learning rates of runs that may differ in `PER_RUN` only.

    Args:
        runs: of one population.
        device: where the rates will be needed.
    """
    config, steps = runs[0].optimizer, runs[0].training.steps
    rates: dict[str, Any] = {}
    for name in PER_RUN:
        values = [getattr(run.optimizer, name) for run in runs]
        one = len(set(values)) == 1
        rates[name] = values[0] if one else torch.tensor(values, device=device)
    if config.schedule == "constant":
        rates["min_lr"] = 0.0
    return Schedule(
        kind=config.schedule,
        warmup=min(config.warmup, steps),
        steps=steps,
        decay=config.decay,
        **rates,
    )


def optimizer_of(
    config: OptimizerConfig,
    groups: list[dict[str, Any]],
    rows: Sequence[Tensor],
    device: torch.device,
) -> RowAdamW | CoupledAdamW:
    """Return the optimizer that a configuration asks for.

    Args:
        config: of any run of a population.
        groups: of parameters, with their weight decay.
        rows: the matrices with a row a token, among the parameters.
        device: where these are.
    """
    options: dict[str, Any] = {
        "lr": config.lr,
        "betas": config.betas,
        "eps": config.eps,
        "fused": True,
        "capturable": device.type == "cuda",
    }
    if config.name == "coupled_adamw":
        return CoupledAdamW(groups, coupled=rows, **options)
    named = rows if config.name == "row_adamw" else ()
    return RowAdamW(groups, rows=named, catch_up=config.catch_up, **options)
