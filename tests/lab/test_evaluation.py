"""The judge against a loop over tokens, windows and languages, in float64."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab import evaluation
from elbowroom.lab.evaluation import EvaluationConfig, Judge, numbers, twins
from elbowroom.lab.tokens import Stream
from elbowroom.metrics import Evaluation
from tests.lab.judging import CONFIG, SCALES, T, bins_of, by_hand, close, isotropies, model
from tests.lab.toy import corpus


def judge(pair=True, of=None, config=CONFIG, scales=SCALES, texts=None, bins=True):
    of = model(pair) if of is None else of
    found = bins_of(pair) if bins else None
    return Judge(texts or corpus(pair), of, scales[: of.runs], config, found)


@pytest.mark.parametrize(
    ("pair", "options"),
    [(True, {}), (False, {"tied": False, "unigram_bias": True})],
    ids=["a pair", "two texts, a bias"],
)
def test_everything_as_by_hand(pair, options):
    texts, of = corpus(pair), model(pair, **options)
    records = judge(pair, of).full()
    json.dumps(records, allow_nan=False)
    for r, record in enumerate(records):
        assert record["temperatures"] == CONFIG.sweep()
        rows = of.head[r].detach().double().numpy()
        for i, language in enumerate(texts.languages):
            scores = record["languages"][language]
            symmetric, either = isotropies(rows[texts.group_of_token == i])
            assert scores.pop("isotropy_signfree") == pytest.approx(symmetric, rel=1e-4)
            paper = scores.pop("isotropy")
            assert np.abs(either / paper - 1).min() < 1e-4
        close(record["languages"], by_hand(texts, of, r, bins_of(pair)), f"run {r}")


def test_a_twin_is_found_by_its_embedding():
    of, size = model(), corpus().vocab_size // 2
    with torch.no_grad():  # the second run learned all translations, the third all but two
        of.head[1, size:] = of.head[1, :size] * 3
        of.head[2, size:] = of.head[2, :size]
        of.head[2, [size, size + 1]] = of.head[2, [size + 1, size]]
    scores = [record["translation"] for record in judge(of=of).full()]
    unit = F.normalize(of.head[0].detach().double(), dim=-1)
    nearest = (unit[size:] @ unit[:size].T).argmax(1)
    share = (nearest == torch.arange(size)).double().mean().item()
    assert scores == pytest.approx([share, 1.0, 1 - 2 / size])


def test_only_a_pair_has_twins():
    texts = corpus()
    size = texts.vocab_size // 2
    assert torch.equal(twins(texts), torch.arange(size)[:, None] + torch.tensor([size, 0]))
    assert twins(corpus(pair=False)) is None
    assert twins(replace(texts, train=texts.train[:1])) is None
    assert "translation" not in judge(pair=False).full()[0]


# Which windows


@pytest.mark.parametrize("windows", [2, 5, 6, 15, 38])
def test_a_few_windows_lie_evenly_over_the_text(windows):
    config = replace(CONFIG, windows=windows)
    of = model(pair=False, runs=1)
    (record,) = judge(False, of, config).full()
    expected = by_hand(corpus(pair=False), of, 0, bins_of(False), windows)
    for language in ("en", "de"):
        scores = record["languages"][language]
        for name in ("isotropy", "isotropy_signfree"):
            scores.pop(name)
        close(scores, expected[language])


def test_more_windows_than_there_are():
    of = model(runs=1)
    everything = judge(of=of).full()
    for windows in (39, 40, 10**6):
        assert judge(of=of, config=replace(CONFIG, windows=windows)).full() == everything


def short(*lengths):
    """Return the toy texts with so little text held out."""
    texts = corpus(pair=False)
    held_out = [s.tokens[:n] for s, n in zip(texts.validation, lengths, strict=True)]
    return replace(texts, validation=tuple(Stream(tokens=tokens) for tokens in held_out))


def test_one_window_has_no_other_half():
    texts, of = short(9, 17), model(pair=False, runs=1)
    (record,) = judge(False, of, texts=texts).full()
    one, two = (record["languages"][name] for name in texts.languages)
    assert (one["tokens"], two["tokens"]) == (8, 16)
    assert "fitted_ppl" not in one
    assert "fitted_temperature" not in one
    assert one["best_ppl"] <= one["ppl"]
    assert two["fitted_ppl"] >= two["best_ppl"]


def test_the_last_window_needs_a_next_token():
    for length, windows in ((16, 1), (17, 2), (24, 2), (25, 3)):
        (record,) = judge(False, model(False, runs=1), texts=short(length, length)).full()
        assert record["languages"]["de"]["tokens"] == 8 * windows
    with pytest.raises(ArgumentValueError, match="context: expected more than 8 tokens"):
        judge(False, texts=short(8, 20))


@pytest.mark.parametrize("windows", [1, 4, 1000])
def test_a_quick_look(windows):
    of = model()
    found = judge(of=of).quick(windows)
    assert len(found) == 3
    for r, one in enumerate(found):
        expected = by_hand(corpus(), of, r, bins_of(), windows)
        for language in ("hr", "lr"):
            names = ("nll", "ppl", "accuracy")
            close({k: one[language][k] for k in names}, {k: expected[language][k] for k in names})


def test_a_quick_look_at_translations():
    of, size = model(), corpus().vocab_size // 2
    with torch.no_grad():  # the second run learned all of them
        of.head[1, size:] = of.head[1, :size] * 3
    looks, records = judge(of=of).quick(2), judge(of=of).full()
    assert [one["lr"]["translation"] for one in looks] == [r["translation"] for r in records]
    assert looks[1]["lr"]["translation"] == 1.0
    assert "translation" not in looks[1]["hr"]
    for one in judge(pair=False).quick(2):
        assert all("translation" not in scores for scores in one.values())


# Company


def test_runs_as_each_alone():
    of = model(unigram_bias=True)
    together = judge(of=of).full()
    quick = judge(of=of).quick(3)
    for r in range(3):
        alone = judge(of=of.select([r]), scales=SCALES[r:])
        close(together[r], alone.full()[0])
        close(quick[r], alone.quick(3)[0])


def test_batches_of_any_size_are_the_same(monkeypatch):
    of = model()
    whole = judge(of=of).full()
    monkeypatch.setattr(evaluation, "AT_ONCE", 3 * 8 * T * 4)  # four windows
    batches, ids = [], of.forward
    monkeypatch.setattr(of, "forward", lambda x: batches.append(x.shape) or ids(x))
    for mine, theirs in zip(judge(of=of).full(), whole, strict=True):
        close(mine, theirs)
    assert {shape[1] for shape in batches} == {4, 3}
    monkeypatch.setattr(evaluation, "AT_ONCE", 1)
    batches.clear()
    judge(of=of).quick(2)
    assert batches == [(3, 1, T)] * 4


def test_progress_counts_windows():
    seen = []
    judge(pair=False).full(lambda *done: seen.append(done))
    assert seen[-1] == (39 + 15, 39 + 15)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    seen.clear()
    judge(False, config=replace(CONFIG, windows=20)).full(lambda *done: seen.append(done))
    assert seen[-1] == (20 + 15, 20 + 15)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_run_that_is_not_finite_stands_alone(bad):
    healthy, of = model(), model()
    with torch.no_grad():
        of.embedding[1, 3, 2] = bad
        of.blocks[0].mlp.up.weight[1] = bad
    records, expected = judge(of=of).full(), judge(of=healthy).full()
    json.dumps(records, allow_nan=False)
    for r in (0, 2):
        close(records[r], expected[r])
    for scores in records[1]["languages"].values():
        assert scores["tokens"] == 39 * T
        assert not {"ppl", "best_ppl", "fitted_ppl"} & scores.keys()
        assert scores["isotropy"] is scores["isotropy_signfree"] is None
    assert records[1]["translation"] is None
    quick = judge(of=of).quick(4)
    lost_scores = dict.fromkeys(("nll", "ppl", "accuracy", "translation"))
    assert quick[1]["lr"] == lost_scores
    close(quick[0], judge(of=healthy).quick(4)[0])


def test_weights_whose_squares_are_not_finite():
    of = model(tied=False)
    with torch.no_grad():
        of.head[1, 3, 2] = 1e25
    records = judge(of=of).full()
    json.dumps(records, allow_nan=False)
    found = [record["languages"]["hr"]["isotropy"] for record in records]
    assert found[1] is None
    assert 0 < found[0] < 1
    lost = records[1]["languages"]["hr"]
    assert lost["nll"] > 1e10
    assert not {"ppl", "fitted_ppl"} & lost.keys()  # beyond what a number can hold


# What is left out


def test_without_bins():
    assert all("bins" not in s for s in judge(bins=False).full()[0]["languages"].values())


def test_a_bin_that_a_language_does_not_use():
    texts = corpus()
    bins = torch.from_numpy(texts.group_of_token)
    (record,) = Judge(texts, model(runs=1), [1.0], CONFIG, bins).full()
    whole, other = (record["languages"]["lr"]["bins"][b] for b in (1, 0))
    assert other == {"tokens": 0}
    assert whole["nll"] == pytest.approx(record["languages"]["lr"]["nll"])


def test_numbers_without_a_sweep():
    measured = Evaluation(4, temperatures=None, runs=2)
    measured.update_logits(torch.zeros(2, 3, 4), torch.tensor([[0, 3, 1], [2, 2, 2]]))
    plain = numbers(measured.result(), 1)
    assert (plain["tokens"], plain["rank"]) == (3, 2.5)
    assert plain["ppl"] == pytest.approx(4)
    absent = {"best_ppl", "best_temperature", "nll_by_temperature", "bits_per_byte", "foreign_mass"}
    assert not absent & plain.keys()


def test_a_language_without_tokens_of_its_own():
    texts = corpus(pair=False)
    groups = np.full(texts.vocab_size, -1)
    groups[3] = 1
    (record,) = judge(
        False, model(False, runs=1), texts=replace(texts, group_of_token=groups)
    ).full()
    for scores in record["languages"].values():
        assert "isotropy" not in scores
    english = replace(texts, group_of_token=np.full(texts.vocab_size, -1))
    (record,) = judge(False, model(False, runs=1), texts=english).full()
    assert "foreign_mass" not in record["languages"]["en"]


def test_judging_changes_nothing():
    of = model()
    before = {name: x.clone() for name, x in of.state_dict().items()}
    judge(of=of).full()
    assert of.training
    assert all(torch.equal(before[name], x) for name, x in of.state_dict().items())
    assert all(p.grad is None for p in of.parameters())


# The configuration


def test_the_sweep():
    assert EvaluationConfig().sweep() == [i / 100 for i in range(1, 201)]  # the paper's
    assert EvaluationConfig(temperatures=4).sweep() == [0.5, 1.0, 1.5, 2.0]
    assert EvaluationConfig(temperatures=3).sweep() == [0.666667, 1.0, 1.333333, 2.0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": 1}, "windows: expected an integer, at least 2, got 1"),
        ({"windows": 2.5}, "windows: expected an integer"),
        ({"temperatures": 1}, "temperatures: expected an integer, at least 2, got 1"),
        ({"bins": -1}, "bins: expected an integer, at least 0, got -1"),
        ({"bins": True}, "bins: expected an integer"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match=f"^{message}"):
        EvaluationConfig(**options)
