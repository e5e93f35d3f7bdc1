"""The equations, and each way to compute them.

`functional` checks and dispatches; `reference` is eager and the oracle; `chunked` (with `entries`,
`products` and `operator`) is portable and never holds all logits; `parallel` (with `shards`) is
that for a head whose rows are spread over processes; `modules` wraps them.
"""

from elbowroom.losses.functional import (
    linear_thresholded_cross_entropy,
    thresholded_cross_entropy,
)
from elbowroom.losses.parallel import vocab_parallel_cross_entropy
from elbowroom.losses.spec import LossStats

__all__ = [
    "LossStats",
    "linear_thresholded_cross_entropy",
    "thresholded_cross_entropy",
    "vocab_parallel_cross_entropy",
]
