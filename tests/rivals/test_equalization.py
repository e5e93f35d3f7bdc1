"""Softmax equalization loss: who is dropped, how often, and by which dice."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from elbowroom.counts import TokenCounts
from elbowroom.rivals import equalization
from elbowroom.rivals.random import uniform
from tests.rivals.cases import problem

COUNTS = TokenCounts(torch.tensor([50, 20, 20, 4, 3, 3, 0]))
RARE = torch.tensor([0, 0, 0, 1, 1, 1, 1], dtype=torch.bool)


def test_certain_drop_is_a_softmax_without_rare_negatives():
    hidden, weight, _ = problem(3)
    target = torch.tensor([1, 4, 6])
    kept = ~RARE | F.one_hot(target, 7).bool()
    z = (hidden @ weight.T).masked_fill(~kept, -math.inf)
    expected = F.cross_entropy(z, target)
    loss = equalization(hidden, weight, target, counts=COUNTS, threshold=0.05, gamma=1.0)
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, weight)
    assert (gradient[[3, 5]] == 0).all()  # rare, never a target
    assert (gradient[[0, 1, 4]] != 0).any(-1).all()


def test_the_bound_itself_is_not_rare():
    hidden, weight = torch.zeros(1, 2), torch.zeros(7, 2)
    target = torch.tensor([0])
    loss = equalization(hidden, weight, target, counts=COUNTS, threshold=0.04, gamma=1.0)
    torch.testing.assert_close(loss, torch.tensor(4.0).log())  # 0, 1, 2 and 3


def test_each_entry_is_dropped_by_its_own_number():
    hidden, weight, target = problem(50)
    options = {"counts": COUNTS, "threshold": 0.05, "gamma": 0.3, "seed": 11}
    loss = equalization(hidden, weight, target, step=4, **options, reduction="none")
    u = uniform(11, 4, (1, 50, 7), hidden.device)[0]
    drop = (u < 0.3) & RARE & ~F.one_hot(target, 7).bool()
    z = (hidden @ weight.T).masked_fill(drop, -math.inf)
    torch.testing.assert_close(loss, F.cross_entropy(z, target, reduction="none"))
    again = equalization(hidden, weight, target, step=4, **options, reduction="none")
    assert torch.equal(loss, again)
    other = equalization(hidden, weight, target, step=5, **options, reduction="none")
    assert not torch.equal(loss, other)


def test_the_share_of_drops_is_gamma():
    hidden, weight = torch.zeros(4000, 1), torch.zeros(7, 1)
    target = torch.zeros(4000, dtype=torch.int64)
    loss = equalization(
        hidden, weight, target, counts=COUNTS, threshold=0.05, gamma=0.9, reduction="none"
    )
    dropped = 7 - loss.exp()
    assert abs(dropped.mean().item() / 4 - 0.9) < 4 * math.sqrt(0.09 / 16000)
