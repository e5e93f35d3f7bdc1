"""The fused step, interpreted on a CPU; `test_fused` runs this with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest

from elbowroom.optim import fused
from tests.optim.fused_cases import *  # noqa: F403


@pytest.fixture
def device(monkeypatch) -> str:
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    return "cpu"
