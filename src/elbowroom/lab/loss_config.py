"""What a run minimises, as configuration: the loss, its margin and variant, and chosen rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.rival_options import try_rival
from elbowroom.lab.strict import from_plain
from elbowroom.losses.variants import Leaky, Softminus
from elbowroom.margins import Annealed

LossName = Literal[
    "thresholded",
    "acsl",
    "adversarial",
    "agg",
    "class_balanced",
    "contrastive_weight_tying",
    "entmax15",
    "equalization",
    "focal",
    "ldam",
    "logit_adjusted",
    "mile",
    "sampled_softmax",
    "seesaw",
    "sparsemax",
]
# which field a value alone means
SHORTHANDS = {"margin": "start", "variant": "name", "keep": "which"}
VariantName = Literal["none", "softminus", "detached_below", "decoupled", "leaky", "rare_only"]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Which rows of the vocabulary are meant, by at most one criterion; none by default.

    Frequencies are those that the run's own sampling makes.
    """

    languages: tuple[str, ...] = ()
    """All tokens of these languages."""
    language_share: float | None = None
    """All tokens of the languages that make up less than this share."""
    at_most: float | None = None
    """Tokens that occur at most so often in the training text."""
    share: float | None = None
    """The rarest tokens that together make up at most this share."""
    quantile: float | None = None
    """The rarest tokens: this share of the vocabulary."""

    def __post_init__(self) -> None:
        given = [name for name, value in self.criteria().items() if value is not None]
        if len(given) > 1:
            raise ArgumentValueError(given[-1], "at most one criterion", " and ".join(given))
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in ("language_share", "share", "quantile", "at_most"):
            value = getattr(self, name)
            if value is not None:
                most = math.inf if name == "at_most" else 1.0
                checks.number(name, value, at_least=0.0, at_most=most)

    def criteria(self) -> dict[str, Any]:
        """Return all criteria; None where not given."""
        return {
            "languages": self.languages or None,
            "language_share": self.language_share,
            "at_most": self.at_most,
            "share": self.share,
            "quantile": self.quantile,
        }

    def __bool__(self) -> bool:
        return any(value is not None for value in self.criteria().values())


@dataclass(frozen=True, kw_only=True)
class MarginConfig:
    """The margin: fixed at ``start``, or moving to an end. In YAML also just a number."""

    start: float = float("inf")
    """The margin (alpha, if ``norms`` is given) at the start; infinite is cross-entropy."""
    end: float | None = None
    """What it moves to."""
    end_top_p: float | None = None
    """Instead of ``end``: ``top_p(vocab_size, end_top_p)``, such as 0.999."""
    shape: Literal["linear", "geometric"] = "linear"
    """How it moves."""
    hold: float = 0.0
    """Share of training until which ``start`` holds."""
    release: float = 1.0
    """Share of training from which the end holds."""
    norms: Literal["both", "target", "hidden"] | None = None
    """Margins in proportion to these norms."""

    def __post_init__(self) -> None:
        checks.number("start", self.start, at_least=0.0, finite=False)
        if not self.moves:
            return
        if self.end is not None and self.end_top_p is not None:
            raise ArgumentValueError("end_top_p", "either end or end_top_p", "both")
        if self.start == float("inf"):
            raise ArgumentValueError("start", "a finite number where the margin moves", "inf")
        if self.end_top_p is not None:
            checks.number("end_top_p", self.end_top_p, above=0.0, below=1.0)
        end = 1.0 if self.end is None else self.end
        Annealed(self.start, end, self.shape, self.hold, self.release)  # checks the rest

    @property
    def moves(self) -> bool:
        """Whether the margin changes in training."""
        return self.end is not None or self.end_top_p is not None

    @classmethod
    def shorthand(cls, value: object, where: str = "margin") -> MarginConfig:
        """Return the fixed margin that a bare number means."""
        return from_plain(cls, {SHORTHANDS["margin"]: value}, where)


@dataclass(frozen=True, kw_only=True)
class VariantConfig:
    """One of `elbowroom.variants`. In YAML also just its name."""

    name: VariantName = "none"
    c: float = 1.0
    """Of softminus: the width of the fade."""
    detach_threshold: bool = False
    """Of softminus: treat the threshold as a constant."""
    weight: float = 0.1
    """Of leaky: the share of ordinary cross-entropy."""
    rows: Rows = Rows()
    """Of rare_only: which rows the threshold may mask."""

    def __post_init__(self) -> None:
        Softminus(self.c, self.detach_threshold)  # these check their numbers
        Leaky(self.weight)
        if self.name == "rare_only" and not self.rows:
            raise ArgumentValueError("rows", "the rows that rare_only may mask", "none")

    @classmethod
    def shorthand(cls, value: object, where: str = "variant") -> VariantConfig:
        """Return the variant that a bare name means."""
        return from_plain(cls, {SHORTHANDS["variant"]: value}, where)


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The loss: ours, or a rival's."""

    name: LossName = "thresholded"
    margin: MarginConfig = MarginConfig()
    variant: VariantConfig = VariantConfig()
    protect: Rows = Rows()
    """Equalization: these rows are negatives only where the target is one of them."""
    protect_until: float = 1.0
    """Share of training at which equalization ends."""
    logit_scale: float = 1.0
    """Multiplies the logits in training: the paper's T."""
    scale_after_training: bool = True
    """Whether it multiplies them afterwards, too, where models are judged and used; in the paper's
    code it does not."""
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """A rival's own parameters."""
    count_steps: int | None = None
    """Of rivals that count tokens: over so many steps; None for the whole text's counts."""
    penalty: Literal["none", "cosreg", "laplacian", "centering"] = "none"
    """A penalty on the head's matrix that is added."""
    penalty_weight: float = 1.0

    def __post_init__(self) -> None:
        checks.number("protect_until", self.protect_until, at_least=0.0, at_most=1.0)
        checks.number("logit_scale", self.logit_scale, above=0.0)
        checks.number("label_smoothing", self.label_smoothing, at_least=0.0, below=1.0)
        checks.number("z_loss", self.z_loss, at_least=0.0)
        checks.number("penalty_weight", self.penalty_weight, at_least=0.0)
        if self.count_steps is not None:
            checks.integer("count_steps", self.count_steps, at_least=1)
        if self.name == "thresholded":
            self._check_ours()
        else:
            self._check_rival()

    @property
    def final_scale(self) -> float:
        """What multiplies the logits of a trained model."""
        return self.logit_scale if self.scale_after_training else 1.0

    def _check_ours(self) -> None:
        for name in ("options", "count_steps"):
            if getattr(self, name):
                raise ArgumentValueError(name, "none for the thresholded loss", getattr(self, name))
        if self.variant.name == "softminus" and 0.0 in (self.margin.start, self.margin.end):
            fix = "at margin 0 softminus would erase the target itself"
            raise ArgumentValueError("margin", "margins above 0 with softminus", 0.0, fix)

    def _check_rival(self) -> None:
        ours = LossConfig()
        for name in ("margin", "variant", "protect", "label_smoothing", "z_loss"):
            if getattr(self, name) != getattr(ours, name):
                fix = "leave it out, or use the thresholded loss"
                raise ArgumentValueError(name, f"none for {self.name}", "one", fix)
        try_rival(self.name, self.options, self.count_steps)
