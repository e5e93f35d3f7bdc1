"""The numbers of a group of parameters, one for all or one a run: checked, brought to shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

Number: TypeAlias = float | Tensor


def check_group(group: Mapping[str, Any]) -> None:
    """Raise unless the numbers and switches of a group of parameters make sense."""
    for name in ("lr", "weight_decay"):
        _check_rate(name, group[name])
    betas = group["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ArgumentTypeError("betas", "a pair of numbers", checks.describe(betas))
    for i, beta in enumerate(betas):
        checks.number(f"betas[{i}]", beta, at_least=0.0, below=1.0)
    checks.number("eps", group["eps"], at_least=0.0)
    for name in ("maximize", "capturable"):
        if not isinstance(group[name], bool):
            raise ArgumentTypeError(name, "True or False", checks.describe(group[name]))
    for name in ("foreach", "fused"):
        if group[name] not in (None, True, False):
            raise ArgumentTypeError(name, "True, False or None", checks.describe(group[name]))
    if group["foreach"] and group["fused"]:
        raise ArgumentValueError("fused", "not True where foreach is True", "both", "choose one")
    if group["foreach"] and isinstance(group["lr"], Tensor) and group["lr"].numel() == 1:
        needs_capturable = "a number where foreach is True and capturable is False"
        if not group["capturable"]:
            raise ArgumentValueError("lr", needs_capturable, checks.describe(group["lr"]))
    if group.get("amsgrad") or group.get("differentiable"):
        expected = "False for amsgrad and for differentiable, which only torch's AdamW has"
        raise ArgumentValueError("params", expected, "True")


def _check_rate(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        checks.number(name, value, at_least=0.0)
        return
    checks.is_floating(name, value)
    if value.ndim > 1 or value.numel() == 0:
        expected = "a number, a tensor of one, or a tensor [R] with a number a run"
        raise ArgumentValueError(name, expected, f"shape {tuple(value.shape)}")
    checks.all_true(value >= 0, name, "numbers that are at least 0", "one that is not")


def check_runs(group: Mapping[str, Any]) -> None:
    """Raise unless each parameter has the run dimension that a group's numbers ask for."""
    for name in ("lr", "weight_decay"):
        value = group[name]
        if not isinstance(value, Tensor) or value.numel() == 1:
            continue
        for param in group["params"]:
            if param.ndim == 0 or param.shape[0] != value.numel():
                raise ArgumentValueError(
                    name,
                    f"a number a run, for parameters of shape [{value.numel()}, ...]",
                    f"a parameter of shape {tuple(param.shape)}",
                    "put parameters without a run dimension into a group of their own",
                )


def is_per_run(group: Mapping[str, Any]) -> bool:
    """Return whether torch's own AdamW could not take these numbers."""
    lr = group["lr"]
    return isinstance(group["weight_decay"], Tensor) or (isinstance(lr, Tensor) and lr.numel() > 1)


def spread(value: Number, param: Tensor, ndim: int, dtype: torch.dtype) -> Number:
    """Return a number as it is, and numbers ``[R]`` as ``[R, 1, ...]`` with ``ndim`` dimensions.

    A tensor of one on the CPU becomes a float: reading it there waits for nothing.
    """
    if not isinstance(value, Tensor):
        return float(value)
    if value.numel() == 1:
        if value.device.type == "cpu" and not torch.compiler.is_compiling():
            return float(value)
        return value.detach().reshape(()).to(device=param.device, dtype=dtype)
    value = value.detach().to(device=param.device, dtype=dtype)
    return value.view(-1, *[1] * (ndim - 1))
