"""Attention, interpreted on a CPU; `test_attention` runs this with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest

from elbowroom.lab.model import attention
from tests.lab.attention_cases import *  # noqa: F403


@pytest.fixture
def device(monkeypatch) -> str:
    monkeypatch.setattr(attention, "DEVICES", ("cpu",))
    return "cpu"
