"""What a run is: one configuration, from YAML or from flags, that decides everything.

A `RunConfig` is one model with one start and one order of data. A `Plan` is a file with several:
a common base, named changes to it, and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from elbowroom import checks
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.evaluation import EvaluationConfig
from elbowroom.lab.model import ModelConfig
from elbowroom.lab.strict import from_plain, to_plain

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
VariantName = Literal["none", "softminus", "detached_below", "decoupled", "leaky", "rare_only"]
Precision = Literal["float32", "tf32", "bf16"]


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
            raise ArgumentValueError("rows", "at most one criterion", " and ".join(given))

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
        checks.number("margin.start", self.start, at_least=0.0, finite=False)
        if self.end is not None and self.end_top_p is not None:
            raise ArgumentValueError("margin", "either end or end_top_p", "both")
        if self.moves and self.start == float("inf"):
            raise ArgumentValueError(
                "margin.start", "a finite number where the margin moves", "inf"
            )

    @property
    def moves(self) -> bool:
        """Whether the margin changes in training."""
        return self.end is not None or self.end_top_p is not None

    @classmethod
    def shorthand(cls, value: object) -> MarginConfig:
        """Return the fixed margin that a bare number means."""
        return from_plain(cls, {"start": value}, "margin")


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

    @classmethod
    def shorthand(cls, value: object) -> VariantConfig:
        """Return the variant that a bare name means."""
        return from_plain(cls, {"name": value}, "variant")


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
    """Multiplies the logits in training (the paper's T); and in evaluation, unless that says."""
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    options: dict[str, float | bool | str] = field(default_factory=dict)
    """A rival's own parameters."""
    count_steps: int | None = None
    """Of rivals that count tokens: over so many steps; None for the whole text's counts."""
    penalty: Literal["none", "cosreg", "laplacian", "centering"] = "none"
    """A penalty on the head's matrix that is added."""
    penalty_weight: float = 1.0

    def __post_init__(self) -> None:
        checks.number("loss.protect_until", self.protect_until, at_least=0.0, at_most=1.0)
        checks.number("loss.logit_scale", self.logit_scale, above=0.0)
        if self.name == "thresholded":
            if self.options or self.count_steps is not None:
                expected = "none for the thresholded loss"
                raise ArgumentValueError("loss.options", expected, self.options or "count_steps")
            return
        ours = LossConfig()
        for name in ("margin", "variant", "protect", "label_smoothing", "z_loss"):
            if getattr(self, name) != getattr(ours, name):
                fix = "leave it out, or use the thresholded loss"
                raise ArgumentValueError(f"loss.{name}", f"none for {self.name}", "one", fix)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, or one that treats the rows of embedding and head by a rule of its own."""

    name: Literal["adamw", "row_adamw", "coupled_adamw"] = "adamw"
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 100
    """Steps of warm-up; the first step has learning rate 0."""
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    decay: float = 0.2
    """Share of training that wsd decays in."""
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    """Largest norm of a run's gradient; 0 for no clipping."""
    catch_up: bool = False
    """Of row_adamw: rows that move again first catch up."""
    center: bool = False
    """Subtract the mean row of the head after each step (output centering)."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The texts, what is counted as a token, and how often a language is drawn."""

    source: str = "shakespeare"
    """A folder of texts, or a known source: see docs/corpora.md."""
    tokenizer: str = "characters"
    """characters, bytes, bpe (trained on the texts), or a tokenizer.json."""
    vocab_size: int = 8192
    """Of a BPE that is trained."""
    validation: float = 0.1
    """Share of the texts that is held out."""
    sampling: Literal["natural", "temperature", "unimax", "fixed"] = "natural"
    tau: float = 3.0
    """Of temperature sampling."""
    epochs: float = 4.0
    """Of UniMax: how often a text may be seen at most."""
    shares: tuple[float, ...] = ()
    """Of fixed sampling: a share a language."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, how much at a time, and on what."""

    steps: int = 8000
    batch: int = 12
    """Windows a step."""
    accumulate: int = 1
    """Parts that a batch is worked on in, one after the other."""
    precision: Precision = "float32"
    log_every: int = 50
    eval_every: int = 250
    eval_windows: int = 240
    """Windows a language in evaluations while training."""
    checkpoint_every: int | None = None
    """Save the state for resuming after so many steps, besides what checkpoint_minutes asks for."""
    checkpoint_minutes: float = 5.0
    compile: bool | None = None
    """Compile the model: None to do so on CUDA only."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "log_every", "eval_every", "eval_windows"):
            checks.integer(f"training.{name}", getattr(self, name), at_least=1)
        if self.checkpoint_every is not None:
            checks.integer("training.checkpoint_every", self.checkpoint_every, at_least=1)
        checks.number("training.checkpoint_minutes", self.checkpoint_minutes, above=0.0)
        if self.batch % self.accumulate:
            expected = f"a divisor of the batch ({self.batch})"
            raise ArgumentValueError("training.accumulate", expected, self.accumulate)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One model, one start, one order of data."""

    name: str = "run"
    init_seed: int = 0
    """Decides the start."""
    data_seed: int = 0
    """Decides the order of data."""
    data: DataConfig = DataConfig()
    model: ModelConfig = field(default_factory=ModelConfig)
    zero_rows: Rows = Rows()
    """Rows of embedding and head that start at zero."""
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_.+" for c in self.name):
            raise ArgumentValueError("name", "letters, digits, '-', '_', '.' and '+'", self.name)

    @property
    def folder(self) -> str:
        """The name of the run's folder."""
        return f"{self.name}-i{self.init_seed}-d{self.data_seed}"

    def with_seed(self, seed: int) -> RunConfig:
        """Return this run with another start and another order of data."""
        return replace(self, init_seed=seed, data_seed=seed)


def run_config(values: Mapping[str, Any]) -> RunConfig:
    """Make a run of plain values, checking every name and type."""
    return from_plain(RunConfig, values)


def plan(values: Mapping[str, Any]) -> list[RunConfig]:
    """Return all runs of a plan, or the one of a plain configuration.

    A plan has the keys ``base`` (a configuration), ``runs`` (a list of changes to it, each with a
    ``name``) and ``seeds`` (their number, or a list of them)::

        seeds: 10
        base: {training: {steps: 8000}}
        runs:
          - {name: ce}
          - {name: ours, loss: {margin: {start: 1.0, end_top_p: 0.999}}}

    Example:
        >>> methods = [{"name": "ce"}, {"name": "m1", "loss": {"margin": 1}}]
        >>> runs = plan({"seeds": 2, "runs": methods})
        >>> [run.folder for run in runs]
        ['ce-i0-d0', 'ce-i1-d1', 'm1-i0-d0', 'm1-i1-d1']
    """
    if not {"runs", "base", "seeds"} & values.keys():
        return [run_config(values)]
    unknown = values.keys() - {"runs", "base", "seeds"}
    if unknown:
        expected = "base, runs and seeds in a plan"
        raise ArgumentValueError(sorted(unknown)[0], expected, "another key", "put it into base")
    base = values.get("base") or {}
    runs = [run_config(merge(base, run)) for run in values.get("runs") or [{}]]
    seeds = values.get("seeds", 1)
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    out = [run.with_seed(checks.integer("seeds", seed)) for run in runs for seed in numbers]
    names_differ(out)
    return out


def names_differ(runs: Sequence[RunConfig]) -> None:
    """Raise if two runs would share a folder."""
    seen: set[str] = set()
    for run in runs:
        if run.folder in seen:
            raise ArgumentValueError("name", "another for each run", run.folder, "rename one")
        seen.add(run.folder)


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``change`` put in, mapping by mapping."""
    out = dict(base)
    for key, value in change.items():
        old = out.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        out[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return out


def as_plain(run: RunConfig) -> dict[str, Any]:
    """Return a run as plain values, all defaults included: what ``config.yaml`` holds."""
    return to_plain(run)  # type: ignore[no-any-return]
