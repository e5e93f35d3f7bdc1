from __future__ import annotations

import math

import torch

from elbowroom.diagnose import GradientNorms, GradientRatios
from elbowroom.study.paper import config_of
from elbowroom.study.paper.gradients import change, gradients_of, ratios_of
from tests.lab.toy import corpus
from tests.study.paper.made_up import record


def test_a_runs_ratios_are_sorted_by_frequency_within_a_language() -> None:
    texts = corpus()
    size = texts.vocab_size
    ratios = GradientRatios()
    for push in (1.0, 0.0):  # the second step has no marginalization
        pull = torch.arange(size, dtype=torch.float64)
        other = torch.full((size,), push, dtype=torch.float64)
        ratios.update(GradientNorms(context=pull, target=torch.zeros(size), marginalization=other))
    found = gradients_of(ratios, texts, 10)
    assert (found["every"], found["steps"]) == (10, 2)
    first, second = texts.train
    for stream, language in zip((first, second), texts.languages, strict=True):
        own = found["languages"][language]
        tokens = stream.tokens.tolist()
        counts = [tokens.count(texts.tokenizer.encode(t)[0]) for t in own["tokens"]]
        assert counts == sorted(counts, reverse=True)
        assert min(counts) > 0
        ids = [texts.tokenizer.encode(t)[0] + stream.offset for t in own["tokens"]]
        assert own["averages"] == [2.0 * i for i in ids]
        assert own["dropped"] == [float(i) for i in ids]
        assert own["replaced"] == [1.5 * i for i in ids]


def test_ratios_that_are_no_number_are_none() -> None:
    nothing = torch.zeros(corpus().vocab_size)
    ratios = GradientRatios()
    ratios.update(GradientNorms(context=nothing + 1, target=nothing, marginalization=nothing))
    for own in gradients_of(ratios, corpus(), 1)["languages"].values():
        assert {*own["averages"], *own["dropped"], *own["replaced"]} == {None}


def test_ratios_by_seed_are_of_the_same_tokens() -> None:
    def with_tokens(seed: int, tokens: str, values: list[float]) -> dict[str, object]:
        own = {"tokens": list(tokens), "averages": values}
        return record("gradients-ce", seed, gradients={"languages": {"lr": own}})

    listed = [record("gradients-ce", 9), with_tokens(0, "ab", [1.0, 2.0])]
    listed += [with_tokens(1, "ab", [3.0, 4.0]), with_tokens(2, "cd", [5.0, 6.0])]
    assert ratios_of(listed, "lr", "averages") == {0: [1.0, 2.0], 1: [3.0, 4.0]}
    assert ratios_of(listed, "hr", "averages") == {}
    assert change([None, 1.0], [1.0, 0.0]) is None


def test_the_runs_are_the_tables_with_a_measurement() -> None:
    for name, like, margin in (
        ("gradients-ce", "ce-tied", math.inf),
        ("gradients-2", "margin-2", 2),
    ):
        run, plain = config_of(name), config_of(like)
        assert run.training.gradients_every == 10
        assert plain.training.gradients_every is None
        assert run.loss == plain.loss
        assert run.loss.margin.start == margin
