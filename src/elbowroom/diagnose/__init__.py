"""Looking at a model's embeddings, and at the gradients that move them.

Pure functions over tensors; `GradientTypes` alone attaches itself to a model, to record.
"""

from elbowroom.diagnose.embeddings import (
    PrincipalComponents,
    UnderTrained,
    isoscore,
    isotropy,
    pca,
    under_trained,
)
from elbowroom.diagnose.gradients import (
    HeadGradients,
    context_gradients,
    head_gradients,
    split_gradients,
)
from elbowroom.diagnose.ratios import GradientNorms, GradientRatios, GradientTypes
from elbowroom.diagnose.similarity import (
    LetterMask,
    Neighbours,
    cosine_by_group,
    letter_mask,
    neighbours,
    translation_score,
)

__all__ = [
    "GradientNorms",
    "GradientRatios",
    "GradientTypes",
    "HeadGradients",
    "LetterMask",
    "Neighbours",
    "PrincipalComponents",
    "UnderTrained",
    "context_gradients",
    "cosine_by_group",
    "head_gradients",
    "isoscore",
    "isotropy",
    "letter_mask",
    "neighbours",
    "pca",
    "split_gradients",
    "translation_score",
    "under_trained",
]
