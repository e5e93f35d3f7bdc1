"""The GPT with a run dimension, against plain single models; its start, its state, its company."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.model import GPT, ModelConfig, layers, products
from elbowroom.lab.model.products import product
from elbowroom.lab.random import normal, stream
from tests.lab.reference import Reference, theirs

SMALL = {"vocab_size": 11, "layers": 2, "heads": 2, "width": 8, "context": 6}
SWITCHES = {
    "norm": ("layer", "rms"),
    "position": ("learned", "rotary"),
    "mlp": ("gelu", "swiglu"),
    "tied": (True, False),
    "unigram_bias": (False, True),
    "linear_bias": (False, True),
}
COMBINATIONS = [
    dict(zip(SWITCHES, values, strict=True)) for values in itertools.product(*SWITCHES.values())
]


def small(runs=3, dtype=torch.float64, **options):
    model = GPT(ModelConfig(**(SMALL | options)), range(runs)).to(dtype)
    with torch.no_grad():  # away from the start, where gains are 1 and biases 0
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    return model


def logits(model, ids):
    z = torch.einsum("rbtd,rvd->rbtv", model(ids), model.head)
    return z if model.bias is None else z + model.bias[:, None, None]


def losses(model, ids):
    z = logits(model, ids[..., :-1])
    nll = F.cross_entropy(z.flatten(0, 2), ids[..., 1:].flatten(), reduction="none")
    return nll.view(ids.shape[0], -1).mean(1)


@pytest.mark.parametrize("options", COMBINATIONS, ids=lambda o: "-".join(map(str, o.values())))
def test_every_run_is_a_plain_model(options):
    model = small(runs=2, **options)
    ids = torch.randint(11, (2, 3, 6))
    hidden = model(ids)
    total = losses(model, ids).sum()
    gradients = dict(zip(dict(model.named_parameters()), grads(total, model), strict=True))
    for r in range(2):
        plain = Reference(model.config, model.run_state(r))
        torch.testing.assert_close(hidden[r], plain(ids[r])[0], rtol=1e-6, atol=1e-6)
        z = plain(ids[r, :, :-1])[1]
        F.cross_entropy(z.flatten(0, 1), ids[r, :, 1:].flatten()).backward()
        expected = dict(plain.named_parameters())
        for name, gradient in gradients.items():
            g = expected[theirs(name)].grad
            transposed = ".attention." in name or ".mlp." in name
            g = g.T if transposed and g.ndim == 2 else g
            torch.testing.assert_close(gradient[r], g, rtol=1e-6, atol=1e-7)


def grads(value, model):
    return torch.autograd.grad(value, list(model.parameters()))


@pytest.mark.parametrize("options", [{}, SWITCHES | {k: v[1] for k, v in SWITCHES.items()}])
def test_a_run_alone_and_in_company(options):
    model = small(dtype=torch.float32, **options)
    ids = torch.randint(11, (3, 4, 6))
    together = grads(losses(model, ids).sum(), model)
    for r in range(3):
        alone = model.select([r])
        torch.testing.assert_close(model(ids)[r], alone(ids[r : r + 1])[0], rtol=0, atol=1e-6)
        own = grads(losses(alone, ids[r : r + 1]).sum(), alone)
        for a, b in zip(together, own, strict=True):
            torch.testing.assert_close(a[r], b[0], rtol=0, atol=1e-6)


def test_a_tied_weight_has_gradient_from_both_ends():
    model = small(runs=1)
    ids = torch.randint(11, (1, 2, 6))
    hidden = model(ids)
    assert model.head is model.embedding
    (both,) = torch.autograd.grad((hidden @ model.head.mT).logsumexp(-1).sum(), [model.head])
    fixed = model.head.detach()
    (lower,) = torch.autograd.grad((model(ids) @ fixed.mT).logsumexp(-1).sum(), [model.embedding])
    upper = fixed.clone().requires_grad_()
    (above,) = torch.autograd.grad((hidden.detach() @ upper.mT).logsumexp(-1).sum(), [upper])
    torch.testing.assert_close(both, lower + above)


def test_the_future_is_not_seen():
    for position in ("learned", "rotary"):
        model = small(position=position)
        ids = torch.randint(11, (3, 2, 6))
        other = ids.clone()
        other[..., 4:] = (other[..., 4:] + 1) % 11
        torch.testing.assert_close(model(ids)[:, :, :4], model(other)[:, :, :4])
        torch.testing.assert_close(model(ids)[:, :, :3], model(ids[..., :3]))  # nor the length


def test_the_papers_model():
    model = GPT(ModelConfig(), [0])
    assert model.size == 804_224
    assert sum(p.numel() for p in model.parameters()) == 804_224 + 64 * 128
    assert (model.runs, model.vocab_size, model.bias) == (1, 130, None)
    state = model.run_state(0)
    for name, p in state.items():
        if p.ndim == 1:
            assert torch.equal(p, torch.ones(128))
            continue
        std = 0.02 / 8**0.5 if name.endswith(("out.weight", "down.weight")) else 0.02
        assert p.std().item() == pytest.approx(std, rel=4 / (2 * p.numel()) ** 0.5)
    assert {n for n, p in state.items() if p.ndim == 1} == {
        "norm.weight",
        *(f"blocks.{i}.{part}_norm.weight" for i in range(4) for part in ("attention", "mlp")),
    }


def test_the_start_follows_from_the_seed_alone():
    config = ModelConfig(**SMALL, linear_bias=True, unigram_bias=True)
    alone = GPT(config, [7])
    torch.manual_seed(99)
    together = GPT(config, torch.tensor([3, 7, -1, 7]))
    for name, p in together.named_parameters():
        assert torch.equal(p[1], alone.run_state(0)[name])
        assert torch.equal(p[1], p[3])
        assert p.ndim == 2 or not torch.equal(p[0], p[2])
    expected = normal(7, stream("init/embedding"), 88).view(11, 8) * 0.02
    assert torch.equal(alone.embedding[0], expected)
    assert not alone.output_bias.any()
    wider = GPT(ModelConfig(**(SMALL | {"layers": 3})), [7])  # other parameters change nothing
    assert torch.equal(wider.embedding, alone.embedding)


def test_groups_decay_as_in_nanogpt():
    model = small(unigram_bias=True, linear_bias=True, tied=False)
    decayed, others = model.parameter_groups(0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(others["params"]) == len(names)
    kept = {names[id(p)] for p in others["params"]}
    vectors = {name for name in names.values() if "norm." in name or name.endswith("bias")}
    assert kept == vectors
    assert decayed["params"][0] is model.embedding


def test_states_go_from_run_to_run():
    model, other = small(), small(runs=2)
    before = other.run_state(0)
    other.load_run_state(1, model.run_state(2))
    ids = torch.randint(11, (1, 2, 6))
    torch.testing.assert_close(other(ids.expand(2, -1, -1))[1], model(ids.expand(3, -1, -1))[2])
    assert all(torch.equal(before[name], p) for name, p in other.run_state(0).items())
    state = model.run_state(0)
    state["embedding"].zero_()  # a copy
    assert model.embedding[0].any()


def test_a_selection_is_a_model_of_its_own():
    model = small(position="rotary")
    chosen = model.select((2, 0))
    ids = torch.randint(11, (3, 2, 6))
    torch.testing.assert_close(chosen(ids[[2, 0]]), model(ids)[[2, 0]])
    assert chosen.head is chosen.embedding
    with torch.no_grad():
        chosen.embedding.zero_()
    assert model.embedding[2].any()
    assert chosen.config == model.config


def test_autocast_keeps_the_residual_stream():
    model = small(dtype=torch.float32, linear_bias=True)
    ids = torch.randint(11, (3, 2, 6))
    seen = []
    model.blocks[0].register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model(ids)
    assert seen == [torch.float32]
    torch.testing.assert_close(hidden.float(), model(ids), rtol=0.1, atol=0.1)


@pytest.mark.usefixtures("unchecked")
def test_bad_ids():
    model = small()
    for shape in ((3, 6), (2, 1, 6), (3, 1, 7), (3, 1, 0)):
        with pytest.raises(ArgumentValueError, match=r"^ids: expected \[R, B, T\] with R = 3"):
            model(torch.zeros(shape, dtype=torch.long))
    with pytest.raises(ArgumentTypeError, match=r"^ids: expected a tensor of integers"):
        model(torch.zeros(3, 1, 6))
    for wrong in (-1, 11):
        with pytest.raises(ArgumentValueError, match=r"^ids: expected token ids from 0 to 10"):
            model(torch.full((3, 1, 6), wrong))


@pytest.mark.usefixtures("unchecked")
def test_bad_runs_and_states():
    model = small()
    for call in (model.run_state, lambda r: model.select([r])):
        for run in (-1, 3):
            with pytest.raises(ArgumentValueError, match=r"^run: expected from 0 to 2"):
                call(run)
    with pytest.raises(ArgumentValueError, match=r"^runs: expected at least one"):
        model.select([])
    with pytest.raises(ArgumentValueError, match="others: output"):
        model.load_run_state(0, small(tied=False).run_state(0))
    with pytest.raises(ArgumentValueError, match=r"^state\['embedding'\]: expected shape"):
        model.load_run_state(0, small(vocab_size=12).run_state(0))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seeds", ["12", 3, [0.5], [True], torch.tensor([0.5])])
def test_seeds_of_a_wrong_type(seeds):
    with pytest.raises(ArgumentTypeError, match=r"^init_seeds: expected"):
        GPT(ModelConfig(**SMALL), seeds)


def test_no_seeds():
    with pytest.raises(ArgumentValueError, match=r"^init_seeds: expected one integer a run"):
        GPT(ModelConfig(**SMALL), [])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "name", "kind"),
    [
        ({"vocab_size": 0}, "vocab_size", ArgumentValueError),
        ({"layers": 2.0}, "layers", ArgumentTypeError),
        ({"norm": "batch"}, "norm", ArgumentValueError),
        ({"position": "none"}, "position", ArgumentValueError),
        ({"mlp": "relu"}, "mlp", ArgumentValueError),
        ({"tied": 1}, "tied", ArgumentTypeError),
        ({"init_std": -1.0}, "init_std", ArgumentValueError),
        ({"width": 9}, "width", ArgumentValueError),
        ({"width": 6, "position": "rotary"}, "width", ArgumentValueError),
    ],
)
def test_bad_config(options, name, kind):
    with pytest.raises(kind, match=f"^{name}: expected"):
        ModelConfig(**(SMALL | options))


def test_compiled():
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["--noconftest", "tests/lab/compiled.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def product_and_gradients(runs, dtype=torch.float32, onto=False):
    torch.manual_seed(0)
    x, w, y = torch.randn(runs, 30, 7), torch.randn(runs, 7, 11), torch.randn(runs, 30, 11)
    given = [t.to(dtype).requires_grad_() for t in (x, w, y)][: 3 if onto else 2]
    out = product(*given)
    return out, *torch.autograd.grad(out.sin().sum(), given)


@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("has_onednn", [False, products.HAS_ONEDNN])
def test_products_by_either_routine(monkeypatch, has_onednn, runs, onto):
    monkeypatch.setattr(products, "HAS_ONEDNN", has_onednn)
    result = product_and_gradients(runs, onto=onto)
    exact = product_and_gradients(runs, torch.float64, onto)
    torch.testing.assert_close(result, exact, check_dtype=False, rtol=1e-4, atol=1e-5)
    again = product_and_gradients(runs, onto=onto)
    assert all(map(torch.equal, result, again))


def test_only_gradients_that_are_asked_for():
    x, w = torch.randn(1, 4, 3), torch.randn(1, 3, 2)
    for a, b in ((x.clone().requires_grad_(), w), (x, w.clone().requires_grad_())):
        product(a, b).sum().backward()
        assert (a.grad is None) == (a is x)
        assert (b.grad is None) == (b is w)
    assert not product(x, w).requires_grad


def test_products_leave_the_routine_where_it_does_not_fit(monkeypatch):
    x = torch.randn(1, 4, 3)
    assert products._takes_onednn(x) == products.HAS_ONEDNN
    assert not products._takes_onednn(x.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not products._takes_onednn(x)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert not products._takes_onednn(x)


@pytest.mark.parametrize("length", [5, 6])
def test_attention_by_either_way(monkeypatch, length):
    model = small(position="rotary")
    ids = torch.randint(11, (3, 2, length))
    short = losses(model, ids)
    monkeypatch.setattr(layers, "SHORT", 0)
    fused = losses(model, ids)
    torch.testing.assert_close(
        (short, grads(short.sum(), model)), (fused, grads(fused.sum(), model))
    )
