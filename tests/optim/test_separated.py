from __future__ import annotations

import pytest
import torch
from torch import nn

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.optim import RowAdamW, SeparatedEmbedding

START = torch.linspace(-1, 1, 24, dtype=torch.float64).view(8, 3)
BATCHES = [[0, 1], [2, 2], [0, 3], [5, 1], [0, 0], [2, 4]]


def train(embedding, optimizer):
    """A tied model in small: the head sees only the rows that came in."""
    for batch in BATCHES:
        ids = torch.tensor(batch)
        optimizer.zero_grad()
        logits = embedding(ids) @ embedding.weight[ids].T
        logits.square().sum().backward()
        optimizer.step()
    return embedding.weight.detach()


def dense():
    return nn.Embedding(8, 3, _weight=START.clone())


def test_under_adamw_it_is_a_dense_embedding():
    separated, plain = SeparatedEmbedding.from_weight(START), dense()
    options = {"lr": 0.05, "weight_decay": 0.1}
    got = train(separated, torch.optim.AdamW(separated.parameters(), **options))
    expected = train(plain, torch.optim.AdamW(plain.parameters(), **options))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    assert (got[7] != START[7]).all()  # never used, and decayed all the same


def test_row_adamw_is_what_skips():
    plain = dense()
    optimizer = RowAdamW(plain.parameters(), lr=0.05, weight_decay=0.1, rows=[plain.weight])
    got = train(plain, optimizer)
    separated = SeparatedEmbedding.from_weight(START)
    options = {"lr": 0.05, "weight_decay": 0.1}
    published = train(separated, torch.optim.AdamW(separated.parameters(), **options))
    assert torch.equal(got[6:], START[6:])
    assert (got - published).abs().amax() > 1e-3


def test_gradients_are_zeros_and_not_missing():
    embedding = SeparatedEmbedding(4, 2)
    embedding(torch.tensor([[1], [3]])).sum().backward()
    assert [row.grad.tolist() for row in embedding.rows] == [[0, 0], [1, 1], [0, 0], [1, 1]]


def test_shapes_and_start():
    embedding = SeparatedEmbedding(1000, 16, dtype=torch.float64)
    assert embedding.weight.shape == (1000, 16)
    assert embedding.weight.dtype == torch.float64
    assert embedding(torch.zeros(2, 0, 3, dtype=torch.int32)).shape == (2, 0, 3, 16)
    assert abs(float(embedding.weight.detach().std()) - 1) < 0.05
    assert len(list(embedding.parameters())) == 1000
    assert SeparatedEmbedding(2, 3, device="meta").weight.is_meta


@pytest.mark.usefixtures("unchecked")
def test_bad_input():
    with pytest.raises(ArgumentValueError, match=r"^num_embeddings: "):
        SeparatedEmbedding(0, 2)
    with pytest.raises(ArgumentTypeError, match=r"^embedding_dim: "):
        SeparatedEmbedding(2, 2.5)
    with pytest.raises(ArgumentValueError, match=r"^weight: expected \[V, D\]"):
        SeparatedEmbedding.from_weight(torch.ones(2))
    with pytest.raises(ArgumentTypeError, match=r"^weight: "):
        SeparatedEmbedding.from_weight(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(ArgumentTypeError, match=r"^ids: "):
        SeparatedEmbedding(2, 2)(torch.ones(2))
