"""RowAdamW: AdamW that leaves a row alone when it has no gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.optim import fused
from elbowroom.optim.base import SelectiveAdamW, advance
from elbowroom.optim.gather import Scratch
from elbowroom.optim.masked_step import step_masked
from elbowroom.optim.rows import Rule, matrices
from elbowroom.optim.touched_step import step_touched
from elbowroom.optim.update import forget


class RowAdamW(SelectiveAdamW):
    r"""AdamW; in chosen parameters, rows without a gradient stay exactly as they are.

    A row is a vector along a parameter's last dimension: a token's embedding. In the parameters
    that ``rows`` names, a row whose gradient is zero in every element is *not touched*: neither
    its moments, nor its weight decay, nor its own count of steps. For a row that is touched for
    the t-th time (t is the row's own count, ``row_step``)

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) g, \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \\
        p &\leftarrow (1 - \eta\lambda)\, p
          - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Paper, section "Separated embeddings", in what it means to do; what it does is
    `SeparatedEmbedding`, which equals AdamW.

    A thresholded loss gives a token's row no gradient where the token was neither a target nor
    above a threshold. AdamW would move it all the same, by momentum of old gradients and by weight
    decay. Counting steps per row matters too: a row touched for the first time at a late step
    would be moved 3.16 times the learning rate by the shared count (betas .9 and .999), and is
    moved by exactly the learning rate here.

    Args:
        params: as in PyTorch: parameters, named parameters or groups. A group may have its own
            numbers and name its own ``rows``.
        lr: learning rate: a number, a tensor of one, or a tensor ``[R]`` with a number a run, for
            parameters ``[R, ...]``.
        betas: decay of the two moments.
        eps: added to the denominator.
        weight_decay: decoupled weight decay; also a tensor ``[R]``.
        rows: parameters ``[..., V, D]`` of ``params`` to treat by rows, given as themselves.
            All others are `torch.optim.AdamW` to the bit.
        catch_up: when a row moves after having missed k steps, first give it what AdamW with a
            zero gradient would have: moments times :math:`\beta_1^k` and :math:`\beta_2^k`,
            weight decay with the learning rates that really passed, and k steps more in its count,
            which then is the parameter's. *Not* given is the drift along the decaying first moment,
            which has no closed form; with ``betas[0] = 0`` there is none, and the row is then where
            AdamW has it. See `settle`.
        maximize, foreach, fused, capturable: as in PyTorch. For ``rows``, ``fused=False`` keeps
            out loops that do all in one pass: on a CPU torch's fused kernel and this package's own,
            which needs a C compiler, and on CUDA this package's, which needs Triton. With
            ``capturable`` all state is on the device and any step may be captured.

    Differs from PyTorch: with every row touched it equals AdamW to rounding. There is no
    ``amsgrad`` and no ``differentiable``. Moments of parameters in float16 and bfloat16 are kept
    in that dtype, as in PyTorch, and computed in float32. A step on CUDA is one
    pass where Triton is installed, and waits for nothing.

    State of a parameter in ``rows``: AdamW's ``step``, ``exp_avg``, ``exp_avg_sq``; ``row_step``,
    float32 of shape ``param.shape[:-1]``, in place of which loading AdamW's state puts ``step``;
    with ``catch_up`` also ``row_decay``, float64, the weight decay that each row has missed.
    AdamW loads all this and needs the first three.

    Example:
        >>> embedding = torch.nn.Embedding(4, 2)
        >>> optimizer = RowAdamW(embedding.parameters(), lr=0.1, rows=[embedding.weight])
        >>> before = embedding.weight.detach().clone()
        >>> embedding(torch.tensor([1, 3])).sum().backward()
        >>> optimizer.step()
        >>> (embedding.weight != before).any(-1)
        tensor([False,  True, False,  True])
    """

    selects: ClassVar[str] = "rows"
    switches: ClassVar[tuple[str, ...]] = ("catch_up",)

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | Tensor = 1e-2,
        *,
        rows: Iterable[Tensor] = (),
        catch_up: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
    ) -> None:
        self._marks: dict[Tensor, Tensor] = {}
        self._scratch = Scratch()
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "catch_up": catch_up,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        super().__init__(params, rows, defaults)

    def touch(self, param: Tensor, rows: Bool[Tensor, "*shape"] | Int[Tensor, "*shape"]) -> None:
        """Say where to look for rows with a gradient, so that the next step need not search.

        Marks add up until `step` uses them: over several losses, over accumulated gradients, and
        over both ends of a tied matrix. They promise that all *other* rows have no gradient;
        marked rows that turn out to have none stay untouched, so that the result is the same as
        without marks. A parameter without marks is searched.

        Weights that are tied get a gradient from the head, for the rows in the loss's
        ``LossStats.touched``, and from the embedding, for the tokens that came in::

            loss, stats = linear_thresholded_cross_entropy(..., stats=True)
            optimizer.touch(weight, stats.touched)
            optimizer.touch(weight, input_ids)

        Args:
            param: one of the parameters in ``rows``.
            rows: which rows: booleans of shape ``param.shape[:-1]``, or integers: row numbers of
                any shape, for a parameter ``[R, V, D]`` of shape ``[R, ...]``, within each run.

        Example:
            >>> embedding = torch.nn.Embedding(4, 2)
            >>> optimizer = RowAdamW(embedding.parameters(), rows=[embedding.weight])
            >>> ids = torch.tensor([[1, 3]])
            >>> embedding(ids).sum().backward()
            >>> optimizer.touch(embedding.weight, ids)
            >>> optimizer.step()
            >>> optimizer.state[embedding.weight]["row_step"]
            tensor([0., 1., 0., 1.])
        """
        if not isinstance(param, Tensor) or param not in self._selected:
            expected = "one of the parameters that rows= named"
            raise ArgumentValueError("param", expected, checks.describe(param))
        rows = checks.is_tensor("rows", rows)
        checks.same_device("rows", rows, "param", param)
        if rows.dtype == torch.bool:
            meaning = "a boolean a row of the parameter"
            checks.has_shape("rows", rows, param.shape[:-1], meaning)
            mask = rows
        else:
            mask = _mask_of(rows, param)
        old = self._marks.get(param)
        self._marks[param] = mask.clone() if old is None else old | mask

    @torch.no_grad()
    def settle(self) -> None:
        """Let all rows catch up now, as if each were about to move; for ``catch_up=True``.

        Rows that wait have missed weight decay. Settle before a model is evaluated or saved for
        use with another optimizer; in groups without ``catch_up`` nothing happens.

        Example:
            >>> weight = torch.nn.Parameter(torch.ones(2, 1))
            >>> options = dict(lr=0.1, weight_decay=1.0, catch_up=True)
            >>> optimizer = RowAdamW([weight], rows=[weight], **options)
            >>> weight.grad = torch.zeros(2, 1)
            >>> optimizer.step()
            >>> optimizer.settle()
            >>> weight.data.T
            tensor([[0.9000, 0.9000]])
        """
        for group in self.param_groups:
            for param in group["params"]:
                state = self.state.get(param, {})
                if not group["catch_up"] or "row_decay" not in state:
                    continue
                missed = state["step"] - state["row_step"]
                forget(state["exp_avg"], state["exp_avg_sq"], missed, group["betas"])
                param.mul_(state["row_decay"][..., None])
                state["row_decay"].fill_(1.0)
                state["row_step"].copy_(state["step"].expand_as(state["row_step"]))

    def _finish(self) -> None:
        self._marks.clear()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state of `RowAdamW` or of `torch.optim.AdamW`.

        From AdamW's, each row's count becomes ``step``.
        """
        seen: StateDict = {}
        hook = self.register_load_state_dict_pre_hook(lambda _, loaded: seen.update(loaded))
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        saved = [index for group in seen["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for index, param in zip(saved, params, strict=True):
            if param in self._selected and seen["state"].get(index):
                self._restore(param, seen["state"][index])

    def _restore(self, param: Tensor, saved: dict[str, Any]) -> None:
        """Put back what PyTorch casts to the parameter's dtype, where counts lose their digits."""
        state, rows = self.state[param], param.shape[:-1]
        if not isinstance(state["step"], Tensor):  # written by PyTorch before 1.12
            state["step"] = torch.tensor(float(state["step"]))
        for name, dtype in (("row_step", torch.float32), ("row_decay", torch.float64)):
            if name not in saved:
                continue
            checks.has_shape(f"state_dict's {name}", saved[name], rows, "a number a row")
            state[name] = saved[name].to(device=param.device, dtype=dtype, copy=True).contiguous()
        if "row_step" not in saved:
            state["row_step"] = _counts(param, state["step"])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_marks" not in self.__dict__:  # a copy, or one that was unpickled
            self._marks, self._scratch = {}, Scratch()

    def _prepare(self, param: Tensor, group: dict[str, Any]) -> None:
        super()._prepare(param, group)
        if param not in self._selected:
            return
        state = self.state[param]
        if "row_step" not in state:
            state["row_step"] = _counts(param, state["step"])
        if group["catch_up"] and "row_decay" not in state:  # what was missed counts from now on
            state["row_step"] = _counts(param, state["step"])
            state["row_decay"] = torch.ones_like(state["row_step"], dtype=torch.float64)

    def _update(
        self, param: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Tensor]
    ) -> None:
        lr, weight_decay = (
            x.expand(param.shape[:-1]) if isinstance(x, Tensor) and x.ndim else x
            for x in self._rates(param, group, param.ndim - 1)
        )
        row_decay = state["row_decay"] if group["catch_up"] else None
        if row_decay is not None:
            row_decay.mul_(1 - lr * weight_decay)
        rule = Rule(
            betas=tuple(group["betas"]),
            eps=group["eps"],
            step=advance(state["step"]),
            catch_up=group["catch_up"],
            maximize=group["maximize"],
            fused=group["fused"] is not False,
        )
        values = {
            "param": param.detach(),
            "grad": grad,
            "exp_avg": state["exp_avg"],
            "exp_avg_sq": state["exp_avg_sq"],
            "row_step": state["row_step"],
            "row_decay": row_decay,
            "marks": self._marks.get(param),
            "lr": lr,
            "weight_decay": weight_decay,
        }
        waits = param.device.type != "cpu" or group["capturable"]
        for matrix in matrices(values):
            if rule.fused and fused.takes_rows(matrix):
                fused.step_rows(matrix, rule)
            elif waits or torch.compiler.is_compiling():
                step_masked(matrix, rule)
            else:
                step_touched(matrix, rule, self._scratch)


def _counts(param: Tensor, step: Tensor) -> Tensor:
    """Return a count for each row, all at ``step``."""
    counts = torch.empty(param.shape[:-1], dtype=torch.float32, device=param.device)
    return counts.copy_(step.expand_as(counts))


def _mask_of(ids: Tensor, param: Tensor) -> Tensor:
    """Return booleans for row numbers ``[R, ...]``, one set for each leading index."""
    ids = checks.is_integer("rows", ids, fix="pass row numbers or booleans")
    *lead, count = param.shape[:-1]
    if list(ids.shape[: len(lead)]) != lead:
        expected = f"row numbers {[*lead, '...']} for a parameter {list(param.shape)}"
        raise ArgumentValueError("rows", expected, f"shape {tuple(ids.shape)}")
    inside = (ids >= 0) & (ids < count)
    checks.all_true(inside, "rows", f"numbers from 0 to {count - 1}", "one outside")
    mask = torch.zeros(param.shape[:-1], dtype=torch.bool, device=param.device)
    return mask.scatter_(-1, ids.long().reshape(*lead, -1), True)
