"""What others propose, each with the settings that are tried of it.

What differs from the publications is on the page of the rivals. Grids are wide where this setting
differs much from the publication's, so that the method can be what it was meant to be.
"""

from __future__ import annotations

from typing import Any

from elbowroom.study.paper.settings import (
    RATE,
    Family,
    Setting,
    by_options,
    by_rate,
    by_weight,
    known,
    said,
)

OTHER = "it is trained to predict otherwise; all are judged by a softmax of their logits"


def rivals() -> list[Family]:
    """Return all families of rivals."""
    return [*_gates(), *_negatives(), *_shapes(), *_weights(), *_matrices(), *_others()]


def _gates() -> list[Family]:
    """Return losses that change what the head's rows are sent."""
    gate = {"name": "agg", "count_steps": 1600}
    gates = [{"loss": {**gate, "options": {"alpha": alpha}}} for alpha in (0.6, 2.0)]
    agg = (
        *(known(f"agg-{alpha}", f"alpha {alpha}") for alpha in (".02", ".2")),
        Setting(method="agg-.6", words="alpha .6", change=gates[0]),
        Setting(method="agg-2", words="alpha 2", change=gates[1]),
    )
    worst = by_options("adversarial", "adversarial", _of("alpha", 0.02, 0.05, 0.1))
    contrast = {"loss": {"name": "contrastive_weight_tying"}}
    once = {"loss": {**contrast["loss"], "options": {"deduplicate": True}}}
    cwt = (
        known("cwt", "as published, learning rate × 1"),
        *_twice("cwt", "as published", contrast)[1:],
        *_twice("cwt-once", "each token once", once),
    )
    rate = "alpha is in occurrences a step; at 2, nearly all rare-language tokens are gated"
    return [
        Family(name="agg", label="AGG", settings=agg, note=rate),
        Family(
            name="adversarial",
            label="Adv",
            settings=(known("adversarial", "alpha .005"), *worst),
        ),
        Family(name="cwt", label="CWT", settings=cwt, note=OTHER),
    ]


def _negatives() -> list[Family]:
    """Return losses that choose, or move, what a target is set against."""
    eql = [{"threshold": t, "gamma": g} for g in (0.95, 0.5) for t in (0.004, 0.001)]
    seesaw = [{"p": p, "q": q} for p in (0.8, 0.4) for q in (2.0, 0.0)]
    acsl: list[dict[str, Any]] = [{"form": "sigmoid", "xi": 0.7}]
    acsl += [{"form": "softmax", "xi": xi} for xi in (0.01, 0.001, 0.0001)]
    prior = _of("tau", 1.0, 0.5, 0.25, 0.1)
    return [
        Family(
            name="eql",
            label="EQL",
            settings=by_options("eql", "equalization", eql),
            note="below a share of .004 lie all tokens of the rare language",
        ),
        Family(name="seesaw", label="Seesaw", settings=by_options("seesaw", "seesaw", seesaw)),
        Family(
            name="acsl",
            label="ACSL",
            settings=by_options("acsl", "acsl", acsl),
            note=f"sigmoid is as published, softmax our transfer; {OTHER}",
        ),
        Family(
            name="logit-adjusted",
            label="Logit adjustment",
            settings=by_options("logit-adjusted", "logit_adjusted", prior),
            note="the prior is dropped when it is judged, as published, which costs perplexity; "
            "with it, this is a bias",
        ),
    ]


def _shapes() -> list[Family]:
    """Return losses of another shape than cross-entropy over all logits."""
    draws: list[dict[str, Any]] = [{"proposal": "log_uniform", "samples": 64}]
    draws += [{"proposal": "frequency", "samples": samples} for samples in (64, 32, 16)]
    margins: list[dict[str, Any]] = [{"normalize": True, "s": 30.0, "max_margin": 0.5}]
    margins += [{"normalize": False, "s": 1.0, "max_margin": m} for m in (0.5, 1.0, 0.25)]
    return [
        Family(
            name="entmax",
            label="Entmax 1.5",
            settings=by_rate("entmax", {"loss": {"name": "entmax15"}}),
            note=f"{RATE}; {OTHER}",
        ),
        Family(
            name="sparsemax",
            label="Sparsemax",
            settings=by_rate("sparsemax", {"loss": {"name": "sparsemax"}}),
            note=f"{RATE}; {OTHER}",
        ),
        Family(
            name="sampled",
            label="Sampled softmax",
            settings=by_options("sampled", "sampled_softmax", draws),
            note="log-uniform is the usual proposal, for vocabularies in order of frequency, "
            "which this one is not",
        ),
        Family(
            name="ldam",
            label="LDAM",
            settings=by_options("ldam", "ldam", margins),
            note=f"published with cosines (normalize); {OTHER}",
        ),
    ]


def _weights() -> list[Family]:
    """Return losses that weigh tokens."""
    beta = _of("beta", 0.9999, 0.999, 0.99, 0.99999)
    return [
        Family(
            name="focal",
            label="Focal",
            settings=by_options("focal", "focal", _of("gamma", 2.0, 1.0, 0.5, 0.25)),
        ),
        Family(
            name="mile",
            label="MiLe",
            settings=by_options("mile", "mile", _of("gamma", 1.0, 2.0, 0.5, 0.25)),
        ),
        Family(
            name="class-balanced",
            label="Class-balanced",
            settings=by_options("class-balanced", "class_balanced", beta),
        ),
    ]


def _matrices() -> list[Family]:
    """Return penalties on the head's matrix, and what centers it."""
    weights = (1.0, 0.1, 10.0, 100.0)
    centered = {"optimizer": {"center": True}}
    return [
        Family(
            name="cosreg",
            label="CosReg",
            settings=(known("cosreg", "weight 1"), *by_weight("cosreg", "cosreg", weights[1:])),
        ),
        Family(
            name="laplacian",
            label="Laplacian",
            settings=by_weight("laplacian", "laplacian", weights),
            note="after the publication's idea; graph and scale are ours",
        ),
        Family(
            name="centering",
            label="Output centering",
            settings=(
                Setting(method="centered", words="after each step", change=centered),
                *by_weight("centering", "centering", (0.0001, 0.01, 1.0)),
            ),
        ),
    ]


def _others() -> list[Family]:
    """Return a bias, an optimizer and ways to sample."""
    sampling = [
        Setting(
            method=f"sampling-{said(tau)}",
            words=f"tau {said(tau)}",
            change={"data": {"sampling": "temperature", "tau": tau}},
        )
        for tau in (3.0, 2.0, 1.5)
    ]
    unimax = {"data": {"sampling": "unimax", "epochs": 4.0}}
    sampling.append(Setting(method="sampling-unimax", words="UniMax, 4 epochs", change=unimax))
    return [
        Family(
            name="bias",
            label="Unigram bias",
            settings=by_rate("bias", {"model": {"unigram_bias": True}}),
            note=RATE,
        ),
        Family(
            name="coupled",
            label="Coupled AdamW",
            settings=by_rate("coupled", {"optimizer": {"name": "coupled_adamw"}}),
            note=RATE,
        ),
        Family(
            name="sampling",
            label="Language sampling",
            settings=tuple(sampling),
            note="draws the rare language more often than 2%, from the same text; "
            "both languages being as long, UniMax draws them alike",
        ),
    ]


def _of(option: str, *values: float) -> list[dict[str, float]]:
    return [{option: value} for value in values]


def _twice(name: str, words: str, change: dict[str, Any]) -> tuple[Setting, ...]:
    """Return a method at the usual learning rate and at twice that."""
    return tuple(
        Setting(
            method=name if rate == 1.0 else f"{name}-rate{said(rate)}",
            words=f"{words}, learning rate × {said(rate)}",
            change=change,
            rate=rate,
        )
        for rate in (1.0, 2.0)
    )
