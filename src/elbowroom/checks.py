"""Checks of what users pass in: each raises an error that names the argument and the remedy.

Checks of shapes and dtypes cost nothing. Checks of values in a tensor run at once on a CPU; on
other devices they are asynchronous assertions, so that nothing synchronises and a CUDA graph can
be captured; while ``torch.compile`` traces they are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from elbowroom.errors import ArgumentTypeError, ArgumentValueError


def describe(value: object) -> str:
    """Return a short description of a value for an error message."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)} on {value.device}"
    if isinstance(value, (bool, int, float, str, type(None), tuple, list)):
        return repr(value)
    return f"an object of type {type(value).__name__}"


def is_tensor(name: str, value: object, fix: str = "") -> Tensor:
    """Return ``value`` if it is a tensor."""
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(name, "a tensor", describe(value), fix)
    return value


def is_floating(name: str, value: object, fix: str = "") -> Tensor:
    """Return ``value`` if it is a floating-point tensor."""
    tensor = is_tensor(name, value, fix)
    if not tensor.is_floating_point():
        fix = fix or "convert it with .float()"
        raise ArgumentTypeError(name, "a floating-point tensor", describe(tensor), fix)
    return tensor


def is_integer(name: str, value: object, fix: str = "") -> Tensor:
    """Return ``value`` if it is a tensor of integers (not booleans)."""
    tensor = is_tensor(name, value, fix)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        fix = fix or "convert it with .long()"
        raise ArgumentTypeError(name, "a tensor of integers", describe(tensor), fix)
    return tensor


def has_shape(name: str, value: Tensor, shape: Sequence[int], meaning: str, fix: str = "") -> None:
    """Raise unless ``value`` has exactly this shape; ``meaning`` says what the shape stands for."""
    if tuple(value.shape) != tuple(shape):
        raise ArgumentValueError(
            name, f"shape {tuple(shape)} ({meaning})", f"shape {tuple(value.shape)}", fix
        )


def same_device(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Raise unless both tensors are on one device."""
    if value.device != other.device:
        raise ArgumentValueError(
            name,
            f"a tensor on {other.device}, where {other_name} is",
            f"one on {value.device}",
            f"move it with .to({other_name}.device)",
        )


def same_dtype(name: str, value: Tensor, other_name: str, other: Tensor) -> None:
    """Raise unless both tensors have one dtype."""
    if value.dtype != other.dtype:
        raise ArgumentTypeError(
            name,
            f"{other.dtype}, the dtype of {other_name}",
            value.dtype,
            f"convert it with .to({other_name}.dtype), or run under torch.autocast",
        )


def number(
    name: str,
    value: object,
    *,
    at_least: float = -math.inf,
    above: float | None = None,
    at_most: float = math.inf,
    below: float | None = None,
    finite: bool = True,
    fix: str = "",
) -> float:
    """Return ``value`` as a float if it is a real number within the bounds, and not NaN."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(name, "a number", describe(value), fix)
    x = float(value)
    inside = (  # NaN fails every comparison
        at_least <= x <= at_most
        and (above is None or x > above)
        and (below is None or x < below)
        and not (finite and math.isinf(x))
    )
    if not inside:
        words = ["a finite number" if finite else "a number"]
        words += [f"at least {at_least:g}"] if at_least > -math.inf else []
        words += [f"above {above:g}"] if above is not None else []
        words += [f"at most {at_most:g}"] if at_most < math.inf else []
        words += [f"below {below:g}"] if below is not None else []
        raise ArgumentValueError(name, ", ".join(words), x, fix)
    return x


def integer(name: str, value: object, *, at_least: int | None = None, fix: str = "") -> int:
    """Return ``value`` if it is an integer (not a boolean) that is large enough."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(name, "an integer", describe(value), fix)
    if at_least is not None and value < at_least:
        raise ArgumentValueError(name, f"an integer, at least {at_least}", value, fix)
    return value


def flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(name, "True or False", describe(value))
    return value


def choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of the choices."""
    if value not in choices:
        raise ArgumentValueError(name, " or ".join(map(repr, choices)), describe(value))
    return str(value)


def all_true(condition: Tensor, name: str, expected: str, got: object, fix: str = "") -> None:
    """Raise unless every element of a boolean tensor is true (see the module's text)."""
    if torch.compiler.is_compiling() or condition.is_meta:
        return
    error = ArgumentValueError(name, expected, got, fix)
    if condition.device.type == "cpu":
        if not bool(condition.all()):
            raise error
    else:
        torch._assert_async(condition.all(), str(error))
