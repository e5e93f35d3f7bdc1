"""Patched models compiled in one graph; `test_patch` runs this in a process of its own."""

from __future__ import annotations

import pytest
import torch

from elbowroom.hf.patch import patch
from tests.hf.models import batch, gradients, loss_and_gradients, model

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own


@pytest.mark.parametrize("name", ["gpt2", "gemma"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_in_one_graph(backend, name):
    torch.compiler.reset()
    made, given = model(name), batch()
    handle = patch(made, 0.7)
    expected = loss_and_gradients(made, **given)
    compiled = torch.compile(made, fullgraph=True, backend=backend)
    loss = compiled(**given).loss
    loss.backward()
    torch.testing.assert_close((loss.detach(), gradients(made)), expected, rtol=1e-4, atol=1e-6)
    assert handle.materialised == 0
