"""Each way to compute the loss, so that one test covers them all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import elbowroom as er
from elbowroom.losses import chunked, products

Loss = Callable[..., Tensor]
CHUNKED = {
    "dense": {"LIST_SHARE": 0.0},  # blocks stay matrices
    "listed": {"LIST_SHARE": 1.0, "BLOCK": 12, "STRIP": 12},  # few tokens a block, all listed
    "mixed": {"LIST_SHARE": 0.5, "BLOCK": 24, "STRIP": 12, "FEW": 1},  # some tokens are listed
}


@pytest.fixture(params=["reference", *CHUNKED])
def linear(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Loss:
    """`linear_thresholded_cross_entropy` of each backend and layout."""
    for name, value in CHUNKED.get(request.param, {}).items():
        monkeypatch.setattr(chunked, name, value)
    monkeypatch.setattr(products, "LIST_ROWS", 3)
    backend = "chunked" if request.param in CHUNKED else "reference"
    return partial(er.linear_thresholded_cross_entropy, backend=backend)


@pytest.fixture(params=["logits", "reference", *CHUNKED])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Loss:
    """A loss of logits ``[..., V]``: the linear ones have the identity as their weight."""
    if request.param == "logits":
        return er.thresholded_cross_entropy
    linear = partial(er.linear_thresholded_cross_entropy, backend="reference")
    if request.param in CHUNKED:
        linear = partial(er.linear_thresholded_cross_entropy, backend="chunked")
        for name, value in CHUNKED[request.param].items():
            monkeypatch.setattr(chunked, name, value)

    def of_logits(z: Tensor, *arguments: object, **options: object) -> Tensor:
        return linear(z, torch.eye(z.shape[-1], dtype=z.dtype), *arguments, **options)

    return of_logits
