"""What others propose against the same ill, each with its paper's equation and defaults.

Losses have one signature, ``f(hidden, weight, target, *, <its own parameters>, **options)``, with
the options of `HeadOptions`: those of `elbowroom.linear_thresholded_cross_entropy`. They are
eager, hold all logits (but `sampled_softmax`), run on any device and dtype, and are differentiated
by autograd. `cosreg`, `laplacian` and `centering_penalty` are penalties on a matrix, to be added to
a loss; `CoupledAdamW` and `center_rows` change the optimizer; `unigram_bias` is a bias to start
from.

Reference: docs/rivals.md.
"""

from elbowroom.rivals.acsl import acsl
from elbowroom.rivals.adversarial import adversarial
from elbowroom.rivals.agg import agg
from elbowroom.rivals.centering import center_rows, centering_penalty
from elbowroom.rivals.common import HeadOptions
from elbowroom.rivals.contrastive import contrastive_weight_tying
from elbowroom.rivals.coupled_adam import CoupledAdamW
from elbowroom.rivals.equalization import equalization
from elbowroom.rivals.ldam import ldam
from elbowroom.rivals.priors import logit_adjusted, unigram_bias
from elbowroom.rivals.regularizers import cosreg, laplacian
from elbowroom.rivals.reweighted import class_balanced, focal, mile
from elbowroom.rivals.sampled import sampled_softmax
from elbowroom.rivals.seesaw import seesaw
from elbowroom.rivals.sparse import entmax15, entmax15_probs, sparsemax, sparsemax_probs

__all__ = [
    "CoupledAdamW",
    "HeadOptions",
    "acsl",
    "adversarial",
    "agg",
    "center_rows",
    "centering_penalty",
    "class_balanced",
    "contrastive_weight_tying",
    "cosreg",
    "entmax15",
    "entmax15_probs",
    "equalization",
    "focal",
    "laplacian",
    "ldam",
    "logit_adjusted",
    "mile",
    "sampled_softmax",
    "seesaw",
    "sparsemax",
    "sparsemax_probs",
    "unigram_bias",
]
