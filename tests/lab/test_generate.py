"""Sampling: by hand-computed filters, by frequencies, and the same whatever the company."""

from __future__ import annotations

import math

import pytest
import torch

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.generate import Sampling, generate
from elbowroom.lab.model import GPT, ModelConfig

CONFIG = ModelConfig(vocab_size=7, layers=1, heads=1, width=4, context=3, init_std=1.0)
P = torch.tensor([0.1, 0.4, 0.2, 0.3])


def texts(model, ids, **options):
    return torch.stack(list(generate(model, ids, **({"steps": 8} | options))), -1)


def drawn(n=2000, **options):
    """Draw with evenly spread numbers; return each token's share."""
    u = (torch.arange(n) / n)[None]
    tokens = Sampling(**options).draw(P.log().expand(1, n, 4), u)
    return torch.bincount(tokens[0], minlength=4) / n


def close(shares, expected):
    torch.testing.assert_close(shares, torch.tensor(expected), rtol=0, atol=2e-3)


def test_shares_are_probabilities():
    close(drawn(), P.tolist())
    squared = P.square() / P.square().sum()
    close(drawn(temperature=0.5), squared.tolist())
    close(drawn(logit_scale=2.0), squared.tolist())


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.5}, [1, 3]),
        ({"top_p": 0.95}, [0, 1, 2, 3]),
        ({"top_p": 1.0}, [0, 1, 2, 3]),
        ({"min_p": 0.6}, [1, 3]),
        ({"min_p": 1.0}, [1]),
        ({"min_p": 0.0}, [0, 1, 2, 3]),
        ({"min_p": 0.3, "top_p": 0.8, "top_k": 3}, [1, 2, 3]),
        ({"temperature": 0.0}, [1]),
    ],
)
def test_filters(options, kept):
    expected = torch.zeros(4)
    expected[kept] = P[kept] / P[kept].sum()
    expected = torch.eye(4)[1] if options == {"temperature": 0.0} else expected
    close(drawn(**options), expected.tolist())


def test_ends_of_the_range_are_safe():
    logits = torch.tensor([[[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]] * 3)
    u = torch.tensor([[0.0], [0.5], [1 - 2**-24]])
    assert Sampling().draw(logits, u).tolist() == [[1], [3], [3]]
    assert Sampling().draw(logits * math.nan, u).max() < 5


def test_tokens_come_from_the_models_logits():
    model = GPT(CONFIG, [0, 1])
    ids = torch.randint(7, (2, 2, 2))
    expected = ids
    for _ in range(8):
        hidden = model(expected[..., -3:])[:, :, -1]
        token = torch.einsum("rbd,rvd->rbv", hidden, model.head).argmax(-1)
        expected = torch.cat((expected, token[..., None]), -1)
    assert torch.equal(texts(model, ids, temperature=0.0), expected[..., 2:])


def test_the_unigram_bias_counts():
    model = GPT(ModelConfig(vocab_size=7, layers=1, width=4, unigram_bias=True), [0])
    with torch.no_grad():
        model.bias[0, 5] = 100.0
    assert (texts(model, torch.zeros(1, 1, 1, dtype=torch.long)) == 5).all()


def test_a_text_is_the_same_whatever_the_company():
    model = GPT(CONFIG, [0, 1, 2])
    ids = torch.randint(7, (3, 2, 5))
    seeds = torch.tensor([4, 5, 4])
    together = texts(model, ids, seed=seeds)
    assert together.shape == (3, 2, 8)
    assert torch.equal(together, texts(model, ids, seed=seeds))
    assert not torch.equal(together, texts(model, ids, seed=seeds + 9))
    for r in range(3):
        alone = texts(model.select([r]), ids[r : r + 1], seed=int(seeds[r]))
        assert torch.equal(together[r], alone[0])
        assert torch.equal(together[r, :1], texts(model, ids[:, :1], seed=seeds)[r])
    assert torch.equal(together[..., :4], texts(model, ids, seed=seeds, steps=4))


def test_it_streams_and_builds_no_graph():
    model = GPT(CONFIG, [0])
    prompt = torch.zeros(1, 1, 1, dtype=torch.long)
    stream = generate(model, prompt, steps=10**9)
    assert next(stream).shape == (1, 1)
    assert torch.is_grad_enabled()
    assert list(generate(model, prompt, steps=0)) == []


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "name", "kind"),
    [
        ({"steps": -1}, "steps", ArgumentValueError),
        ({"temperature": -1.0}, "temperature", ArgumentValueError),
        ({"logit_scale": 0.0}, "logit_scale", ArgumentValueError),
        ({"top_p": 0.0}, "top_p", ArgumentValueError),
        ({"top_p": 1.1}, "top_p", ArgumentValueError),
        ({"top_k": 0}, "top_k", ArgumentValueError),
        ({"min_p": -0.1}, "min_p", ArgumentValueError),
        ({"seed": 0.5}, "seed", ArgumentTypeError),
        ({"seed": torch.zeros(2, dtype=torch.long)}, "seed", ArgumentValueError),
        ({"ids": torch.zeros(1, 1, 1)}, "ids", ArgumentTypeError),
        ({"ids": torch.zeros(1, 1, 0, dtype=torch.long)}, "ids", ArgumentValueError),
        ({"ids": torch.zeros(2, 1, 1, dtype=torch.long)}, "ids", ArgumentValueError),
        ({"ids": torch.zeros(1, 1, dtype=torch.long)}, "ids", ArgumentValueError),
    ],
)
def test_bad_arguments_are_refused_at_once(options, name, kind):
    given = {"ids": torch.zeros(1, 1, 1, dtype=torch.long), "steps": 1} | options
    with pytest.raises(kind, match=f"^{name}: expected"):
        generate(GPT(CONFIG, [0]), given.pop("ids"), **given)
