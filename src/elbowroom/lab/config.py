"""What a run is: one configuration, from YAML or from flags, that decides everything.

A `RunConfig` is one model with one start and one order of data. A `Plan` is a file with several:
a common base, named changes to it, and seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal

from elbowroom import checks
from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.evaluation import EvaluationConfig
from elbowroom.lab.loss_config import SHORTHANDS, LossConfig, Rows
from elbowroom.lab.model import ModelConfig
from elbowroom.lab.strict import from_plain, to_plain

Precision = Literal["float32", "tf32", "bf16"]
_LARGEST_RATE = 1e30  # a step of it leaves float32 weights finite
_SEEDS = range(-(2**63), 2**63)


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

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, at_least=0.0, at_most=_LARGEST_RATE)
        if self.schedule != "constant":
            fix = "lower it too, or choose the schedule constant"
            checks.number("min_lr", self.min_lr, at_least=0.0, at_most=self.lr, fix=fix)
        checks.integer("warmup", self.warmup, at_least=0)
        checks.number("decay", self.decay, at_least=0.0, at_most=1.0)
        for beta in self.betas:
            checks.number("betas", beta, at_least=0.0, below=1.0)
        checks.number("eps", self.eps, above=0.0)
        checks.number("weight_decay", self.weight_decay, at_least=0.0)
        checks.number("clip", self.clip, at_least=0.0)


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

    def __post_init__(self) -> None:
        checks.integer("vocab_size", self.vocab_size, at_least=1)
        checks.number("validation", self.validation, above=0.0, below=1.0)
        checks.number("tau", self.tau, above=0.0, finite=False)
        checks.number("epochs", self.epochs, above=0.0)
        for share in self.shares:
            checks.number("shares", share, at_least=0.0)
        if self.sampling == "fixed" and not any(self.shares):
            raise ArgumentValueError("shares", "a share a language, for fixed sampling", "none")


@dataclass(frozen=True, kw_only=True)
class KeepConfig:
    """Which weights a run keeps, and is judged by. In YAML also just the word."""

    which: Literal["last", "best"] = "last"
    """The last ones, or those with the lowest loss on random batches of held-out text."""
    every: int = 250
    """Of best: after how many steps the loss is estimated."""
    batches: int = 20
    """Of best: batches an estimate; as large as in training, languages drawn as often."""
    by: Literal["cross_entropy", "objective"] = "cross_entropy"
    """Of best: the loss is plain cross-entropy, or what the run minimises."""

    def __post_init__(self) -> None:
        checks.integer("every", self.every, at_least=1)
        checks.integer("batches", self.batches, at_least=1)

    @classmethod
    def shorthand(cls, value: object, where: str = "keep") -> KeepConfig:
        """Return what a bare word means."""
        return from_plain(cls, {"which": value}, where)


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
    keep: KeepConfig = KeepConfig()
    """Which weights are kept in the end, and judged."""
    gradients_every: int | None = None
    """Measure the norms of each token's gradient by type at every so many-th step; None not to."""
    compile: bool | None = None
    """Compile the model: None to do so on CUDA only."""
    parallel: Literal["ddp", "fsdp", "none"] = "ddp"
    """Of several processes: ddp shares the batches of a run that is trained alone, fsdp also each
    run's weights, one run after the other; with none every run is trained by one process."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "log_every", "eval_every", "eval_windows"):
            checks.integer(name, getattr(self, name), at_least=1)
        for name in ("checkpoint_every", "gradients_every"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), at_least=1)
        checks.number("checkpoint_minutes", self.checkpoint_minutes, above=0.0)
        if self.batch % self.accumulate:
            expected = f"a divisor of the batch ({self.batch})"
            raise ArgumentValueError("accumulate", expected, self.accumulate)


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
    zero_rows: Rows = field(default_factory=Rows)
    """Rows of embedding and head that start at zero."""
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_.+" for c in self.name):
            raise ArgumentValueError("name", "letters, digits, '-', '_', '.' and '+'", self.name)
        for name in ("init_seed", "data_seed"):
            if checks.integer(name, getattr(self, name)) not in _SEEDS:
                raise ArgumentValueError(name, "an integer of 64 bits", getattr(self, name))

        if self.training.gradients_every is not None:
            self._check_gradients()

    def _check_gradients(self) -> None:
        """Raise where gradients by type have no closed form, or no process has them whole."""
        plain, loss = LossConfig(), self.loss
        for name in ("name", "variant", "label_smoothing", "z_loss", "penalty"):
            if getattr(loss, name) != getattr(plain, name):
                got = f"another loss.{name}"
                raise ArgumentValueError("gradients_every", "thresholded cross-entropy alone", got)
        if self.training.parallel == "fsdp":
            expected = "weights that each process has whole"
            raise ArgumentValueError("gradients_every", expected, "training.parallel fsdp")

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
    ``name``) and ``seeds`` (their number, or a list of them; without it runs keep their own)::

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
    base = _mapping("base", values.get("base") or {})
    out = [run_config(merge(base, change)) for change in _changes(values.get("runs"))]
    if values.get("seeds") is not None:
        seeds = _seeds(values["seeds"])
        if any(run.init_seed or run.data_seed for run in out):
            fix = "leave out seeds, or init_seed and data_seed"
            raise ArgumentValueError("seeds", "runs without seeds of their own", "some", fix)
        out = [run.with_seed(seed) for run in out for seed in seeds]
    names_differ(out)
    return out


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ArgumentTypeError(name, "a mapping of settings", checks.describe(value))
    return value


def _changes(runs: object) -> list[Mapping[str, Any]]:
    """Return the changes that make a plan's runs; without any, one run without changes."""
    if runs is None:
        return [{}]
    if not isinstance(runs, (list, tuple)) or not runs:
        raise ArgumentTypeError("runs", "a list of runs", checks.describe(runs))
    return [_mapping(f"runs[{i}]", run) for i, run in enumerate(runs)]


def _seeds(seeds: object) -> list[int]:
    """Return the seeds that are listed, or the first so many."""
    if isinstance(seeds, (list, tuple)) and seeds:
        return [checks.integer("seeds", seed) for seed in seeds]
    return list(range(checks.integer("seeds", seeds, at_least=1, fix="or a list of seeds")))


def names_differ(runs: Sequence[RunConfig]) -> None:
    """Raise if two runs would share a folder."""
    seen: set[str] = set()
    for run in runs:
        if run.folder in seen:
            raise ArgumentValueError("name", "another for each run", run.folder, "rename one")
        seen.add(run.folder)


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the values of ``change`` put in, mapping by mapping.

    Example:
        >>> merge({"loss": {"margin": 1}}, {"loss": {"margin": {"end": 3}}})
        {'loss': {'margin': {'start': 1, 'end': 3}}}
    """
    out = dict(base)
    for key, value in change.items():
        old = out.get(key)
        old = to_plain(old) if is_dataclass(old) else old
        if key in SHORTHANDS and isinstance(value, Mapping) and isinstance(old, int | float | str):
            old = {SHORTHANDS[key]: old}
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        out[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return out


def as_plain(run: RunConfig) -> dict[str, Any]:
    """Return a run as plain values, all defaults included: what ``config.yaml`` holds."""
    return to_plain(run)  # type: ignore[no-any-return]
