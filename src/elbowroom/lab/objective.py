"""What a group of runs minimises: our loss or a rival's, with one margin, mask and seed a run.

Runs whose losses differ in numbers only share one call, ``[G, ...]``; see `key`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from elbowroom import margins, rivals
from elbowroom.counts import TokenCounts
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.config import RunConfig
from elbowroom.lab.loss_config import LossConfig, MarginConfig, Rows
from elbowroom.lab.rival_options import bind
from elbowroom.losses import linear_thresholded_cross_entropy, variants
from elbowroom.losses.functional import Backend
from elbowroom.margins import Margin

SMALL = 2**28  # logits of a group, up to which the eager equations are used: they can be compiled


def key(run: RunConfig) -> tuple[object, ...]:
    """Return what two runs must share to be computed by one call."""
    loss, margin = run.loss, run.loss.margin
    structure = (
        margin.start == float("inf"),
        margin.moves,
        margin.shape,
        margin.hold,
        margin.release,
        margin.norms,
    )
    own = ("margin", "protect", "protect_until", "options")  # may differ, or compared below
    rest = {f.name: getattr(loss, f.name) for f in fields(loss) if f.name not in own}
    options = tuple(sorted(loss.options.items()))
    return repr(rest), bool(loss.protect), structure, options, run.training.keep.by


def margin_of(configs: Sequence[MarginConfig], vocab_size: int, device: torch.device) -> Margin:
    """Return the margins of a group of one structure as one rule with a number a run.

    Args:
        configs: one a run.
        vocab_size: for ends that follow from it.
        device: where the numbers will be needed.
    """
    first = configs[0]
    if first.start == float("inf"):
        return float("inf")

    def numbers(values: list[float]) -> Any:
        tensor = torch.tensor(values, device=device)
        return tensor if first.norms is None else margins.ByNorms(tensor, first.norms)

    start = numbers([config.start for config in configs])
    if not first.moves:
        return start  # type: ignore[no-any-return]
    end = numbers([_end(config, vocab_size) for config in configs])
    return margins.Annealed(start, end, first.shape, first.hold, first.release)


def _end(config: MarginConfig, vocab_size: int) -> float:
    if config.end_top_p is not None:
        return margins.top_p(vocab_size, config.end_top_p)
    assert config.end is not None
    return config.end


def rows_mask(rows: Rows, counts: TokenCounts, groups: Tensor, languages: Sequence[str]) -> Tensor:
    """Return the rows of the vocabulary that a criterion names, boolean ``[V]``.

    Args:
        rows: the criterion.
        counts: how often the run's sampling shows each token.
        groups: the language of each token, negative for shared ones.
        languages: their names.
    """
    given = {name: value for name, value in rows.criteria().items() if value is not None}
    if not given:
        return torch.zeros(counts.vocab_size, dtype=torch.bool)
    ((name, value),) = given.items()
    if name == "languages":
        for language in value:
            if language not in languages:
                expected = f"languages of the texts ({', '.join(languages)})"
                raise ArgumentValueError("rows.languages", expected, language)
        wanted = [list(languages).index(language) for language in value]
        return counts.rare(group_of_token=groups, groups=wanted)
    if name == "language_share":
        return counts.rare(group_of_token=groups, language_share=value)
    return counts.rare(**{name: value})


@dataclass(frozen=True)
class Facts:
    """What objectives know about the texts, on the device.

    Attributes:
        counts: ``[V]`` a run: how often its sampling shows each token in all of training.
        groups: ``[V]``, each token's language.
        languages: their names.
    """

    counts: Sequence[TokenCounts]
    groups: Int[Tensor, " V"]
    languages: tuple[str, ...]

    def of(self, runs: slice) -> Facts:
        """Return what concerns some of the runs."""
        return replace(self, counts=self.counts[runs])


class Objective:
    """The loss of a group of runs as one function of hidden states and head.

    Args:
        runs: configurations of one `key`.
        facts: about the texts; ``counts`` are those of these runs.
        vocab_size: V.
        device: where it is computed.
    """

    def __init__(
        self, runs: Sequence[RunConfig], facts: Facts, vocab_size: int, device: torch.device
    ) -> None:
        self.config = config = runs[0].loss
        self._by = runs[0].training.keep.by
        self.margin = margin_of([run.loss.margin for run in runs], vocab_size, device)
        masks = [
            rows_mask(run.loss.protect, counts, facts.groups, facts.languages)
            for run, counts in zip(runs, facts.counts, strict=True)
        ]
        self.protect = torch.stack(masks).to(device) if config.protect else None
        until = [run.loss.protect_until for run in runs]
        self._until = torch.tensor(until, device=device)[:, None]
        self._variant = _variant(config, facts)
        if isinstance(self._variant, variants.RareOnly):
            self._variant = variants.RareOnly(self._variant.rows.to(device))
        self._seed = torch.tensor([run.data_seed for run in runs], device=device)
        self.counts = self._counts(facts, vocab_size, len(runs), device)
        self._rival = None
        if config.name != "thresholded":
            self._rival = bind(config.name, config.options, self.counts, self._seed)

    def _counts(
        self, facts: Facts, vocab_size: int, runs: int, device: torch.device
    ) -> TokenCounts:
        if self.config.count_steps is not None:
            steps = self.config.count_steps
            return TokenCounts.running(vocab_size, steps=steps, runs=runs, device=device)
        fixed = torch.stack([counts.values() for counts in facts.counts])
        return TokenCounts(fixed.to(device))

    def observe(self, target: Int[Tensor, "G N"]) -> None:
        """Count a step's targets, where the loss counts while training runs."""
        if self.config.count_steps is not None:
            self.counts.update(target)

    def run_state(self, r: int) -> dict[str, Tensor]:
        """Return what one run has counted, if it counts: of ``ring [K, G, n]``, ``[G, V]``."""
        if not self.counts.is_running:
            return {}
        return {
            f"counts.{name}": x if x.ndim == 0 else x[:, r] if name == "ring" else x[r]
            for name, x in self.counts.state_dict().items()
        }

    def load_run_states(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Go on counting from what `run_state` gave of each run."""
        found: dict[str, Tensor] = {}
        for name in ("counts", "seen", "ring") if self.counts.is_running else ():
            values = [state[f"counts.{name}"] for state in states if f"counts.{name}" in state]
            if values:
                stacked = torch.stack(values, 1 if name == "ring" else 0)
                found[name] = values[0] if values[0].ndim == 0 else stacked
        if found:
            self.counts.load_state_dict(found)

    def __call__(
        self,
        hidden: Float[Tensor, "G N D"],
        weight: Float[Tensor, "G V D"],
        target: Int[Tensor, "G N"],
        bias: Float[Tensor, "G V"] | None,
        *,
        step: Int[Tensor, ""],
        progress: Float[Tensor, ""],
    ) -> Float[Tensor, " G"]:
        """Return each run's mean loss, penalty included.

        Args:
            hidden: after the final norm.
            weight: the head's.
            target: next tokens.
            bias: the head's, or None.
            step: counts from 0.
            progress: share of training that is over.
        """
        config = self.config
        options: dict[str, Any] = {"bias": bias, "logit_scale": config.logit_scale}
        if self._rival is not None:
            loss = self._rival(hidden, weight, target, step=step, **options)
        else:
            loss = linear_thresholded_cross_entropy(
                hidden,
                weight,
                target,
                self.margin,
                progress=progress,
                protect=self.protected(progress),
                variant=self._variant,
                label_smoothing=config.label_smoothing,
                z_loss=config.z_loss,
                backend=_backend(hidden, weight),
                **options,
            )
        return loss + self._penalty(weight)

    def chosen_by(
        self,
        hidden: Float[Tensor, "G N D"],
        weight: Float[Tensor, "G V D"],
        target: Int[Tensor, "G N"],
        bias: Float[Tensor, "G V"] | None,
        *,
        step: Int[Tensor, ""],
        progress: Float[Tensor, ""],
    ) -> Float[Tensor, " G"]:
        """Return each run's loss by which weights are chosen; arguments as for the loss itself."""
        if self._by == "objective":
            return self(hidden, weight, target, bias, step=step, progress=progress)
        return linear_thresholded_cross_entropy(
            hidden,
            weight,
            target,
            float("inf"),
            bias=bias,
            logit_scale=self.config.final_scale,
            backend=_backend(hidden, weight),
        )

    def protected(self, progress: Float[Tensor, ""]) -> Bool[Tensor, "G V"] | None:
        """Return the rows that equalization protects at a moment."""
        return None if self.protect is None else self.protect & (progress < self._until)

    def kept(
        self,
        hidden: Float[Tensor, "G N D"],
        weight: Float[Tensor, "G V D"],
        target: Int[Tensor, "G N"],
        bias: Float[Tensor, "G V"] | None,
        progress: Float[Tensor, ""],
    ) -> tuple[Float[Tensor, "G N"], Float[Tensor, " G"]]:
        """Return log-probabilities under the full softmax, and the share of entries kept."""
        ours = self._rival is None
        with torch.no_grad():
            _, stats = linear_thresholded_cross_entropy(
                hidden,
                weight,
                target,
                self.margin if ours else float("inf"),
                progress=progress,
                protect=self.protected(progress) if ours else None,
                variant=self._variant if isinstance(self._variant, variants.RareOnly) else None,
                bias=bias,
                logit_scale=self.config.logit_scale,
                stats=True,
            )
        return stats.log_probability, stats.kept.float().mean(-1) / weight.shape[1]

    def _penalty(self, weight: Float[Tensor, "G V D"]) -> Float[Tensor, " G"] | float:
        match self.config.penalty:
            case "cosreg":
                return rivals.cosreg(weight, self.config.penalty_weight)
            case "laplacian":
                return rivals.laplacian(weight, self.config.penalty_weight)
            case "centering":
                return rivals.centering_penalty(weight, self.config.penalty_weight)
            case _:
                return 0.0


def _backend(hidden: Float[Tensor, "G N D"], weight: Float[Tensor, "G V D"]) -> Backend:
    """Return how a loss is computed: small ones on a GPU by what `torch.compile` takes."""
    small = hidden.shape[0] * hidden.shape[1] * weight.shape[1] <= SMALL
    return "reference" if small and hidden.device.type != "cpu" else "auto"


def _variant(config: LossConfig, facts: Facts) -> variants.Variant | None:
    given = config.variant
    match given.name:
        case "softminus":
            return variants.Softminus(given.c, given.detach_threshold)
        case "detached_below":
            return variants.DetachedBelow()
        case "decoupled":
            return variants.Decoupled()
        case "leaky":
            return variants.Leaky(given.weight)
        case "rare_only":
            masks = [rows_mask(given.rows, c, facts.groups, facts.languages) for c in facts.counts]
            return variants.RareOnly(torch.stack(masks))
        case _:
            return None
