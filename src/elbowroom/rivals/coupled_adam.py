"""Coupled Adam: one second moment for all rows of an embedding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from elbowroom.losses.problem import compute_dtype
from elbowroom.optim.base import SelectiveAdamW
from elbowroom.optim.update import update_moments, update_param


class CoupledAdamW(SelectiveAdamW):
    r"""AdamW whose second moment is averaged over the vocabulary, in chosen parameters.

    Adam divides each row's gradients by their own size, so that the rows of rare tokens, whose
    gradients are small and mostly push away, move as far as those of common ones: the embeddings
    drift together in one direction. With one denominator for all V rows, the updates of a softmax
    head sum to zero over the vocabulary as its gradients do, and the mean row stays where it is:

    .. math::
        p_i \leftarrow (1 - \eta\lambda)\, p_i - \eta\,
          \frac{m_i / (1 - \beta_1^t)}{\sqrt{\bar v / (1 - \beta_2^t)} + \epsilon},
        \qquad \bar v = \frac{1}{V} \sum_{i=1}^{V} v_i

    with AdamW's moments. The mean runs over rows, and each of the D columns has its own.

    Reference: Stollenwerk and Stollenwerk, "Better Embeddings with Coupled Adam", 2025.

    Args:
        params, lr, betas, eps, weight_decay, maximize, foreach, fused, capturable: as in
            `elbowroom.RowAdamW`; ``lr`` and ``weight_decay`` may be tensors ``[R]``.
        coupled: parameters ``[..., V, D]`` of ``params`` to treat so, given as themselves; leading
            dimensions are runs, each with a mean of its own. All others are `torch.optim.AdamW` to
            the bit.

    Differs from PyTorch: there is no ``amsgrad`` and no ``differentiable``. The state is AdamW's,
    ``exp_avg_sq`` not yet averaged, so that checkpoints go both ways.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2, 1))
        >>> optimizer = CoupledAdamW([weight], lr=0.1, coupled=[weight])
        >>> weight.grad = torch.tensor([[7.0], [1.0]])
        >>> optimizer.step()  # AdamW would move both rows by 0.1
        >>> weight.data.T
        tensor([[-0.1400, -0.0200]])
    """

    selects: ClassVar[str] = "coupled"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | Tensor = 1e-2,
        *,
        coupled: Iterable[Tensor] = (),
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        super().__init__(params, coupled, defaults)

    def _update(
        self, param: Tensor, grad: Tensor, group: dict[str, Any], state: dict[str, Tensor]
    ) -> None:
        dtype = compute_dtype(param.dtype)
        stored = (param.detach(), state["exp_avg"], state["exp_avg_sq"])
        values = [x.to(dtype) for x in stored]  # themselves, if nothing is to be converted
        grad = (-grad if group["maximize"] else grad).to(dtype)
        update_moments(values[1], values[2], grad, group["betas"])
        root = torch.sqrt(values[2].mean(-2, keepdim=True))
        update_param(values[0], values[1], root, self._coefficients(param, group))
        for old, new in zip(stored, values, strict=True):
            if old.dtype != dtype:
                old.copy_(new)
