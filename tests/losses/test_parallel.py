"""A head whose rows two processes share, against the whole head in one.

Generated cases in float64 against the reference, 1e-12 of each other; in other dtypes at most the
error of the chunked backend on the whole head, and a few roundings.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
import torch

import elbowroom as er
from elbowroom import margins, variants
from elbowroom.errors import ArgumentTypeError, ArgumentValueError, BackendError
from elbowroom.losses import chunked
from tests.losses.cases import VARIANTS, all_cases, broken
from tests.losses.parallel_jobs import Call
from tests.losses.parallel_pair import Pair
from tests.losses.test_chunked import error

whole = partial(er.linear_thresholded_cross_entropy, backend="reference")
in_blocks = partial(er.linear_thresholded_cross_entropy, backend="chunked")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = Pair(tmp_path_factory.mktemp("pair"), patch)
        yield made
        made.close()


def joined(here, there):
    """Put the gradients of the rows together; all else is the same bits in both processes."""
    out = {}
    for name, x in here.items():
        if name in ("d_weight", "d_bias"):
            out[name] = torch.cat([x, there[name]])
        else:
            assert torch.equal(x.nan_to_num(), there[name].nan_to_num()), name
            out[name] = x
    return out


def both(pair, calls, *, named=False):
    return [joined(*found) for found in zip(*pair.do("losses", calls, named), strict=True)]


def generated(count, first=0, change=lambda case: case):
    """Yield calls of generated cases without runs, cut somewhere."""
    for case in map(change, all_cases(2 * count, first)):
        vocab = case.weight.shape[0]
        if case.weight.ndim == 2 and vocab > 1 and count:
            count -= 1
            g = torch.Generator().manual_seed(case.seed)
            cut = int(torch.randint(1, vocab, (), generator=g))
            yield Call(case.hidden, case.weight, case.target, case.margin, cut, case.options)


def check(pair, calls, **options):
    """Compare calls with the reference on the whole head."""
    for call, ours in zip(calls, both(pair, calls, **options), strict=True):
        exact = call.do(whole)
        assert ours.keys() == exact.keys()
        for name, x in exact.items():
            assert ours[name].dtype == x.dtype
            assert error(ours[name], x) < 1e-12, (call, name)


def problem(tokens=40, vocab=200, width=6, **options):
    """Return a call with one ignored token."""
    make = partial(torch.randn, dtype=torch.float64)
    target = torch.randint(vocab, (tokens,))
    target[3] = -100
    return Call(make(tokens, width), make(vocab, width), target, 1.0, 70, options)


# ---- Values and gradients


def test_loss_and_gradients_are_those_of_the_whole_head(pair):
    """All variants, options, layouts and reductions, in several blocks, cut anywhere."""
    calls = list(generated(70))
    used = {name for call in calls for name, value in call.options.items() if value is not None}
    assert used > {"bias", "softcap", "logit_scale", "token_weights", "label_smoothing", "z_loss"}
    assert {type(call.options["variant"]) for call in calls} == {type(v) for v in VARIANTS}
    check(pair, calls)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_error_is_at_most_that_of_the_whole_head_in_the_same_dtype(pair, dtype):
    calls = [replace(call, dtype=dtype) for call in generated(35, first=1000)]
    bad, crossed = [], 0
    for call, ours in zip(calls, both(pair, calls), strict=True):
        exact, theirs = replace(call, dtype=torch.float64).do(whole), call.do(in_blocks)
        zero = [(x["d_weight"] == 0).all(-1) for x in (exact, ours, theirs)]
        if not all(torch.equal(x, zero[0]) for x in zero):
            crossed += 1  # rounding moved an entry over its threshold
            continue
        for name, x in exact.items():
            e, bound = error(ours[name], x), error(theirs[name], x)
            if e > bound + 4 * torch.finfo(dtype).eps:
                bad.append(f"{name}: {e:.2e} against {bound:.2e}")
    assert not bad, "\n".join(bad)
    assert crossed < 5


def test_nan_and_infinity_show_as_in_the_reference(pair):
    calls = list(generated(28, first=2000, change=broken))
    shown = 0
    for call, ours in zip(calls, both(pair, calls), strict=True):
        exact = call.do(whole)["loss"]
        torch.testing.assert_close(ours["loss"], exact, equal_nan=True, rtol=1e-11, atol=1e-11)
        shown += not bool(exact.isfinite().all())
    assert shown > 6


MARGINS = {
    "number": (0.0, {}),
    "infinite": (float("inf"), {}),
    "scalar": (torch.tensor(2.0), {}),
    "of tokens": (torch.linspace(0, 3, 40), {}),
    "annealed": (margins.Annealed(1.0, 9.0), {"progress": 0.3}),
    "annealed by a tensor": (margins.Annealed(1.0, 9.0), {"progress": torch.tensor(0.4)}),
    "both norms": (margins.ByNorms(0.2), {}),
    "the target's norm": (margins.ByNorms(0.7, "target"), {}),
    "the hidden state's": (margins.ByNorms(torch.tensor(0.7), "hidden"), {}),
    "annealed norms": (
        margins.Annealed(margins.ByNorms(0.1), margins.ByNorms(0.9)),
        {"progress": 0.5},
    ),
}


def test_every_kind_of_margin(pair):
    calls = [replace(problem(**options), margin=margin) for margin, options in MARGINS.values()]
    check(pair, calls, named=True)


def test_what_calls_may_look_like(pair):
    """Leading dimensions, a shift, one token, none, the first id ignored, other normalizers."""
    plain = problem()
    folded = replace(plain, hidden=plain.hidden.view(2, 20, 6), target=plain.target.view(2, 20))
    weights, wide = torch.rand(2, 20, dtype=torch.float64), torch.rand(2, 20) * 3
    sequences = [
        replace(folded, options={"shift": shift, "token_weights": weights, "reduction": reduction})
        for shift in (0, 1)
        for reduction in ("mean", "sum", "none")
    ]
    calls = [
        *sequences,
        replace(folded, margin=wide, options={"shift": 2, "variant": variants.Softminus(2.0)}),
        replace(plain, hidden=plain.hidden[0], target=plain.target[0]),
        replace(plain, hidden=plain.hidden[:0], target=plain.target[:0]),
        replace(plain, target=plain.target.clamp(min=0) // 3, options={"ignore_index": 0}),
        replace(plain, options={"normalizer": 7.5}),
        replace(plain, options={"normalizer": torch.tensor(11)}),
        replace(plain, cut=1),
        replace(plain, cut=199, options={"protect": torch.rand(200) < 0.4}),
    ]
    check(pair, calls)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_tokens_that_leave_a_rank_out(pair, reduction):
    """All ignored, all targets on one rank, and nothing kept on the other."""
    plain = problem(tokens=12, reduction=reduction, label_smoothing=0.1, z_loss=0.01)
    ignored = torch.full_like(plain.target, -100)
    far = plain.weight.clone()
    far[70:, 0] = -1e3  # with hidden states that are positive there
    positive = plain.hidden.clone()
    positive[:, 0] = 1.0
    calls = []
    for variant in VARIANTS[:-1]:
        base = replace(plain, options=plain.options | {"variant": variant})
        calls += [replace(base, target=target) for target in (ignored, base.target % 70)]
        calls.append(replace(base, target=70 + base.target % 130))
        calls.append(replace(base, target=base.target % 70, weight=far, hidden=positive))
    check(pair, calls)


def test_gradients_that_are_wanted(pair):
    plain = problem(bias=torch.randn(200, dtype=torch.float64))
    some = [(), ("hidden",), ("weight",), ("bias",), ("hidden", "bias")]
    check(pair, [replace(plain, needs=needs) for needs in some])


@pytest.mark.parametrize("variant", [None, variants.Softminus(), variants.Decoupled()])
def test_two_backward_passes_over_a_retained_graph(pair, variant):
    calls = [
        replace(problem(reduction=reduction, variant=variant), passes=2)
        for reduction in ("mean", "sum", "none")
    ]
    check(pair, calls)


def test_rows_as_a_dtensor(pair):
    """Odd sizes, which torch cuts unevenly."""
    bias = torch.randn(201, dtype=torch.float64)
    calls = [problem(vocab=201), problem(vocab=201, bias=bias, reduction="none")]
    calls[1].margin = margins.ByNorms(0.3)
    here, there = pair.do("of_dtensors", calls)
    for call, one, other in zip(calls, here, there, strict=True):
        for name, x in call.do(whole).items():
            assert torch.equal(one[name], other[name])
            assert error(one[name], x) < 1e-12


def test_logits_are_never_there_for_more_than_a_block(pair):
    call = problem(tokens=300, vocab=400)
    assert max(pair.do("largest", call)) <= 3000


# ---- One process


def test_without_a_group_this_process_has_all_rows(monkeypatch):
    monkeypatch.setattr(chunked, "BLOCK", 3000)
    for call in generated(21, first=3000):
        exact = call.do(whole)
        for name, x in call.do(er.vocab_parallel_cross_entropy).items():
            assert error(x, exact[name]) < 1e-12


def test_under_autocast_it_computes_as_linear_layers_do():
    hidden, weight, target = torch.randn(5, 8), torch.randn(30, 8), torch.arange(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = er.vocab_parallel_cross_entropy(hidden, weight, target, 2.0)
        assert torch.equal(ours, in_blocks(hidden, weight, target, 2.0))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"group": "all"}, ArgumentTypeError, "group: expected a process group .* got 'all'"),
        ({"weight": torch.ones(2, 4, 2)}, ArgumentValueError, r"weight: expected \[V_r, D\], .*"),
        ({"weight": [[1.0, 2.0]]}, ArgumentTypeError, "weight: expected a tensor"),
        ({"weight": torch.ones(4, 3)}, ArgumentValueError, r"hidden: .*D = 3"),
        ({"weight": torch.ones(0, 2)}, ArgumentValueError, "weight: .*none of them 0"),
        ({"bias": torch.ones(5)}, ArgumentValueError, r"bias: .*\(4,\).*\(5,\)"),
        ({"bias": 0.5}, ArgumentTypeError, "bias: expected a tensor"),
        ({"target": torch.tensor([0, 1, 4])}, ArgumentValueError, "target: .* from 0 to 3"),
        ({"target": torch.ones(3)}, ArgumentTypeError, "target: expected a tensor of integers"),
        ({"protect": torch.zeros(3, dtype=torch.bool)}, ArgumentValueError, r"protect: .*\(4,\)"),
        ({"variant": variants.Leaky}, ArgumentTypeError, "variant: .*elbowroom.variants"),
        ({"variant": variants.Softminus(), "margin": 0.0}, ArgumentValueError, "margin: .*above 0"),
        ({"margin": margins.Annealed(1.0, 2.0)}, ArgumentValueError, "progress: "),
        ({"label_smoothing": 1.0}, ArgumentValueError, "label_smoothing: .*below 1"),
        ({"normalizer": 2.0, "reduction": "sum"}, ArgumentValueError, "normalizer: .*mean"),
    ],
)
def test_bad_input(change, kind, message):
    given = {"hidden": torch.ones(3, 2), "weight": torch.ones(4, 2), "target": torch.arange(3)}
    with pytest.raises(kind, match=message):
        er.vocab_parallel_cross_entropy(**(given | {"margin": 1.0} | change))


def test_a_second_derivative_is_refused(pair):
    hidden = torch.ones(3, 2, requires_grad=True)
    loss = er.vocab_parallel_cross_entropy(hidden, torch.ones(4, 2), torch.arange(3), 1.0)
    with pytest.raises(BackendError, match="first derivatives only"):
        torch.autograd.grad(loss, hidden, create_graph=True)
    assert all("first derivatives only" in x for x in pair.do("second_derivative", problem()))


# ---- Ranks that differ

OTHER = torch.tensor([2, 1, 0])
DIFFER = {  # changed arguments of the first and the second rank, and what both say
    "another target": ({}, {"target": OTHER}, "^target: expected the same on all ranks .*rank 1"),
    "another margin": ({}, {"margin": 2.0}, "^margin: .* got 2.0 on rank 1, 1.0 on rank 0; only"),
    "other norms": ({"margin": margins.ByNorms(1.0)}, {"margin": margins.ByNorms(2.0)}, "^margin"),
    "fewer tokens": (
        {},
        {"hidden": torch.ones(2, 2), "target": torch.arange(2)},
        r"^hidden: .*got \[2, 2\]",
    ),
    "another dtype": (
        {},
        {"hidden": torch.ones(3, 2).double(), "weight": torch.ones(4, 2).double()},
        "^hidden: .*torch.float64",
    ),
    "a bias alone": ({"bias": torch.ones(4)}, {}, r"^bias: .*None.* on rank 1"),
    "an option": ({"z_loss": 0.1}, {}, "^z_loss: "),
    "masks": (
        {"variant": variants.RareOnly(torch.tensor([True] * 8))},
        {"variant": variants.RareOnly(torch.tensor([True] * 7 + [False]))},
        "^variant: .*RareOnly",
    ),
    "gradients": (
        {},
        {"weight": torch.ones(4, 2, requires_grad=True)},
        "^weight: .*requires_grad=True on rank 1",
    ),
    "both refuse": (
        {"protect": torch.ones(4, dtype=torch.bool)},
        {"protect": torch.ones(4, dtype=torch.bool)},
        r"^protect: expected shape \(8,\)",
    ),
    "out of range": (
        {"target": torch.tensor([0, 8, 1])},
        {"target": torch.tensor([0, 8, 1])},
        "^target: expected values from 0 to 7",
    ),
}


@pytest.mark.usefixtures("unchecked")
def test_ranks_that_differ_all_say_so(pair):
    found = pair.do("refused", [(one, other) for one, other, _ in DIFFER.values()])
    for here, there, (_, _, message) in zip(*found, DIFFER.values(), strict=True):
        assert here == there
        assert re.match(message, here[1]), here
        assert here[0] == "ArgumentValueError"


@pytest.mark.usefixtures("unchecked")
def test_dtensors_that_are_refused(pair):
    sharded = r": expected a DTensor with placements \[Shard\(0\)\] over a mesh of one dimension, "
    messages = [
        f"weight{sharded}got .*Replicate.*; redistribute it, or pass the rank's own rows",
        f"weight{sharded}got .*dim=1",
        f"weight{sharded}got .* over 2 dimension",
        "group: expected None for a DTensor weight, .* leave it out",
        r"hidden: expected a plain tensor, .* got a DTensor; pass hidden\.full_tensor\(\)",
        "bias: expected rows on the same mesh as those of the weight, got a DTensor of another",
        f"bias{sharded}got .*Replicate",
    ]
    for found in pair.do("refused_dtensors"):
        for said, message in zip(found, messages, strict=True):
            assert re.match(message, said), said


@pytest.mark.usefixtures("unchecked")
def test_where_one_rank_refuses_the_other_does_not_wait(pair):
    bad = [{"weight": torch.ones(4, 3)}, {"target": torch.ones(3)}, {"logit_scale": 0.0}]
    here, there = pair.do("refused", [({}, x) for x in bad] + [(x, {}) for x in bad])
    names = ["hidden", "target", "logit_scale"]
    for refusing, told, rank in ((there[:3], here[:3], 1), (here[3:], there[3:], 0)):
        for (_, own), (kind, heard), name in zip(refusing, told, names, strict=True):
            assert own.startswith(f"{name}: expected")
            assert (kind, heard) == (
                "BackendError",
                f"group: rank {rank} refused its arguments: {own}",
            )
