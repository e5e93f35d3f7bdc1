from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.optim.touched import touched_rows


@pytest.mark.parametrize("value", [1.0, -1.0, 1e-45, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("others", [0.0, -0.0, 2.0])
def test_one_element_is_enough(value, place, others):
    grad = torch.full((30, 5), others)
    grad[4] = 0.0
    grad[7] = -0.0
    grad[7, place] = value
    touched = touched_rows(grad)
    assert touched[7]
    assert not touched[4]
    assert bool(touched[0]) == (others != 0)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 40),
    width=st.integers(0, 6),
    share=st.floats(0, 1),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_equals_a_loop(rows, width, share, dtype):
    grad = (torch.rand(rows, width) < share).to(dtype) * torch.randn(rows, width).to(dtype)
    expected = [any(x != 0 for x in row) for row in grad.tolist()]
    assert touched_rows(grad).tolist() == expected
    assert touched_rows(grad.T.contiguous().T).tolist() == expected
