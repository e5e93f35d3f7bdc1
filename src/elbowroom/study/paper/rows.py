"""The paper's runs, each as changes to one base configuration of the lab.

Several rows of the paper's tables are the same run: separated embeddings, as published, are plain
AdamW (stacking one-row parameters gives zero gradients, not missing ones), so a row "+SE" points to
the run without it, and the rows that are truly skipped are runs of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.config import RunConfig, merge, plan, run_config
from elbowroom.study.paper.families import SETTING_OF
from elbowroom.study.paper.protocols import PAPER, PROTOCOLS

RARE = {"languages": ["lr"]}
ANNEALED: dict[str, float] = {"start": 0.3, "end": 16.0}
DEFAULT: dict[str, float] = {"start": 1.0, "end_top_p": 0.999}
BASE: dict[str, Any] = {
    "data": {"source": "shakespeare", "tokenizer": "characters", "validation": 0.1},
    "model": {"layers": 4, "heads": 4, "width": 128, "context": 64},
    "optimizer": {
        "lr": 1e-3,
        "min_lr": 1e-4,
        "warmup": 100,
        "betas": [0.9, 0.99],
        "weight_decay": 0.1,
        "clip": 1.0,
    },
    "training": {
        "steps": 8001,
        "batch": 12,
        "precision": "tf32",
        "log_every": 200,
        "eval_every": 1000,
    },
    "evaluation": {"bins": 0},
}
QUICK: dict[str, Any] = {
    "model": {"layers": 2, "heads": 4, "width": 64},
    "optimizer": {"lr": 3e-3, "min_lr": 3e-4, "warmup": 60},
    "training": {"steps": 450, "log_every": 50, "eval_every": 90, "eval_windows": 4},
    "evaluation": {"windows": 60, "temperatures": 40},
}
SEEDS, QUICK_SEEDS = 10, 2
FIRST_TUNING_SEED = 1000  # runs from this seed on choose settings and are not reported
FIXED = (  # what tells the rows apart, or the protocols
    *("name", "init_seed", "data_seed", "zero_rows", "loss", "model.tied", "optimizer.name"),
    *("data.sampling", "data.shares", "data.tau", "data.epochs", "training.gradients_every"),
    *("model.unigram_bias", "optimizer.center", "training.keep"),
)
MEASURED_EVERY = 10  # steps: gradients by type would cost most of a step more at each


@dataclass(frozen=True, kw_only=True)
class Method:
    """One way to train, which one or more rows of the tables show."""

    name: str
    """Of its runs."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """What tells it from the base."""
    share_of_steps: float = 1.0
    """Of the base's steps; the monolingual model makes 2% of them."""
    rate: float = 1.0
    """Times the base's learning rate, its end included."""


def _margin(start: float, **more: Any) -> dict[str, Any]:
    return {"margin": {"start": start, **more}}


def _scaled(by: float) -> dict[str, Any]:
    """Return margin 1 with logits that are multiplied in training, and not where it is judged."""
    return _margin(1.0) | {"logit_scale": by, "scale_after_training": False}


def _loss(name: str, loss: Mapping[str, Any], **more: Any) -> Method:
    return Method(name=name, change={"loss": loss, **more})


def _plain() -> list[Method]:
    """Return the baselines and the fixed margins, tied."""
    alone = {"data": {"sampling": "fixed", "shares": [0.0, 1.0]}}
    methods = [
        Method(name="ce-tied"),
        Method(name="monolingual", change=alone, share_of_steps=0.02),
        *(_loss(f"margin-{m}", _margin(float(m))) for m in ("8", "4", "2", "1", ".6", ".5", "0")),
        *(_loss(f"margin-1-T.{t}", _scaled(t / 100)) for t in (46, 44)),
        *(_loss(f"alpha-{a}", _margin(float(a), norms="both")) for a in (".25", ".0625")),
    ]
    skipped = {"optimizer": {"name": "row_adamw"}}
    methods += [_loss(f"skipped-{m}", _margin(float(m)), **skipped) for m in ("2", "1", ".6")]
    return [*methods, _loss("skipped-alpha-.0625", _margin(0.0625, norms="both"), **skipped)]


def _rivals() -> list[Method]:
    """Return what others propose, as the paper ran it."""
    gate = {"name": "agg", "count_steps": 1600}
    return [
        *(_loss(f"agg-{a}", {**gate, "options": {"alpha": float(a)}}) for a in (".02", ".2")),
        _loss("cosreg", {"penalty": "cosreg", "penalty_weight": 1.0}),
        _loss("adversarial", {"name": "adversarial", "options": {"alpha": 0.005}}),
        _loss("cwt", {"name": "contrastive_weight_tying"}, training={"keep": {"by": "objective"}}),
    ]


def _appendix() -> list[Method]:
    """Return models without weight tying, softminus, and logits that are only detached."""
    loose = {"model": {"tied": False}}
    skipped = {"optimizer": {"name": "row_adamw"}, **loose}
    methods = [
        Method(name="ce-untied", change=loose),
        *(_loss(f"untied-{m}", _margin(float(m)), **loose) for m in ("2", "1")),
        *(_loss(f"untied-skipped-{m}", _margin(float(m)), **skipped) for m in ("2", "1")),
    ]
    for detached in (False, True):
        for c in (1, 5):
            for m in ("2", "1"):
                name = f"softminus-{'dt-' if detached else ''}{m}{'-c5' if c == 5 else ''}"
                variant = {"name": "softminus", "c": float(c), "detach_threshold": detached}
                methods.append(_loss(name, {**_margin(float(m)), "variant": variant}))
    below = {"variant": {"name": "detached_below"}}
    return [*methods, *(_loss(f"detached-{m}", {**_margin(float(m)), **below}) for m in ("2", "1"))]


def _alphas() -> list[Method]:
    """Return the wider alphas: .5, which the paper's code has and the paper does not, and 1."""
    return [_loss(f"alpha-{a}", _margin(float(a), norms="both")) for a in ("1", ".5")]


def _measured() -> list[Method]:
    """Return the runs whose gradients are measured by type while they train."""
    often = {"training": {"gradients_every": MEASURED_EVERY}}
    return [
        Method(name="gradients-ce", change=often),
        _loss("gradients-2", _margin(2.0), **often),
    ]


def _ours() -> list[Method]:
    """Return what this project adds: an annealed margin, and rare rows that start at zero."""
    protected = {"protect": RARE, "protect_until": 0.5}
    return [
        method
        for key, margin in ((".3-16", ANNEALED), ("default", DEFAULT))
        for method in (
            _loss(f"margin-{key}", _margin(**margin)),
            _loss(f"twins-{key}", {**_margin(**margin), **protected}, zero_rows=RARE),
            _loss(f"untied-{key}", _margin(**margin), model={"tied": False}),
        )
    ]


def _tuned() -> list[Method]:
    """Return the settings of the rivals' table, and of ours, that no table of the paper has."""
    found = SETTING_OF.values()
    return [Method(name=s.method, change=s.change or {}, rate=s.rate) for s in found]


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        *(*_plain(), *_alphas(), *_rivals(), *_appendix(), *_measured(), *_ours()),
        *_tuned(),
    )
}


def base_of(
    *,
    quick: bool = False,
    change: Mapping[str, Any] | None = None,
    protocol: str = PAPER.name,
) -> dict[str, Any]:
    """Return what all runs have in common, as in a configuration file.

    Args:
        quick: smaller models, shorter runs.
        change: values that go over these; not what tells the rows apart.
        protocol: of `PROTOCOLS`.
    """
    chosen = PROTOCOLS[checks.choice("protocol", protocol, tuple(PROTOCOLS))]
    given = change or {}
    for path in FIXED:
        value: Any = given
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            fix = "leave it out, or use elbowroom train for other methods"
            raise ArgumentValueError(path, "what each row has", value, fix)
    base = merge(BASE, chosen.change)
    if quick:
        base = merge(merge(base, QUICK), chosen.quick)
    return merge(base, given)


def config_of(name: str, base: Mapping[str, Any] | None = None, seed: int = 0) -> RunConfig:
    """Return the configuration of one run.

    Args:
        name: of the method.
        base: see `base_of`.
        seed: of its start and its order of data.

    Example:
        >>> run = config_of("margin-1", seed=3)
        >>> run.folder, run.loss.margin.start, run.training.steps
        ('margin-1-i3-d3', 1.0, 8001)
    """
    method = METHODS[checks.choice("method", name, tuple(METHODS))]
    whole = dict(base_of() if base is None else base)
    if method.share_of_steps != 1.0:
        training, share = run_config(whole).training, method.share_of_steps
        fewer = max(2, round(share * training.steps))
        short: dict[str, Any] = {"steps": fewer}
        if training.keep.which == "best":  # as many looks as others have
            short["keep"] = {"every": max(1, round(share * training.keep.every))}
        whole = merge(whole, {"training": short, "optimizer": {"warmup": min(2, fewer)}})
    if method.rate != 1.0:
        usual = run_config(whole).optimizer
        rates = {"lr": method.rate * usual.lr, "min_lr": method.rate * usual.min_lr}
        whole = merge(whole, {"optimizer": rates})
    run = run_config(merge(merge(whole, method.change), {"name": name}))
    return run.with_seed(seed)


def runs_of(
    names: Iterable[str], seeds: Sequence[int], base: Mapping[str, Any] | None = None
) -> list[RunConfig]:
    """Return the runs of some methods with each of the seeds.

    Args:
        names: of the methods.
        seeds: of starts and orders of data.
        base: see `base_of`.

    Example:
        >>> [run.folder for run in runs_of(["ce-tied", "margin-1"], [0, 1])]
        ['ce-tied-i0-d0', 'ce-tied-i1-d1', 'margin-1-i0-d0', 'margin-1-i1-d1']
    """
    plan(dict(base or {}))  # names what is wrong before any method is blamed
    each = (config_of(name, base) for name in names)
    return [run.with_seed(seed) for run in each for seed in seeds]


def stretches(runs: Sequence[RunConfig], most: int) -> Iterator[list[RunConfig]]:
    """Yield runs seed by seed, so many seeds at once that about ``most`` runs are trained.

    Whole seeds are done one after the other, so that a report has all rows early.

    Args:
        runs: of several methods, with the same seeds.
        most: how many at once.

    Example:
        >>> cut = stretches(runs_of(["ce-tied", "margin-1"], [0, 1, 2]), 4)
        >>> [[run.folder for run in part] for part in cut][1]
        ['ce-tied-i2-d2', 'margin-1-i2-d2']
    """
    seeds = list(dict.fromkeys(run.init_seed for run in runs))
    each = max(1, most * len(seeds) // max(1, len(runs)))
    for first in range(0, len(seeds), each):
        now = seeds[first : first + each]
        yield [run for run in runs if run.init_seed in now]
