"""What groups of runs minimise: which runs go together, and what configurations turn into."""

from __future__ import annotations

import math

import pytest
import torch

import elbowroom as er
from elbowroom import TokenCounts, margins, rivals, variants
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.loss_config import LossConfig, MarginConfig, Rows, VariantConfig
from elbowroom.lab.objective import Facts, Objective, key, margin_of, rows_mask
from tests.lab.toy import run

CPU = torch.device("cpu")
V, N, D = 7, 6, 4
NAMES = ("en", "cy", "eo")
GROUPS = torch.tensor([0, 0, 0, 1, 1, 2, -1])
COUNTS = TokenCounts(torch.tensor([500.0, 300.0, 100.0, 60.0, 20.0, 0.0, 20.0]))
OTHERS = TokenCounts(torch.tensor([1.0, 1.0, 1.0, 500.0, 400.0, 96.0, 1.0]))


def losses(*configs):
    return [run(loss=config, data_seed=i) for i, config in enumerate(configs)]


def objective(*configs, counts=(COUNTS, OTHERS)):
    facts = Facts(list(counts)[: len(configs)], GROUPS, NAMES)
    return Objective(losses(*configs), facts, V, CPU)


def problem(runs=2):
    torch.manual_seed(0)
    hidden, weight = torch.randn(runs, N, D), torch.randn(runs, V, D)
    return hidden, weight, torch.randint(V, (runs, N))


def call(of, *arguments, progress=0.0, step=0, bias=None):
    return of(*arguments, bias, step=torch.tensor(step), progress=torch.tensor(progress))


# Which runs share a call


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"margin": 1}, {"margin": 2}),
        ({"margin": {"start": 1, "end": 2}}, {"margin": {"start": 3, "end_top_p": 0.9}}),
        ({"margin": {"start": 1, "norms": "both"}}, {"margin": {"start": 2, "norms": "both"}}),
        ({"protect": {"quantile": 0.1}}, {"protect": {"languages": ["lr"]}}),
        ({"protect": {"quantile": 0.1}}, {"protect": {"quantile": 0.1}, "protect_until": 0.5}),
        (
            {"name": "sampled_softmax", "options": {"samples": 3, "proposal": "frequency"}},
            {"name": "sampled_softmax", "options": {"proposal": "frequency", "samples": 3}},
        ),
    ],
)
def test_runs_that_differ_in_numbers_go_together(one, other):
    a = run(loss=one)
    b = run(loss=other, name="b", init_seed=3, data_seed=4, zero_rows={"quantile": 0.5})
    assert key(a) == key(b)
    assert hash(key(a)) == hash(key(b))


STRUCTURES = [
    {},
    {"margin": 1},
    {"margin": {"start": 1, "norms": "both"}},
    {"margin": {"start": 1, "norms": "target"}},
    {"margin": {"start": 1, "end": 2}},
    {"margin": {"start": 1, "end": 2, "norms": "both"}},
    {"margin": {"start": 1, "end": 2, "shape": "geometric"}},
    {"margin": {"start": 1, "end": 2, "hold": 0.1}},
    {"margin": {"start": 1, "end": 2, "release": 0.9}},
    {"margin": 1, "variant": "softminus"},
    {"margin": 1, "variant": {"name": "softminus", "c": 2}},
    {"margin": 1, "variant": {"name": "softminus", "detach_threshold": True}},
    {"margin": 1, "variant": "decoupled"},
    {"margin": 1, "variant": {"name": "rare_only", "rows": {"quantile": 0.1}}},
    {"margin": 1, "variant": {"name": "rare_only", "rows": {"quantile": 0.2}}},
    {"margin": 1, "protect": {"quantile": 0.1}},
    {"margin": 1, "logit_scale": 2},
    {"margin": 1, "label_smoothing": 0.1},
    {"margin": 1, "z_loss": 0.1},
    {"margin": 1, "penalty": "cosreg"},
    {"margin": 1, "penalty": "cosreg", "penalty_weight": 2},
    {"name": "focal"},
    {"name": "focal", "options": {"gamma": 1}},
    {"name": "ldam"},
    {"name": "ldam", "count_steps": 3},
]


def test_runs_of_another_structure_do_not():
    keys = [key(run(loss=loss)) for loss in STRUCTURES]
    assert len(set(keys)) == len(STRUCTURES)


# Margins


def values(margin, *moments):
    return [margin.at(torch.tensor(x)).tolist() for x in moments]


def test_margins_that_stand_still():
    assert margin_of([MarginConfig()] * 2, V, CPU) == math.inf
    assert margin_of([MarginConfig(start=1.0), MarginConfig(start=0.0)], V, CPU).tolist() == [1, 0]
    by = margin_of([MarginConfig(start=0.5, norms="hidden"), MarginConfig(start=2.0)], V, CPU)
    assert isinstance(by, margins.ByNorms)
    assert (by.alpha.tolist(), by.norms) == ([0.5, 2.0], "hidden")


def test_margins_that_move():
    top = math.log((V - 1) * 0.9 / 0.1)
    ends = [MarginConfig(start=1.0, end=3.0), MarginConfig(start=2.0, end_top_p=0.9)]
    linear = margin_of(ends, V, CPU)
    expected = [[1.0, 2.0], [1.5, 2 + (top - 2) / 4], [3.0, top]]
    for found, wanted in zip(values(linear, 0.0, 0.25, 1.0), expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-6)
    shaped = {"shape": "geometric", "hold": 0.2, "release": 0.6}
    geometric = margin_of([MarginConfig(start=1.0, end=4.0, **shaped)], V, CPU)
    found = values(geometric, 0.0, 0.2, 0.4, 0.6, 1.0)
    assert [x for (x,) in found] == pytest.approx([1, 1, 2, 4, 4])


def test_alphas_that_move():
    rule = margin_of([MarginConfig(start=1.0, end=2.0, norms="target")] * 2, V, CPU)
    half = rule.at(torch.tensor(0.5))
    assert isinstance(half, margins.ByNorms)
    assert (half.alpha.tolist(), half.norms) == ([1.5, 1.5], "target")


# Rows


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({}, []),
        ({"languages": ("cy",)}, [3, 4]),
        ({"languages": ("eo", "en")}, [0, 1, 2, 5]),
        ({"language_share": 0.1}, [3, 4, 5]),  # 8 % and nothing; shared tokens belong to neither
        ({"language_share": 0.01}, [5]),
        ({"at_most": 20.0}, [4, 5, 6]),
        ({"at_most": 0.0}, [5]),
        ({"share": 0.04}, [4, 5, 6]),
        ({"share": 0.02}, [5]),  # equals fare alike
        ({"quantile": 0.5}, [4, 5, 6]),
        ({"quantile": 0.0}, []),
        ({"quantile": 1.0}, list(range(V))),
    ],
    ids=str,
)
def test_rows_by_every_criterion(rows, expected):
    mask = rows_mask(Rows(**rows), COUNTS, GROUPS, NAMES)
    assert (mask.dtype, mask.shape) == (torch.bool, (V,))
    assert mask.nonzero().flatten().tolist() == expected


def test_rows_of_an_unknown_language():
    with pytest.raises(ArgumentValueError, match=r"rows.languages: .* \(en, cy, eo\), got fr"):
        rows_mask(Rows(languages=("cy", "fr")), COUNTS, GROUPS, NAMES)


def test_protection_ends_for_each_run_by_itself():
    of = objective(
        {"protect": {"at_most": 20}, "protect_until": 0.25},
        {"protect": {"languages": ["en"]}, "protect_until": 0.75},
    )
    rows = [[False] * 4 + [True] * 3, [True] * 3 + [False] * 4]
    none = [False] * V
    moments = {0.0: rows, 0.24: rows, 0.25: [none, rows[1]], 0.75: [none, none], 1.0: [none, none]}
    for progress, expected in moments.items():
        assert of.protected(torch.tensor(progress)).tolist() == expected
    assert objective({}).protected(torch.tensor(0.0)) is None
    hidden, weight, target = problem()
    for progress, runs in ((0.1, 2), (0.5, 1), (0.9, 0)):
        found = call(of, hidden, weight, target, progress=progress)
        plain = er.linear_thresholded_cross_entropy(hidden, weight, target, math.inf)
        assert ((found < plain) == torch.tensor([runs == 2, runs >= 1])).all()


# The losses


VARIANTS = {
    "none": (None, {}),
    "softminus": (variants.Softminus(0.5, True), {"c": 0.5, "detach_threshold": True}),
    "detached_below": (variants.DetachedBelow(), {}),
    "decoupled": (variants.Decoupled(), {}),
    "leaky": (variants.Leaky(0.4), {"weight": 0.4}),
    "rare_only": (
        variants.RareOnly(torch.stack([c.rare(at_most=20) for c in (COUNTS, OTHERS)])),
        {"rows": {"at_most": 20}},
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_built_from_its_configuration(name):
    variant, options = VARIANTS[name]
    scale = {"logit_scale": 1.5, "label_smoothing": 0.1, "z_loss": 0.01}
    shared = {"variant": {"name": name, **options}, **scale}
    of = objective({"margin": 0.5, **shared}, {"margin": 2, **shared})
    hidden, weight, target = problem()
    bias = torch.linspace(-1, 1, 2 * V).view(2, V)
    results = []
    for function in (
        lambda h, w: call(of, h, w, target, bias=bias),
        lambda h, w: er.linear_thresholded_cross_entropy(
            h, w, target, torch.tensor([0.5, 2.0]), bias=bias, variant=variant, **scale
        ),
    ):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = function(h, w)
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), (h, w))))
    torch.testing.assert_close(*results)


PENALTIES = {
    "cosreg": rivals.cosreg,
    "laplacian": rivals.laplacian,
    "centering": rivals.centering_penalty,
}


@pytest.mark.parametrize("loss", [{}, {"name": "focal"}], ids=["ours", "a rival's"])
@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_are_added(name, loss):
    hidden, weight, target = problem()
    plain = call(objective(loss, loss), hidden, weight, target)
    with_it = loss | {"penalty": name, "penalty_weight": 0.3}
    found = call(objective(with_it, with_it), hidden, weight, target)
    torch.testing.assert_close(found - plain, PENALTIES[name](weight, 0.3), rtol=1e-3, atol=1e-5)
    assert (found != plain).all()


@pytest.mark.parametrize("proposal", ["uniform", "frequency"])
def test_a_rival_that_draws_has_seed_step_and_counts(proposal):
    options = {"samples": 3, "proposal": proposal}
    given = {"name": "sampled_softmax", "options": options}
    of = objective(given, given)
    arguments = problem()
    counts = {"counts": TokenCounts(torch.stack([COUNTS.values(), OTHERS.values()]))}
    found = [call(of, *arguments, step=step) for step in (0, 1)]
    for step, loss in enumerate(found):
        expected = rivals.sampled_softmax(
            *arguments,
            seed=torch.tensor([0, 1]),
            step=torch.tensor(step),
            **options,
            **(counts if proposal == "frequency" else {}),
        )
        torch.testing.assert_close(loss, expected)
    assert not torch.equal(*found)


# What is counted


def fed(of, steps):
    for step in range(*steps):
        torch.manual_seed(step)
        of.observe(torch.randint(V, (2, N)))
    return of


@pytest.mark.parametrize("count_steps", [1, 3, 100])
def test_counts_go_on_from_what_was_saved(count_steps):
    config = {"name": "agg", "count_steps": count_steps}
    whole = fed(objective(config, config), (0, 9))
    half = fed(objective(config, config), (0, 5))
    states = [{k: x.clone() for k, x in half.run_state(r).items()} for r in range(2)]
    assert states[0].keys() == {"counts.counts", "counts.seen", "counts.ring"}
    assert states[0]["counts.counts"].shape == (V,)
    rest = objective(config, config)
    rest.load_run_states(states)
    fed(rest, (5, 9))
    assert torch.equal(rest.counts.counts, whole.counts.counts)
    assert rest.counts.counts.sum() == 2 * N * min(count_steps, 9)
    assert int(rest.counts.seen) == 9
    arguments = problem()
    torch.testing.assert_close(call(rest, *arguments), call(whole, *arguments), rtol=0, atol=0)


def test_counts_of_the_whole_text_are_not_saved():
    of = objective({"name": "ldam"}, {"name": "ldam"})
    before = of.counts.counts.clone()
    assert of.run_state(0) == {}
    of.load_run_states([{}, {}])
    of.observe(torch.zeros(2, N, dtype=torch.long))
    assert torch.equal(of.counts.counts, before)
    assert torch.equal(before[1], OTHERS.counts)


def test_counting_starts_anew_where_nothing_was_saved():
    config = {"name": "agg", "count_steps": 2}
    of = fed(objective(config, config), (0, 1))
    of.load_run_states([{}, {}])
    assert of.counts.counts.sum() == 2 * N


# What is kept


KEPT = [
    ({"margin": 0}, 0.0, lambda z, y: z >= y),
    ({"margin": 1.5, "logit_scale": 2.0}, 0.0, lambda z, y: 2 * z >= 2 * y - 1.5),
    ({"margin": {"start": 1, "end": 3}}, 0.5, lambda z, y: z >= y - 2),
    ({"margin": 1, "variant": "softminus"}, 0.0, lambda z, y: z >= y - 1),
    ({}, 0.0, lambda z, y: z == z),
    ({"name": "focal"}, 0.0, lambda z, y: z == z),
]


@pytest.mark.parametrize(("config", "progress", "rule"), KEPT, ids=[str(x[0]) for x in KEPT])
def test_the_share_of_entries_kept(config, progress, rule):
    of = objective(config, config)
    hidden, weight, target = problem()
    bias = torch.linspace(-1, 1, 2 * V).view(2, V)
    given = (hidden, weight.clone().requires_grad_(), target, bias)
    log_probability, share = of.kept(*given, torch.tensor(progress))
    z = hidden @ weight.mT + bias[:, None]
    y = z.gather(-1, target[..., None])
    kept = rule(z, y).scatter(-1, target[..., None], True)
    torch.testing.assert_close(share, kept.float().mean((1, 2)))
    z = z * config.get("logit_scale", 1.0)
    expected = z.log_softmax(-1).gather(-1, target[..., None])[..., 0]
    torch.testing.assert_close(log_probability, expected)
    assert not share.requires_grad


def test_what_protection_and_rare_only_keep():
    hidden, weight, target = problem()
    rare = {"at_most": 20}
    of = objective(*[{"protect": rare}] * 2)
    _, share = of.kept(hidden, weight, target, None, torch.tensor(0.0))
    for r, counts in enumerate((COUNTS, OTHERS)):
        mask = counts.rare(at_most=20)
        lost = int(mask.sum()) * int((~mask[target[r]]).sum())
        assert share[r] == pytest.approx(1 - lost / (N * V))
    of = objective(*[{"margin": 0, "variant": {"name": "rare_only", "rows": rare}}] * 2)
    _, share = of.kept(hidden, weight, target, None, torch.tensor(0.0))
    z = hidden @ weight.mT
    below = z < z.gather(-1, target[..., None])
    for r, counts in enumerate((COUNTS, OTHERS)):
        expected = 1 - (below[r] & counts.rare(at_most=20)).float().mean()
        assert share[r] == pytest.approx(float(expected))


# Mistakes that do not wait for the training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "focal", "options": {"gama": 1}}, r"options\.gama: .*did you mean 'gamma'"),
        ({"name": "equalization"}, "options: expected threshold, which equalization needs"),
        ({"name": "focal", "options": {"gamma": -1.0}}, r"options\.gamma: "),
        ({"name": "agg"}, "count_steps: expected a number of steps: agg counts"),
        ({"name": "mile", "count_steps": 2}, "count_steps: expected none: mile takes no counts"),
        ({"name": "seesaw", "margin": MarginConfig(start=1.0)}, "margin: expected none for seesaw"),
        ({"name": "acsl", "protect": Rows(quantile=0.1)}, "protect: expected none for acsl"),
        ({"name": "ldam", "variant": VariantConfig(name="leaky")}, "variant: expected none for"),
        ({"count_steps": 2}, "count_steps: expected none for the thresholded loss, got 2"),
    ],
)
def test_mistakes_are_found_early(options, message):
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match=f"^{message}"):
        LossConfig(**options)
