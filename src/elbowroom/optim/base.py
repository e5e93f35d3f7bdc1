"""AdamW in which parameters that the caller names follow a rule of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw
from torch.optim.optimizer import ParamsT, StateDict

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.optim import fused
from elbowroom.optim.numbers import Number, check_group, check_runs, is_per_run, spread
from elbowroom.optim.update import Coefficients, coefficients, update_param


class SelectiveAdamW(Optimizer):
    """AdamW; `_update` decides what happens to the parameters that were named.

    All other parameters go through torch's own functional AdamW, with its `foreach`, `fused` and
    `capturable`, so that their bits are those of `torch.optim.AdamW`. Where ``lr`` or
    ``weight_decay`` is a tensor ``[R]``, which torch does not take, they go through `_update_runs`.
    """

    selects: ClassVar[str]  # the constructor's argument that names parameters
    switches: ClassVar[tuple[str, ...]] = ()  # further options of a group, True or False

    def __init__(
        self, params: ParamsT, selected: Iterable[Tensor], defaults: dict[str, Any]
    ) -> None:
        self._selected: set[Tensor] = set()
        super().__init__(params, defaults)
        self._select(selected)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in PyTorch; it may name parameters under the constructor's keyword."""
        if not isinstance(param_group, dict):
            raise ArgumentTypeError("param_group", "a dict", checks.describe(param_group))
        group = {**self.defaults, **param_group}
        selected = group.pop(self.selects, ())
        self._check(group)
        super().add_param_group(group)
        try:
            check_runs(self.param_groups[-1])
            self._select(selected)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def _check(self, group: dict[str, Any]) -> None:
        check_group(group)
        for name in self.switches:
            if not isinstance(group[name], bool):
                raise ArgumentTypeError(name, "True or False", checks.describe(group[name]))

    def _select(self, selected: Iterable[Tensor]) -> None:
        fix = f"write {self.selects}=[model.lm_head.weight]"
        if isinstance(selected, Tensor) or not isinstance(selected, Iterable):
            expected = "an iterable of parameters"
            raise ArgumentTypeError(self.selects, expected, checks.describe(selected), fix)
        known = {param for group in self.param_groups for param in group["params"]}
        for param in selected:
            checks.is_floating(self.selects, param, fix)
            if param not in known:
                expected = "tensors that are among params themselves, not copies or views"
                raise ArgumentValueError(self.selects, expected, checks.describe(param), fix)
            if param.ndim < 2:
                expected = "parameters [..., V, D], with rows along the last dimension"
                raise ArgumentValueError(self.selects, expected, checks.describe(param))
            self._selected.add(param)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_selected": self._selected}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state of this class or of `torch.optim.AdamW`."""
        for group in state_dict["param_groups"]:
            if group.get("amsgrad"):
                raise ArgumentValueError("state_dict", "a state without amsgrad", "amsgrad=True")
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float | Tensor] | None = None
    ) -> float | Tensor | None:
        """Make one step; ``closure``, if given, evaluates the model again and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moving = [param for param in group["params"] if param.grad is not None]
            for param in moving:
                self._prepare(param, group)
            rest = [param for param in moving if param not in self._selected]
            (self._update_runs if is_per_run(group) else self._update_rest)(rest, group)
            for param in moving:
                if param in self._selected:
                    self._update(param, _grad(param), group, self.state[param])
        self._finish()
        return loss

    def _finish(self) -> None:
        """Forget what belonged to this step alone."""

    def _prepare(self, param: Tensor, group: dict[str, Any]) -> None:
        """Check a gradient, and start the state at a parameter's first."""
        if param.grad is not None and param.grad.layout != torch.strided:
            fix = "make the embedding with sparse=False"
            raise ArgumentTypeError("params", "dense gradients", str(param.grad.layout), fix)
        state = self.state[param]
        if state:
            return
        on_device = group["capturable"] or (group["fused"] and param not in self._selected)
        wide = torch.get_default_dtype() == torch.float64 and not group["fused"]
        state["step"] = torch.zeros(
            (),
            dtype=torch.float64 if wide else torch.float32,
            device=param.device if on_device else "cpu",
        )
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)

    def _update(
        self, param: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Tensor]
    ) -> None:
        """Make a step of one parameter that was named."""
        raise NotImplementedError

    def _update_rest(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Make a step of ordinary parameters: torch's own."""
        if not params:
            return
        first, second = ([self.state[p][x] for p in params] for x in ("exp_avg", "exp_avg_sq"))
        adamw(
            params,
            [_grad(param) for param in params],
            first,
            second,
            [],
            [self.state[param]["step"] for param in params],
            foreach=group["foreach"],
            fused=group["fused"],
            capturable=group["capturable"],
            has_complex=any(param.is_complex() for param in params),
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def _update_runs(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Make a step of ordinary parameters ``[R, ...]`` with numbers ``[R]``."""
        params = [param for param in params if not self._update_fused(param, group)]
        if not params:
            return
        b1, b2 = group["betas"]
        grads = [_grad(param) for param in params]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        first, second = ([self.state[p][x] for p in params] for x in ("exp_avg", "exp_avg_sq"))
        torch._foreach_lerp_(first, grads, 1 - b1)
        torch._foreach_mul_(second, b2)
        torch._foreach_addcmul_(second, grads, grads, 1 - b2)
        roots = torch._foreach_sqrt(second)
        for param, m, root in zip(params, first, roots, strict=True):
            update_param(param, m, root, self._coefficients(param, group))

    def _update_fused(self, param: Tensor, group: dict[str, Any]) -> bool:
        """Make a step of an ordinary parameter in one pass; return whether that was possible."""
        state, grad = self.state[param], _grad(param)
        moments = state["exp_avg"], state["exp_avg_sq"]
        if group["fused"] is False or group["foreach"] or not fused.takes(param, grad, *moments):
            return False
        fused.step_runs(
            param,
            grad,
            moments,
            advance(state["step"]),
            self._rates(param, group, 1),
            betas=tuple(group["betas"]),
            eps=group["eps"],
            maximize=group["maximize"],
        )
        return True

    def _coefficients(self, param: Tensor, group: dict[str, Any]) -> Coefficients:
        """Count a step of a whole parameter, and return its numbers."""
        step = advance(self.state[param]["step"])
        lr, weight_decay = self._rates(param, group, param.ndim)
        return coefficients(step, lr, 1 - lr * weight_decay, group["betas"], group["eps"])

    def _rates(self, param: Tensor, group: dict[str, Any], ndim: int) -> tuple[Number, Number]:
        dtype = torch.float64 if param.dtype == torch.float64 else torch.float32
        lr = spread(group["lr"], param, ndim, dtype)
        return lr, spread(group["weight_decay"], param, ndim, dtype)


def advance(step: Tensor) -> Number:
    """Count one step; return the count, as a float where reading it waits for nothing."""
    step += 1
    free = step.device.type == "cpu" and not torch.compiler.is_compiling()
    return float(step) if free else step


def _grad(param: Tensor) -> Tensor:
    if param.grad is None:  # an invariant: the caller filters
        raise RuntimeError("a parameter without a gradient cannot be updated")
    return param.grad
