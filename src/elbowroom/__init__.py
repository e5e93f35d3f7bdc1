"""elbowroom: language models whose rare tokens are not pushed aside by cross-entropy.

    import elbowroom as er

    loss = er.linear_thresholded_cross_entropy(hidden, weight, target, margin=2.0)

Losses: `thresholded_cross_entropy`, `linear_thresholded_cross_entropy`, as modules
`ThresholdedCrossEntropy` and `LinearThresholdedCrossEntropy`; `vocab_parallel_cross_entropy`, of a
head spread over processes; `variants` of them; `margins`, how wide; `RowAdamW`, an optimizer that
leaves untouched rows alone; `TokenCounts`, which tokens are rare; `rivals`, what others propose;
`metrics` and `diagnose`, what came of it; `patch`, which gives a causal LM of transformers any of
these losses in one line.
"""

from elbowroom import diagnose, hf, init, margins, metrics, rivals
from elbowroom.counts import TokenCounts
from elbowroom.hf import patch
from elbowroom.losses import (
    LossStats,
    linear_thresholded_cross_entropy,
    thresholded_cross_entropy,
    variants,
    vocab_parallel_cross_entropy,
)
from elbowroom.losses.modules import LinearThresholdedCrossEntropy, ThresholdedCrossEntropy
from elbowroom.optim import RowAdamW, SeparatedEmbedding

__version__ = "0.1.0.dev0"

__all__ = [
    "LinearThresholdedCrossEntropy",
    "LossStats",
    "RowAdamW",
    "SeparatedEmbedding",
    "ThresholdedCrossEntropy",
    "TokenCounts",
    "diagnose",
    "hf",
    "init",
    "linear_thresholded_cross_entropy",
    "margins",
    "metrics",
    "patch",
    "rivals",
    "thresholded_cross_entropy",
    "variants",
    "vocab_parallel_cross_entropy",
]
