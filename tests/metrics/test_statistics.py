"""Statistics of one token, against hand-computed values and cross_entropy."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom import metrics, thresholded_cross_entropy
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

V, N = 11, 37
TEMPERATURES = [0.25, 0.5, 1.0, 1.7]


def batch(n=N, dtype=torch.float64):
    torch.manual_seed(n)
    z = 3 * torch.randn(n, V, dtype=dtype)
    return z, torch.randint(V, (n,))


def close(a, b, **options):
    torch.testing.assert_close(a, b, **options)


def test_statistics_by_hand():
    z = torch.tensor([[0.0, math.log(2), math.log(2), math.log(5)]])
    found = metrics.target_statistics(z.expand(3, 4), torch.tensor([3, 1, 0]))
    close(found.log_probability.exp(), torch.tensor([0.5, 0.2, 0.1]))
    assert found.greater.tolist() == [0, 1, 3]
    assert found.equal.tolist() == [0, 1, 0]
    assert found.rank.tolist() == [1.0, 2.5, 4.0]
    close(found.confidence, torch.full((3,), 0.5))
    assert found.top(1).tolist() == [1.0, 0.0, 0.0]
    assert found.top(2).tolist() == [1.0, 0.5, 0.0]
    assert found.top(3).tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("k", [1, 2, 5, 40])
def test_all_equal_logits_give_chance(k):
    found = metrics.target_statistics(torch.full((8, V), 7.25), torch.arange(8))
    close(found.rank, torch.full((8,), (V + 1) / 2))
    close(found.top(k), torch.full((8,), min(1.0, k / V)))


def test_expected_rank_is_the_mean_over_orders_of_the_ties():
    z = torch.tensor([1.0, 2.0, 1.0, 1.0, 3.0])
    places = [3, 4, 5]  # each as likely for the three ones
    found = metrics.target_statistics(z, torch.tensor(2))
    assert found.rank == sum(places) / 3
    for k in range(1, 6):
        close(found.top(k), torch.tensor(sum(p <= k for p in places) / 3))


def test_ranks_do_not_merge_logits_that_shifting_would_merge():
    z = torch.tensor([[1e-9, 2e-9, 100.0]])  # z - 100 is -100 twice in float32
    found = metrics.target_statistics(z, torch.tensor([0]))
    assert (found.greater.item(), found.equal.item()) == (2, 0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9), st.data())
def test_expected_ranks_of_all_tokens_sum_to_a_permutations_sum(values, data):
    size = len(values)
    z = torch.tensor(values, dtype=torch.float32).expand(size, size)
    found = metrics.target_statistics(z, torch.arange(size))
    assert found.rank.sum() == size * (size + 1) / 2
    k = data.draw(st.integers(1, size))
    close(found.top(k).sum(), torch.tensor(float(k)))


def test_a_nan_shows_in_every_statistic():
    z = torch.zeros(3, 4)
    z[0, 1] = z[1, 2] = torch.nan  # beside the target, and the target itself
    found = metrics.target_statistics(z, torch.full((3,), 2))
    for values in (found.log_probability, found.rank, found.confidence, found.top(4)):
        assert values.isnan().tolist() == [True, True, False]
    assert found.equal.tolist() == [2, 0, 3]


def test_a_target_of_probability_zero():
    found = metrics.target_statistics(torch.tensor([[-torch.inf, 0.0]]), torch.tensor([0]))
    assert found.log_probability.item() == -torch.inf
    assert found.rank.item() == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    z, y = batch(dtype=torch.float64)
    z = z.to(dtype)
    found = metrics.target_statistics(z, y)
    expected = -F.cross_entropy(z.double(), y, reduction="none")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    close(found.log_probability, expected.to(wide))
    assert found.rank.dtype == wide


def test_temperatures_against_cross_entropy():
    z, y = batch()
    swept = metrics.temperature_nll(z.view(N, 1, V), y.view(N, 1), TEMPERATURES)
    expected = [F.cross_entropy(z / t, y, reduction="none") for t in TEMPERATURES]
    close(swept, torch.stack(expected, -1)[:, None])


def test_low_temperatures_stay_accurate_in_float32():
    z, y = batch()
    z = (20 * z).float()
    swept = metrics.temperature_nll(z, y, [0.01])[:, 0]
    close(swept, F.cross_entropy(z.double() / 0.01, y, reduction="none").float())
    assert swept.isfinite().all()


def test_foreign_mass_by_hand():
    z = torch.tensor([1.0, 2.0, 3.0, 4.0]).log().expand(4, 4)
    mass = metrics.foreign_mass(z, torch.arange(4), torch.tensor([0, 0, 1, -1]))
    close(mass, torch.tensor([0.3, 0.3, 0.3, 0.0]))


def test_the_losses_see_the_same_statistics():
    z, y = batch()
    z = (2 * z).round() / 2  # with ties
    _, seen = thresholded_cross_entropy(z, y, 1.0, stats=True)
    found = metrics.target_statistics(z, y)
    assert found.equal.any()
    close(found.rank, seen.rank)
    close(found.log_probability, seen.log_probability)


LONG = torch.zeros(3, dtype=torch.long)


@pytest.mark.usefixtures("unchecked")
def test_bad_statistics():
    z, y = torch.zeros(3, 4), LONG
    for function, extra in (
        (metrics.target_statistics, ()),
        (metrics.temperature_nll, ([1.0],)),
        (metrics.foreign_mass, (torch.zeros(4, dtype=torch.long),)),
    ):
        with pytest.raises(ArgumentTypeError, match=r"^logits"):
            function(LONG, y, *extra)
        with pytest.raises(ArgumentValueError, match=r"^logits"):
            function(torch.zeros(3, 0), y, *extra)
        with pytest.raises(ArgumentValueError, match=r"^target"):
            function(z, y - 100, *extra)
        with pytest.raises(ArgumentValueError, match=r"^target"):
            function(z, y[:2], *extra)
    with pytest.raises(ArgumentValueError, match=r"^group_of_token"):
        metrics.foreign_mass(z, y, LONG)
    with pytest.raises(ArgumentValueError, match=r"^temperatures"):
        metrics.temperature_nll(z, y, [-1.0])
    with pytest.raises(ArgumentValueError, match=r"^k"):
        metrics.top_k_probability(LONG, LONG, 0)
    with pytest.raises(ArgumentValueError, match=r"^equal: expected shape"):
        metrics.top_k_probability(LONG, LONG[:2], 1)
    with pytest.raises(ArgumentTypeError, match=r"^greater"):
        metrics.top_k_probability(z, LONG, 1)


def test_all_is_complete():
    assert sorted(metrics.__all__) == metrics.__all__
    assert all(getattr(metrics, name).__doc__ for name in metrics.__all__)
