"""Optimizers that know about rows."""

from elbowroom.optim.row_adamw import RowAdamW
from elbowroom.optim.separated import SeparatedEmbedding

__all__ = ["RowAdamW", "SeparatedEmbedding"]
