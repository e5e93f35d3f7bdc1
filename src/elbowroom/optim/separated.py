"""Separated embeddings as they were published: every row a parameter of its own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from elbowroom import checks
from elbowroom.errors import ArgumentValueError


class SeparatedEmbedding(nn.Module):
    """An embedding whose rows are ``num_embeddings`` parameters ``[D]``, stacked at each use.

    Paper, section "Separated embeddings". The intention is that a row without a gradient should
    not be moved by its old momentum. It does not happen: stacking gives the rows that were not
    used gradients of *zeros*, not missing ones, and AdamW moves a parameter whose gradient is zero.
    So this module under AdamW equals an `torch.nn.Embedding` under AdamW, more slowly. It is here
    so that the paper's runs can be repeated under their true name. To leave rows alone, use
    `RowAdamW` with an ordinary embedding.

    One difference remains in practice: rules such as "weight decay for matrices only" see vectors
    here, and leave them out.

    Args:
        num_embeddings: number of rows, V.
        embedding_dim: their width, D.
        device, dtype: as in PyTorch.

    Shapes: ids ``[...]`` to vectors ``[..., D]``; `weight` is ``[V, D]``.

    Differs from PyTorch: rows are drawn from the standard normal distribution as in
    `torch.nn.Embedding`, and `weight` is not a parameter but stacked anew each time it is read, for
    use in a tied head; ``padding_idx``, ``max_norm`` and ``sparse`` do not exist.

    Example:
        >>> embedding = SeparatedEmbedding(4, 2)
        >>> embedding(torch.tensor([[1, 3]])).sum().backward()
        >>> embedding.rows[0].grad
        tensor([0., 0.])
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = (
            checks.integer("num_embeddings", num_embeddings, at_least=1),
            checks.integer("embedding_dim", embedding_dim, at_least=1),
        )
        weight = torch.empty(shape, device=device, dtype=dtype)
        self.rows = nn.ParameterList(nn.Parameter(row.clone()) for row in nn.init.normal_(weight))

    @classmethod
    def from_weight(cls, weight: Float[Tensor, "V D"]) -> SeparatedEmbedding:
        """Return an embedding whose rows are copies of the rows of ``weight``.

        Example:
            >>> SeparatedEmbedding.from_weight(torch.eye(2)).weight.tolist()
            [[1.0, 0.0], [0.0, 1.0]]
        """
        weight = checks.is_floating("weight", weight)
        if weight.ndim != 2:
            raise ArgumentValueError("weight", "[V, D]", f"shape {tuple(weight.shape)}")
        made = cls(*weight.shape, device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            for row, value in zip(made.rows, weight, strict=True):
                row.copy_(value)
        return made

    @property
    def weight(self) -> Float[Tensor, "V D"]:
        """Return the rows as one matrix, differentiable."""
        return torch.stack(list(self.rows))

    def forward(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape D"]:
        """Return the vectors of ``ids``."""
        return F.embedding(checks.is_integer("ids", ids), self.weight)
