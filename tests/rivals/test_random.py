"""Counter-based random numbers: known answers, and fair."""

from __future__ import annotations

import pytest
import torch

from elbowroom.rivals.random import _mix, uniform

CPU = torch.device("cpu")


def mix_in_python(x):
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
    return x ^ (x >> 16)


def test_mixing_equals_unbounded_integers_and_is_one_to_one():
    x = torch.cat([torch.arange(100), torch.randint(0, 2**32, (1000,)), torch.tensor([2**32 - 1])])
    mixed = _mix(x)
    assert mixed.tolist() == [mix_in_python(v) for v in x.tolist()]
    assert mixed.unique().numel() == x.unique().numel()


def test_every_number_is_a_function_of_seed_step_and_position():
    u = uniform(5, 9, (2, 3, 4), CPU)
    key = mix_in_python(mix_in_python(5) + 9 & 0xFFFFFFFF)
    row = mix_in_python(key + mix_in_python(2 + 1) & 0xFFFFFFFF)
    entry = mix_in_python(row + mix_in_python(3 + 2) & 0xFFFFFFFF)
    assert u[0, 2, 3].item() == entry / 2**32
    assert torch.equal(u[0], u[1])  # one seed for all runs
    assert torch.equal(u[:, :2, :2], uniform(5, 9, (2, 2, 2), CPU))  # whatever the shape
    step = torch.tensor(9, dtype=torch.int32)
    assert torch.equal(u, uniform(torch.tensor(5), step, (2, 3, 4), CPU))


def test_runs_have_the_numbers_of_their_seed():
    together = uniform(torch.tensor([3, -1, 2**40]), 0, (3, 50), CPU)
    for r, seed in enumerate((3, -1, 2**40)):
        assert torch.equal(together[r], uniform(seed, 0, (1, 50), CPU)[0])
    assert together.unique().numel() == 150


@pytest.mark.parametrize("vary", ["seed", "step", "first", "second"])
def test_numbers_are_uniform_and_unrelated(vary):
    n = 1024 if vary == "step" else 4096
    if vary == "seed":
        u = uniform(torch.arange(n), 0, (n, 2), CPU)
    elif vary == "step":
        u = torch.cat([uniform(0, step, (1, 2), CPU) for step in range(n)])
    elif vary == "first":
        u = uniform(0, 0, (1, n, 2), CPU)[0]
    else:
        u = uniform(0, 0, (1, 2, n), CPU)[0].T
    counts = torch.histc(u.flatten(), 16, 0, 1)
    expected = 2 * n / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7  # chi-square, 15 degrees, p = .001
    correlation = torch.corrcoef(torch.stack([u[:-1, 0], u[1:, 0], u[:-1, 1]]))
    assert (correlation - torch.eye(3)).abs().max() < 4 / n**0.5
