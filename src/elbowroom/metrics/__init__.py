"""Streaming metrics of a language model, by group and by token frequency.

`Evaluation` takes batches of logits, or of hidden states and the head's weight, and keeps nothing
but sums; `Scores` is what it found. The equations are functions of their own.
"""

from elbowroom.metrics.evaluation import Evaluation
from elbowroom.metrics.scores import Reliability, Scores
from elbowroom.metrics.statistics import (
    TargetStatistics,
    foreign_mass,
    target_statistics,
    temperature_nll,
    top_k_probability,
)

__all__ = [
    "Evaluation",
    "Reliability",
    "Scores",
    "TargetStatistics",
    "foreign_mass",
    "target_statistics",
    "temperature_nll",
    "top_k_probability",
]
