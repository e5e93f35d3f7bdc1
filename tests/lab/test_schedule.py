"""Learning rates: the paper's and others, by number and by tensor, one a run."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest
import torch

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.schedule import Schedule

PAPER = Schedule(lr=1e-3, min_lr=1e-4, warmup=100, steps=8000)
ALL = [
    PAPER,
    Schedule(kind="wsd", lr=1e-3, min_lr=1e-5, warmup=10, steps=200, decay=0.3),
    Schedule(kind="wsd", lr=1e-3, steps=200, decay=0.5, shape="sqrt"),
    Schedule(kind="constant", lr=1e-3, warmup=10, steps=20),
    Schedule(kind="constant", lr=1e-3),
]


def test_the_papers():
    def plain(i):
        if i < 100:
            return 1e-3 * i / 100
        return 1e-4 + 0.5 * (1 + math.cos(math.pi * (i - 100) / 7900)) * (1e-3 - 1e-4)

    for i in (0, 1, 50, 99, 100, 101, 4000, 7999, 8000):
        assert PAPER.at(i) == pytest.approx(plain(i), rel=1e-12)
    assert PAPER.at(0) == 0
    assert PAPER.at(9000) == pytest.approx(1e-4)


def test_warm_up_stable_decay():
    linear, sqrt = ALL[1], ALL[2]
    assert linear.begin == 140
    assert [linear.at(i) for i in (5, 10, 140)] == pytest.approx([5e-4, 1e-3, 1e-3])
    assert linear.at(170) == pytest.approx((1e-3 + 1e-5) / 2)
    assert linear.at(300) == pytest.approx(1e-5)
    assert sqrt.at(0) == 1e-3  # no warm-up: the first update counts
    assert sqrt.at(125) == pytest.approx(1e-3 * 0.5)
    assert sqrt.at(200) == 0


def test_constant_and_no_decay():
    assert [ALL[3].at(i) for i in (0, 5, 10, 1000)] == pytest.approx([0, 5e-4, 1e-3, 1e-3])
    assert Schedule(kind="wsd", lr=1.0, steps=10, decay=0.0).at(10) == 1.0
    assert Schedule(lr=1.0, warmup=10, steps=10).at(10) == 1.0


def test_a_warm_up_delays_the_decay():
    late = Schedule(kind="wsd", lr=1.0, warmup=90, steps=100, decay=0.5)
    assert late.begin == 90
    assert late.at(95) == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", ALL)
def test_tensors_and_numbers_agree(schedule):
    for i in (0, 7, 10, 100, 150, 199, 8000):
        rate = schedule.at(torch.tensor(i))
        assert rate.dtype == torch.float32
        assert rate.item() == pytest.approx(schedule.at(i), rel=1e-6)


@pytest.mark.parametrize("kind", ["cosine", "wsd", "constant"])
def test_one_a_run(kind):
    lr, least = torch.tensor([1e-3, 3e-3]), torch.tensor([1e-4, 0.0])
    common = {"kind": kind, "warmup": 10, "steps": 100}
    for i in (0, 5, 50, 95):
        expected = [
            Schedule(lr=a, min_lr=b, **common).at(i)
            for a, b in zip(lr.tolist(), least.tolist(), strict=True)
        ]
        for step in (i, torch.tensor(i)):
            rates = Schedule(lr=lr, min_lr=least, **common).at(step)
            torch.testing.assert_close(rates, torch.tensor(expected))
    only = Schedule(lr=1e-3, min_lr=least, **common).at(100)
    expected = torch.tensor([1e-3, 1e-3]) if kind == "constant" else least
    torch.testing.assert_close(only, expected)


def test_it_is_frozen():
    with pytest.raises(FrozenInstanceError):
        PAPER.lr = 1.0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "name", "kind"),
    [
        ({"kind": "step"}, "kind", ArgumentValueError),
        ({"shape": "cosine"}, "shape", ArgumentValueError),
        ({"lr": -1.0}, "lr", ArgumentValueError),
        ({"lr": float("inf")}, "lr", ArgumentValueError),
        ({"lr": "1e-3"}, "lr", ArgumentTypeError),
        ({"lr": torch.tensor([1])}, "lr", ArgumentTypeError),
        ({"lr": torch.tensor(1.0)}, "lr", ArgumentValueError),
        ({"lr": torch.tensor([1.0, float("nan")])}, "lr", ArgumentValueError),
        ({"min_lr": 1.0}, "min_lr", ArgumentValueError),
        ({"min_lr": torch.tensor([0.0, 1.0])}, "min_lr", ArgumentValueError),
        ({"steps": 0}, "steps", ArgumentValueError),
        ({"warmup": -1}, "warmup", ArgumentValueError),
        ({"warmup": 11}, "warmup", ArgumentValueError),
        ({"decay": 1.5}, "decay", ArgumentValueError),
    ],
)
def test_bad_arguments(options, name, kind):
    with pytest.raises(kind, match=f"^{name}: expected"):
        Schedule(**({"steps": 10} | options))


@pytest.mark.usefixtures("unchecked")
def test_bad_steps():
    with pytest.raises(ArgumentValueError, match=r"^step: expected a finite number, at least 0"):
        PAPER.at(-1)
    with pytest.raises(ArgumentValueError, match=r"^step: expected shape"):
        PAPER.at(torch.zeros(2))
