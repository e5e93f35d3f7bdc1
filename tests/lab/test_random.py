"""Randomness by counter: known answers in plain integers, fair, the same bits when compiled."""

from __future__ import annotations

import math

import pytest
import torch

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.random import _mix, below, bits, normal, stream, uniform

ALL = 2**64 - 1
G = 0x9E3779B97F4A7C15
LARGEST = 2**63 - 1


def mix(x):
    """SplitMix64's finalizer in unbounded integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ALL
    return x ^ (x >> 31)


def answer(seed, stream, step, position):
    h = mix(stream + (seed + 1) * G & ALL)
    h = mix(h + step * G & ALL)
    return mix(h + position * G & ALL)


def test_mixing_is_the_published_one():
    # the first outputs of SplitMix64 with seed 1234567, as its implementations list them
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    state = torch.tensor([1234567])
    for expected in published:
        state = state + (G - 2**64)
        assert _mix(state).item() & ALL == expected


@pytest.mark.parametrize(
    ("seed", "which", "step", "position"),
    [
        (0, 0, 0, 0),
        (1, 2, 3, 4),
        (-1, 5, 8000, 2**40),
        (2**62 + 11, LARGEST, 2**40, LARGEST),
        (-(2**63), stream("a"), LARGEST, 1),
    ],
)
def test_known_answers(seed, which, step, position):
    x = answer(seed, which, step, position)
    seeds = torch.tensor([seed])
    counters = torch.tensor(step), torch.tensor([position])
    assert bits(seeds, which, *counters).item() & ALL == x
    assert bits(seeds, which, step, position).item() & ALL == x  # counters as numbers
    assert uniform(seeds, which, *counters).item() == (x >> 40) / 2**24
    for n in (1, 10, 2**40):
        assert below(n, seeds, which, *counters).item() == (x >> 1) % n


def test_numbers_broadcast_and_depend_on_nothing_else():
    seeds, position = torch.tensor([[3], [-1], [2**40]]), torch.arange(7, dtype=torch.int32)
    together = bits(seeds, 1, torch.tensor(9), position)
    assert together.shape == (3, 7)
    for r in range(3):
        assert torch.equal(together[r], bits(seeds[r], 1, 9, position))
    n = torch.tensor([[5], [100], [10**9]])
    expected = torch.stack([below(int(n[r]), seeds[r], 1, 9, position) for r in range(3)])
    assert torch.equal(below(n, seeds, 1, 9, position), expected)


def test_streams_have_names():
    assert stream("windows") == stream("windows") != stream("languages")
    assert 0 <= stream("") <= LARGEST
    assert stream("") == int("e3b0c44298fc1c14", 16) >> 1  # the start of SHA-256 of nothing


def draw(vary, n):
    """Draw n numbers along one counter, each beside another of its kind."""
    one, along = torch.zeros(1, dtype=torch.long), torch.arange(n)[:, None]
    counters = {
        "seed": (along, 0, 0, torch.arange(2)),
        "step": (one, 0, along, torch.arange(2)),
        "position": (one, 0, torch.arange(2), along),
    }
    if vary == "stream":
        return torch.cat([uniform(one, s, 0, torch.arange(2))[None] for s in range(n)])
    return uniform(*counters[vary])


@pytest.mark.parametrize("vary", ["seed", "stream", "step", "position"])
def test_numbers_are_uniform_and_neighbours_unrelated(vary):
    n = 1024 if vary == "stream" else 2**16
    u = draw(vary, n)
    counts = torch.histc(u.flatten(), 64, 0, 1)
    expected = u.numel() / 64
    assert ((counts - expected) ** 2 / expected).sum() < 103.4  # chi-square, 63 degrees, p = .001
    columns = torch.stack([u[:-1, 0], u[1:, 0], u[:-1, 1]])
    assert (torch.corrcoef(columns) - torch.eye(3)).abs().max() < 4 / n**0.5


@pytest.mark.parametrize("vary", ["seed", "step", "position"])
def test_a_step_of_one_changes_half_of_the_bits(vary):
    one = torch.zeros(1, dtype=torch.long)
    along = torch.arange(4096)
    counters = {"seed": (along, 0, 0, 0), "step": (one, 0, along, 0)}
    x = bits(*counters.get(vary, (one, 0, 0, along)))
    changed = x[1:] ^ x[:-1]
    each = torch.stack([(changed >> b) & 1 for b in range(64)]).double().mean(1)
    assert ((each - 0.5).abs() < 4.5 * 0.5 / 4095**0.5).all()


@pytest.mark.parametrize("n", [3, 96, 2**40 - 1])  # divisible by 3
def test_below_reaches_all_evenly(n):
    x = below(n, torch.tensor([1]), 0, 0, torch.arange(2**16))
    assert x.min() >= 0
    assert x.max() < n
    counts = torch.histc(x.double() / n, 3, 0, 1)
    assert ((counts - 2**16 / 3) ** 2 / (2**16 / 3)).sum() < 13.8  # 2 degrees, p = .001


def test_normal_numbers():
    x = normal(5, 1, 100_001).double()
    assert x.shape == (100_001,)
    n = len(x)
    assert abs(x.mean()) < 4 / n**0.5
    assert abs(x.var() - 1) < 4 * (2 / n) ** 0.5
    assert abs((x**3).mean()) < 4 * (15 / n) ** 0.5
    assert abs((x**4).mean() - 3) < 4 * (96 / n) ** 0.5
    assert abs((x[1:] * x[:-1]).mean()) < 4 / n**0.5
    assert not torch.equal(x, normal(6, 1, 100_001).double())


def test_normal_numbers_are_known():
    u = [((answer(5, 1, 0, p) >> 11) + 1) / 2**53 for p in range(4)]
    radius = math.sqrt(-2 * math.log(u[2]))
    expected = [radius * math.cos(2 * math.pi * u[3]), radius * math.sin(2 * math.pi * u[3])]
    torch.testing.assert_close(normal(5, 1, 4)[2:], torch.tensor(expected))
    assert normal(5, 1, 0).shape == (0,)


@pytest.mark.usefixtures("unchecked")
def test_bad_arguments():
    seed = torch.tensor([0])
    with pytest.raises(ArgumentTypeError, match=r"^seed: expected a tensor"):
        bits(0, 0, 0, 0)
    with pytest.raises(ArgumentTypeError, match=r"^step: expected a tensor of integers"):
        bits(seed, 0, torch.tensor(0.5), 0)
    with pytest.raises(ArgumentTypeError, match=r"^position: expected an integer"):
        bits(seed, 0, 0, 0.5)
    with pytest.raises(ArgumentValueError, match=r"^stream: expected an integer, at least 0"):
        bits(seed, -1, 0, 0)
    for n in (0, 2**40 + 1):
        with pytest.raises(ArgumentValueError, match=r"^n: expected from 1 to 2\^40"):
            below(n, seed, 0, 0, 0)
    with pytest.raises(ArgumentTypeError, match=r"^n: expected a tensor of integers"):
        below(torch.tensor(2.0), seed, 0, 0, 0)
