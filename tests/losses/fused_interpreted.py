"""The Triton backend, interpreted on a CPU; `test_fused` runs this with TRITON_INTERPRET=1.

Triton's interpreter cannot compute with bfloat16; GPU tests do.
"""

from __future__ import annotations

import pytest
import torch

from elbowroom.losses import fused
from tests.losses.fused_cases import *  # noqa: F403

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of NaN and infinity


@pytest.fixture(autouse=True)
def device(monkeypatch) -> str:
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    return "cpu"


@pytest.fixture
def dtypes() -> tuple[torch.dtype, ...]:
    return torch.float32, torch.float16


@pytest.fixture
def count() -> int:
    return 21


@pytest.fixture
def most() -> int:
    return 12
