"""One line gives any causal LM our loss: the same numbers as by hand, and no logits."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import elbowroom as er
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.hf.patch import patch
from tests.hf.models import MODELS, T, V, batch, gradients, loss_and_gradients, model

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
names = pytest.mark.parametrize("name", MODELS)


def close(a, b):
    assert a[1].keys() == b[1].keys()
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@names
def test_plain_cross_entropy_is_the_models_own(name):
    made, given = model(name), batch()
    before = loss_and_gradients(made, **given)
    handle = er.patch(made, math.inf)
    close(loss_and_gradients(made, **given), before)
    assert (handle.fused, handle.materialised) == (1, 0)


def by_hand(made, given, margin, **options):
    """Compute the loss from the model's logits, which exist in evaluation mode."""
    logits = made.eval()(given["input_ids"]).logits
    made.train()
    target = torch.nn.functional.pad(given["labels"], (0, 1), value=-100)[:, 1:]
    loss = er.thresholded_cross_entropy(logits, target, margin, **options)
    loss.backward()
    return loss.detach(), gradients(made)


@names
def test_a_margin_masks_the_models_logits(name):
    made, given = model(name), batch()
    expected = by_hand(made, given, 0.7, z_loss=0.1, label_smoothing=0.1)
    loss = er.LinearThresholdedCrossEntropy(0.7, z_loss=0.1, label_smoothing=0.1)
    patch(made, loss)
    close(loss_and_gradients(made, **given), expected)


@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_the_losss_scale_goes_over_the_models(scale):
    made, given = model("granite"), batch()
    expected = by_hand(made, given, 0.7, logit_scale=scale)
    patch(made, er.LinearThresholdedCrossEntropy(0.7, logit_scale=scale))
    close(loss_and_gradients(made, **given), expected)


def largest_tensor(made, given) -> int:
    """Return the most elements of any tensor that autograd keeps from the forward pass."""
    sizes = [0]

    def pack(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        made(**given).loss.backward()
    made.zero_grad()
    return max(sizes)


def test_no_logits_are_kept():
    made, given = model("llama", vocab_size=4001), batch()
    logits = 2 * T * 4001
    before = largest_tensor(made, given)
    patch(made, 1.0)
    after = largest_tensor(made, given)
    assert before >= logits
    assert after == 4001 * 16  # the head's weight


def test_removed_is_as_before():
    made, given = model("gemma"), batch()
    before, attributes = loss_and_gradients(made, **given), set(vars(made))
    handle = patch(made, 1.0)
    assert loss_and_gradients(made, **given)[0] != before[0]
    handle.remove()
    handle.remove()
    after = loss_and_gradients(made, **given)
    assert after[0] == before[0]
    assert set(vars(made)) == attributes
    assert "forward" not in vars(made.lm_head)
    patch(made, 1.0).remove()


def test_a_loss_that_was_given_to_the_model_comes_back():
    made = model("llama")
    made.loss_function = own = lambda logits, labels, vocab_size, **_: logits.sum()
    patch(made, 1.0).remove()
    assert made.loss_function is own


def test_evaluation_is_the_models_own():
    made, given = model("gemma"), batch()
    made.eval()
    before = made(**given)
    handle = patch(made, 0.5)
    after = made(**given)
    assert torch.equal(before.loss, after.loss)
    assert torch.equal(before.logits, after.logits)
    assert handle.fused == handle.materialised == 0
    assert torch.equal(made(given["input_ids"]).logits, before.logits)


def test_generation_is_the_models_own():
    made = model("llama").eval()
    ids = batch()["input_ids"]
    before = made.generate(ids, max_new_tokens=4, do_sample=False)
    patch(made, 0.5)
    assert torch.equal(made.generate(ids, max_new_tokens=4, do_sample=False), before)


def test_parts_of_a_batch_with_the_number_of_all_items():
    made, given = model("llama"), batch()
    whole = by_hand(made, given, 0.7)
    patch(made, 0.7)
    items = (given["labels"][:, 1:] != -100).sum()
    losses = []
    for i in range(2):
        part = {k: x[i : i + 1] for k, x in given.items()}
        loss = made(**part, num_items_in_batch=items if i else int(items)).loss
        loss.backward()
        losses.append(loss.detach())
    close((sum(losses), gradients(made)), whole)


def test_labels_that_were_shifted_already():
    made, given = model("llama"), batch()
    handle = patch(made, 0.7)
    expected = loss_and_gradients(made, **given)
    shifted = torch.nn.functional.pad(given["labels"], (0, 1), value=-100)[:, 1:]
    close(loss_and_gradients(made, **given, shift_labels=shifted), expected)
    close(loss_and_gradients(made, **given, shift_labels=shifted.reshape(-1)), expected)
    assert handle.fused == 3


def test_logits_that_are_used_otherwise_exist_and_give_the_same_loss():
    made, given = model("gemma"), batch()
    expected = by_hand(made, given, 0.7)
    handle = patch(made, 0.7)
    seen = []
    inner = made.loss_function

    def watching(logits, *args, **kwargs):
        seen.append((logits + 0).detach())  # what a model does that changes its logits
        return inner(logits, *args, **kwargs)

    made.loss_function = watching
    close(loss_and_gradients(made, **given), expected)
    assert (handle.fused, handle.materialised) == (0, 1)
    torch.testing.assert_close(seen[0], made.eval()(given["input_ids"]).logits)


def test_logits_in_training_without_labels():
    made, given = model("gemma"), batch()
    expected = made(given["input_ids"]).logits
    patch(made, 0.7)
    logits = made(given["input_ids"]).logits
    assert torch.equal(logits[:, -1], expected[:, -1])
    assert logits.shape == expected.shape
    assert logits.dtype == torch.float32


def test_an_annealed_margin_follows_progress():
    made, given = model("qwen"), batch()
    handle = patch(made, er.margins.Annealed(0.2, 4.0))
    found = []
    for share in (0.0, 0.5, torch.tensor(1.0)):
        handle.progress(share)
        found.append(loss_and_gradients(made, **given)[0].item())
    handle.remove()
    expected = [by_hand(made, given, margin)[0].item() for margin in (0.2, 2.1, 4.0)]
    assert found == pytest.approx(expected, rel=1e-5)


def test_margins_by_norms_see_the_head():
    made, given = model("llama"), batch()
    rule = er.margins.ByNorms(0.05)
    hidden = made.model(given["input_ids"]).last_hidden_state
    target = torch.nn.functional.pad(given["labels"], (0, 1), value=-100)[:, 1:]
    loss = er.linear_thresholded_cross_entropy(hidden, made.lm_head.weight, target, rule)
    loss.backward()
    expected = loss.detach(), gradients(made)
    patch(made, rule)
    close(loss_and_gradients(made, **given), expected)


def test_autocast_to_bfloat16():
    made, given = model("llama"), batch()
    patch(made, math.inf)
    exact = loss_and_gradients(made, **given)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss = made(**given).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=2e-2)


def test_tied_weights_collect_both_gradients():
    given = batch()
    made = model("llama", tie_word_embeddings=True)
    assert made.lm_head.weight is made.model.embed_tokens.weight
    expected = by_hand(made, given, 0.7)
    patch(made, 0.7)
    close(loss_and_gradients(made, **given), expected)


def test_compiled():
    """In a process of its own, without the checker of shapes, which cannot be traced."""
    file = Path(__file__).with_name("compiled.py")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--noconftest", str(file)], capture_output=True, text=True, cwd=file.parents[2]
    )
    assert done.returncode == 0, done.stdout[-5000:]


def test_wrappers_are_looked_through():
    made, given = model("llama"), batch()

    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = made

        def get_base_model(self):
            return made

    handle = patch(torch.compile(Adapted(), backend="eager"), 1.0)
    made(**given)
    assert handle.fused == 1


# What it refuses


class Quantised(nn.Linear):
    def forward(self, x):
        return super().forward(x.round())


def test_what_cannot_be_patched():
    with pytest.raises(ArgumentTypeError, match="model: expected a causal LM"):
        patch(nn.Linear(3, 4), 1.0)
    made = model("llama")
    made.lm_head = Quantised(16, V)
    with pytest.raises(ArgumentTypeError, match=r"plain torch\.nn\.Linear, got a Quantised; leave"):
        patch(made, 1.0)


def test_a_second_patch():
    made = model("llama")
    handle = patch(made, 1.0)
    with pytest.raises(ArgumentValueError, match="a patched one; call remove"):
        patch(made, 2.0)
    handle.remove()
    patch(made, 2.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stats": True}, "loss.stats: expected False, got True"),
        ({"reduction": "none"}, "loss.reduction: expected 'mean', got none"),
        ({"shift": 1}, "loss.shift: expected 0, got 1"),
        ({"ignore_index": 0}, "loss.ignore_index: expected -100, got 0"),
    ],
)
def test_losses_that_a_model_cannot_use(options, words):
    with pytest.raises(ArgumentValueError, match=words):
        patch(model("llama"), er.LinearThresholdedCrossEntropy(1.0, **options))


def test_other_bad_input():
    with pytest.raises(ArgumentValueError, match="margin: expected a number, at least 0"):
        patch(model("llama"), -1.0)
    made, given = model("gemma"), batch()
    handle = patch(made, er.LinearThresholdedCrossEntropy(1.0, softcap=3.0))
    with pytest.raises(
        ArgumentValueError, match=r"softcap: expected None: the model caps, got 3\.0"
    ):
        made(**given)
    handle.remove()
    patch(made, 1.0)
    with pytest.raises(ArgumentTypeError, match="labels: expected a tensor"):
        made.loss_function(made(given["input_ids"]).logits)
