"""Counting tokens: against loops, through windows, and as masks and bins."""

from __future__ import annotations

import math
from collections import deque
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentTypeError, ArgumentValueError


def counts_of(*values):
    return TokenCounts(torch.tensor(values))


def loop_counts(tokens, vocab_size):
    result = [0] * vocab_size
    for token in tokens:
        if token >= 0:
            result[token] += 1
    return result


def test_fixed_counts_answer_by_hand():
    counts = counts_of(6, 3, 1, 0)
    assert counts.vocab_size == 4
    assert counts.total == 10
    assert counts.mean() == 2.5
    torch.testing.assert_close(counts.frequency(), torch.tensor([0.6, 0.3, 0.1, 0.0]))
    expected = torch.tensor([7 / 14, 4 / 14, 2 / 14, 1 / 14]).log()
    torch.testing.assert_close(counts.log_prior(), expected)
    assert counts.log_prior(smoothing=0.0)[3] == -math.inf
    assert repr(counts) == "TokenCounts(4)"


def test_counts_are_copied_and_keep_float64():
    source = torch.tensor([0.5, 1.5], dtype=torch.float64)
    counts = TokenCounts(source)
    source.zero_()
    assert counts.counts.tolist() == [0.5, 1.5]
    assert counts.frequency().dtype == torch.float64
    assert TokenCounts(torch.ones(2, dtype=torch.bfloat16)).counts.dtype == torch.float32
    assert TokenCounts(torch.ones(2, dtype=torch.int16)).counts.dtype == torch.int64


def test_nothing_counted_yet():
    counts = counts_of(0, 0, 0)
    assert counts.frequency().tolist() == [0, 0, 0]
    torch.testing.assert_close(counts.log_prior(), torch.full((3,), -math.log(3)))
    assert counts.log_prior(smoothing=0.0).tolist() == [-math.inf] * 3
    assert counts.bins(4).tolist() == [0, 0, 0]
    assert counts.bins(4, spacing="mass").tolist() == [0, 0, 0]
    assert counts.rare(share=0.0).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint16])
def test_from_tokens_equals_a_loop(dtype):
    tokens = torch.randint(0, 7, (5, 11))
    counts = TokenCounts.from_tokens(tokens.to(dtype), 9)
    assert counts.counts.tolist() == loop_counts(tokens.flatten().tolist(), 9)


def test_from_tokens_skips_ignored_and_takes_nothing():
    counts = TokenCounts.from_tokens(torch.tensor([1, -100, 1]), 2)
    assert counts.counts.tolist() == [0, 2]
    counts = TokenCounts.from_tokens(torch.tensor([1, 0, 1]), 2, ignore_index=1)
    assert counts.counts.tolist() == [1, 0]
    assert TokenCounts.from_tokens(torch.zeros(0, dtype=torch.int64), 2).total == 0


def test_from_tokens_in_chunks(monkeypatch):
    monkeypatch.setattr("elbowroom.counts._CHUNK", 4)
    tokens = torch.randint(0, 5, (23,))
    counts = TokenCounts.from_tokens(tokens, 5)
    assert counts.counts.tolist() == loop_counts(tokens.tolist(), 5)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.lists(st.integers(-1, 4), max_size=6), min_size=1, max_size=10),
)
def test_the_window_equals_a_queue_of_steps(steps, batches):
    counts = TokenCounts.running(5, steps=steps)
    everything = TokenCounts.running(5, steps=None)
    window = deque(maxlen=steps)
    for batch in batches:
        target = torch.tensor(batch, dtype=torch.int64)
        counts.update(target, ignore_index=-1)
        everything.update(target, ignore_index=-1)
        window.append(batch)
        assert counts.counts.tolist() == loop_counts(chain(*window), 5)
        expected = counts.counts / len(window)
        torch.testing.assert_close(counts.rate(), expected)
    assert everything.counts.tolist() == loop_counts(chain(*batches), 5)


def test_a_run_counts_in_company_as_alone():
    together = TokenCounts.running(6, steps=2, runs=3)
    alone = [TokenCounts.running(6, steps=2) for _ in range(3)]
    for _ in range(4):
        target = torch.randint(0, 6, (3, 2, 5))
        together.update(target)
        for counts, row in zip(alone, target, strict=True):
            counts.update(row)
    assert torch.equal(together.counts, torch.stack([c.counts for c in alone]))
    assert torch.equal(together.rare(share=0.3), torch.stack([c.rare(share=0.3) for c in alone]))
    assert torch.equal(together.bins(3), torch.stack([c.bins(3) for c in alone]))
    group = torch.tensor([0, 0, 1, 1, 2, -1])
    rare = together.rare(group_of_token=group, language_share=0.3)
    each = [c.rare(group_of_token=group, language_share=0.3) for c in alone]
    assert torch.equal(rare, torch.stack(each))
    assert repr(together) == "TokenCounts(3, 6, running over 2 steps)"


def test_state_survives_saving_and_the_window_goes_on():
    counts = TokenCounts.running(4, steps=3)
    for batch in ([0, 0, 1], [2], [3, 3]):
        counts.update(torch.tensor(batch))
    restored = TokenCounts.running(4, steps=3)
    restored.load_state_dict(counts.state_dict())
    for c in (counts, restored):
        c.update(torch.tensor([1, 1, 1, 1]))
    assert restored.counts.tolist() == [0, 4, 1, 2]
    assert torch.equal(restored.counts, counts.counts)
    assert torch.equal(restored.rate(), counts.rate())


def test_state_of_other_steps_is_refused():
    counts = TokenCounts.running(4, steps=3)
    with pytest.raises(RuntimeError, match="ring"):
        TokenCounts.running(4, steps=2).load_state_dict(counts.state_dict())


def test_it_lives_in_a_model_and_casting_does_not_hurt_it():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), TokenCounts.running(3, steps=5))
    model[1].update(torch.tensor([0] * 300 + [1]))
    model.to(torch.bfloat16)
    assert model[0].weight.dtype == torch.bfloat16
    assert model[1].counts.tolist() == [300, 1, 0]
    fractions = torch.nn.Sequential(TokenCounts(torch.tensor([257.5])))
    assert fractions.half()[0].counts.tolist() == [257.5]
    assert model.to("meta")[1].counts.is_meta
    assert model.to("meta").to(torch.float16)[1].counts.is_meta
    assert "1.counts" in model.state_dict()


def test_rare_by_hand():
    counts = counts_of(50, 30, 10, 5, 5, 0)
    rare = counts.rare(at_most=5)
    assert rare.tolist() == [False, False, False, True, True, True]
    # 5 + 5 of 100 are equally rare: both fit into .10, neither into .09
    assert counts.rare(share=0.10).tolist() == [False, False, False, True, True, True]
    assert counts.rare(share=0.09).tolist() == [False, False, False, False, False, True]
    assert counts.rare(share=1.0).all()
    assert counts.rare(quantile=0.0).sum() == 0
    assert counts.rare(quantile=1 / 6).tolist() == [False] * 5 + [True]
    assert counts.rare(quantile=2 / 6).tolist() == [False] * 3 + [True] * 3  # a tie is kept whole
    assert counts.rare(quantile=1.0).all()


def test_a_share_that_rounds_down_still_includes_its_bound():
    assert 0.29 * 100 < 29
    assert counts_of(71, 29).rare(share=0.29).tolist() == [False, True]
    counts = TokenCounts(torch.arange(100))
    assert counts.rare(quantile=0.29).sum() == 29


def test_rare_by_language():
    counts = counts_of(60, 30, 6, 3, 1)
    language = torch.tensor([7, 7, 1000, 1000, -1])  # 90, 9 and 1 of 100
    rare = counts.rare(group_of_token=language, language_share=0.1)
    assert rare.tolist() == [False, False, True, True, False]
    assert not counts.rare(group_of_token=language, language_share=0.09).any()
    rare = counts.rare(group_of_token=language, groups=[7, -1])
    assert rare.tolist() == [True, True, False, False, False]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.floats(0, 1))
def test_rare_masks_are_as_promised(values, bound):
    counts = counts_of(*values)
    rare = counts.rare(share=bound)
    chosen, rest = counts.counts[rare], counts.counts[~rare]
    assert chosen.sum() <= bound * counts.total + 1e-9
    if chosen.numel() and rest.numel():
        assert chosen.max() < rest.min()
    rare = counts.rare(quantile=bound)
    assert rare.sum() >= math.floor(bound * len(values))


def test_bins_by_hand():
    counts = counts_of(1, 9, 10, 99, 100, 999, 1000, 0)
    assert counts.bins(3).tolist() == [0, 0, 1, 1, 2, 2, 2, 0]
    assert counts.bins(1).tolist() == [0] * 8
    assert counts_of(5, 5, 0).bins(4).tolist() == [0, 0, 0]
    # ascending 10, 20, 30, 40 of 100: centres at .05, .20, .45, .80
    assert counts_of(40, 10, 30, 20).bins(2, spacing="mass").tolist() == [1, 0, 0, 0]
    assert counts_of(40, 10, 30, 20).bins(4, spacing="mass").tolist() == [3, 0, 1, 0]
    assert counts_of(1, 1, 1, 1).bins(4, spacing="mass").tolist() == [2] * 4  # equal counts share


@pytest.mark.parametrize("spacing", ["log", "mass"])
def test_bins_grow_with_the_counts(spacing):
    counts = TokenCounts(torch.randint(0, 1000, (200,)))
    bins = counts.bins(10, spacing=spacing)
    assert bins.min() == 0
    assert bins.max() <= 9
    order = counts.counts.argsort()
    assert (bins[order].diff() >= 0).all()


BAD_ARGUMENTS = [
    (lambda: TokenCounts([1, 2]), ArgumentTypeError, "counts: expected a tensor"),
    (lambda: TokenCounts(torch.tensor([True])), ArgumentTypeError, "counts"),
    (lambda: TokenCounts(torch.tensor(1)), ArgumentValueError, "counts"),
    (lambda: TokenCounts(torch.zeros(0)), ArgumentValueError, "counts"),
    (lambda: counts_of(1, -1), ArgumentValueError, "counts: expected finite numbers"),
    (lambda: counts_of(math.nan), ArgumentValueError, "counts"),
    (lambda: counts_of(math.inf), ArgumentValueError, "counts"),
    (lambda: TokenCounts.from_tokens(torch.ones(2), 3), ArgumentTypeError, "tokens"),
    (lambda: TokenCounts.from_tokens(torch.tensor([3]), 3), ArgumentValueError, "tokens"),
    (lambda: TokenCounts.from_tokens(torch.tensor([-1]), 3), ArgumentValueError, "tokens"),
    (lambda: TokenCounts.from_tokens(torch.tensor([0]), 0), ArgumentValueError, "vocab_size"),
    (lambda: TokenCounts.running(0, steps=1), ArgumentValueError, "vocab_size"),
    (lambda: TokenCounts.running(3, steps=0), ArgumentValueError, "steps"),
    (lambda: TokenCounts.running(3, steps=1, runs=0), ArgumentValueError, "runs"),
    (lambda: counts_of(1).update(torch.tensor([0])), ArgumentTypeError, "running"),
    (lambda: counts_of(1).rate(), ArgumentTypeError, "running"),
    (lambda: counts_of(1).log_prior(smoothing=-1), ArgumentValueError, "smoothing"),
    (lambda: counts_of(1).rare(), ArgumentValueError, "exactly one of"),
    (lambda: counts_of(1).rare(at_most=1, share=0.1), ArgumentValueError, "at_most and share"),
    (lambda: counts_of(1).rare(at_most=-1), ArgumentValueError, "at_most"),
    (lambda: counts_of(1).rare(share=1.1), ArgumentValueError, "share"),
    (lambda: counts_of(1).rare(quantile=-0.1), ArgumentValueError, "quantile"),
    (lambda: counts_of(1).rare(groups=[0]), ArgumentValueError, "group_of_token"),
    (
        lambda: counts_of(1).rare(share=0.1, group_of_token=torch.tensor([0])),
        ArgumentValueError,
        "group_of_token",
    ),
    (
        lambda: counts_of(1).rare(groups=[0], group_of_token=torch.tensor([0, 1])),
        ArgumentValueError,
        "group_of_token",
    ),
    (
        lambda: counts_of(1).rare(language_share=2.0, group_of_token=torch.tensor([0])),
        ArgumentValueError,
        "language_share",
    ),
    (
        lambda: counts_of(1).rare(group_of_token=torch.tensor([0]), groups="0"),
        ArgumentTypeError,
        "groups: expected a sequence",
    ),
    (
        lambda: counts_of(1).rare(group_of_token=torch.tensor([0]), groups=["0"]),
        ArgumentTypeError,
        "groups: expected an integer",
    ),
    (lambda: counts_of(1).bins(0), ArgumentValueError, "k: expected"),
    (lambda: counts_of(1).bins(2, spacing="even"), ArgumentValueError, "spacing"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "error", "match"), BAD_ARGUMENTS)
def test_bad_arguments_are_named(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("target", "error"),
    [
        (torch.tensor([0.5]), ArgumentTypeError),
        (torch.tensor([[3], [0]]), ArgumentValueError),
        (torch.tensor([0]), ArgumentValueError),
        (torch.zeros(3, 1, dtype=torch.int64), ArgumentValueError),
        (torch.zeros(2, 1, dtype=torch.int64, device="meta"), ArgumentValueError),
    ],
)
def test_bad_targets_are_refused_before_anything_is_counted(target, error):
    counts = TokenCounts.running(3, steps=2, runs=2)
    with pytest.raises(error, match="target"):
        counts.update(target)
    assert counts.total.sum() == 0
    assert counts.seen == 0


@pytest.mark.gpu
def test_counts_are_the_same_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    here = TokenCounts.running(50, steps=3)
    there = TokenCounts.running(50, steps=3, device="cuda")
    for _ in range(5):
        target = torch.randint(0, 50, (4, 16))
        here.update(target)
        there.update(target.cuda())
    assert torch.equal(here.counts, there.counts.cpu())
    assert torch.equal(here.rare(share=0.2), there.rare(share=0.2).cpu())
    assert torch.equal(here.bins(4), there.bins(4).cpu())
