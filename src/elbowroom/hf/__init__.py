"""Causal LMs of transformers: one line gives them our loss.

`patch` needs nothing but torch; transformers is loaded by what needs it, such as
`progress_callback`.
"""

from elbowroom.hf.callbacks import progress_callback
from elbowroom.hf.patch import Patch, patch

__all__ = ["Patch", "patch", "progress_callback"]
