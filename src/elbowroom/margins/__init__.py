r"""How wide the margin is: in closed form, from norms, annealed, and measured on a model.

A logit that lies more than ``margin`` below the target's is left out of the loss. A margin is a
number, a tensor, or a rule:

===================  ============================================================================
`top_p`, `min_p`     numbers that leave nucleus or min-p sampling as it is
`ByNorms`            ``alpha * ||w_target|| * ||h||``, one margin a token
`Annealed`           from one margin (or alpha) to another while training proceeds
`default`            the recipe to start with: ``Annealed(1, top_p(vocab_size, 0.999))``
`effective`          measures which margin shields the rows of a given model
===================  ============================================================================
"""

from __future__ import annotations

from elbowroom.margins.closed import default, min_p, top_p
from elbowroom.margins.estimate import EffectiveMargin, effective
from elbowroom.margins.norms import FinalNorm
from elbowroom.margins.rules import Annealed, ByNorms, Margin, MarginRule

__all__ = [
    "Annealed",
    "ByNorms",
    "EffectiveMargin",
    "FinalNorm",
    "Margin",
    "MarginRule",
    "default",
    "effective",
    "min_p",
    "top_p",
]
