"""Which rows each table of the paper has, which runs stand behind a row, and what to know of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elbowroom import checks
from elbowroom.study.paper.families import FAMILIES

SE = "as published, separated embeddings are plain AdamW: these are the runs without them"
SKIPPED = "not in the paper: rows without a gradient are truly skipped (RowAdamW)"
UNTIED_SE = (
    "plain AdamW, as above; the published untied runs also lost the head's weight decay, "
    "which these have"
)
SCALED = "T multiplies the logits before an unscaled margin, in training only"
CWT = (
    "without the embedding predictor of its own paper; where weights are chosen by a loss, it is "
    "this method's own, as in the paper's code"
)
OURS = "not in the paper"
DEFAULT = f"{OURS}: this project's default, annealed"
TWINS = f"{OURS}: the rare language's rows start at zero and are protected until half-way"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table, for both languages."""

    label: str
    """What the table says."""
    method: str
    """Whose runs it shows."""
    printed: str | None
    """Its key among the printed numbers; None for rows that the paper does not have."""
    note: str = ""
    """What to know of it."""
    languages: tuple[str, ...] = ("hr", "lr")
    """The languages that it is judged on."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A table or a figure: what ``--only`` names."""

    name: str
    """Such as "table-metrics"."""
    title: str
    """Its heading."""
    rows: tuple[Row, ...] = ()
    """Of a table of metrics."""
    methods: tuple[str, ...] = ()
    """Of others, whose runs they need."""
    families: tuple[str, ...] = ()
    """Of a table whose rows the tuning chooses, one a family."""
    note: str = ""
    """What to know of all of it."""

    def needs(self) -> tuple[str, ...]:
        """Return the methods whose runs it shows, each once."""
        return tuple(dict.fromkeys((*(row.method for row in self.rows), *self.methods)))


def _row(label: str, method: str, note: str = "", printed: str | None = None) -> Row:
    return Row(label=label, method=method, printed=printed or method, note=note)


def _more(label: str, method: str, note: str = OURS) -> Row:
    return Row(label=label, method=method, printed=None, note=note)


def _se(label: str, method: str, printed: str, note: str = SE) -> Row:
    return Row(label=label, method=method, printed=printed, note=note)


_BASELINE = _row("Baseline", "ce-tied")
_ALONE = Row(
    label="Monolingual",
    method="monolingual",
    printed="monolingual",
    note="the rare language's windows only, 2% of the steps, warm-up 2",
    languages=("lr",),
)
_M2, _M1 = _row("Margin 2", "margin-2"), _row("Margin 1", "margin-1")
_M1_T46 = _row("Margin 1, T .46", "margin-1-T.46", SCALED)
_METRICS = (
    _BASELINE,
    _ALONE,
    _row("Margin 8", "margin-8"),
    _row("Margin 4", "margin-4"),
    _M2,
    _M1,
    _M1_T46,
    _se("Margin 2 + SE", "margin-2", "se-2"),
    _se("Margin 1 + SE", "margin-1", "se-1"),
    _se("Margin .6 + SE", "margin-.6", "se-.6"),
    *(_more(f"Margin {m}, rows skipped", f"skipped-{m}", SKIPPED) for m in ("2", "1", ".6")),
    _more("Margin .3 to 16", "margin-.3-16"),
    _more("Margin .3 to 16, zero rows", "twins-.3-16", TWINS),
    _more("Margin 1 to top-p .999", "margin-default", DEFAULT),
    _more("Margin 1 to top-p .999, zero rows", "twins-default", TWINS),
)
_EXTENDED = (
    _BASELINE,
    _row("AGG, alpha .02, K 1600", "agg-.02"),
    _row("AGG, alpha .2, K 1600", "agg-.2"),
    _row("CosReg, gamma 1", "cosreg"),
    _row("Adv, alpha .05", "adversarial", "the paper prints alpha .05, its run used .005, as here"),
    _row("CWT", "cwt", CWT),
    _M1,
    _row("Margin .5", "margin-.5"),
    _row("Margin 0", "margin-0"),
    _M1_T46,
    _se("Margin 1 + SE", "margin-1", "se-1"),
    _se("Margin 1 + SE, T .44", "margin-1-T.44", "se-1-T.44", f"{SE}; {SCALED}"),
    _row("Alpha .25", "alpha-.25"),
    _row("Alpha .0625", "alpha-.0625"),
    _se("Alpha .0625 + SE", "alpha-.0625", "se-alpha-.0625"),
    _more("Alpha .0625, rows skipped", "skipped-alpha-.0625", SKIPPED),
    _more("Margin .3 to 16", "margin-.3-16"),
    _more("Margin 1 to top-p .999", "margin-default", DEFAULT),
)
_UNTIED = (
    _row("Baseline, untied", "ce-untied"),
    _row("Margin 2, untied", "untied-2"),
    _row("Margin 1, untied", "untied-1"),
    _se("Baseline + SE, untied", "ce-untied", "untied-se", UNTIED_SE),
    _se("Margin 2 + SE, untied", "untied-2", "untied-se-2", UNTIED_SE),
    _se("Margin 1 + SE, untied", "untied-1", "untied-se-1", UNTIED_SE),
    *(_more(f"Margin {m}, untied, rows skipped", f"untied-skipped-{m}", SKIPPED) for m in "21"),
    _more("Margin .3 to 16, untied", "untied-.3-16"),
    _more("Margin 1 to top-p .999, untied", "untied-default", DEFAULT),
)
_SOFTMINUS = (
    _M2,
    _M1,
    *(
        _row(f"Softminus{dt}, margin {m}{c}", f"softminus-{key}{m}{c_key}")
        for dt, key in (("", ""), (", DT", "dt-"))
        for c, c_key in (("", ""), (", C 5", "-c5"))
        for m in "21"
    ),
)
_DETACHED = (
    _row("Detached under threshold, margin 2", "detached-2"),
    _row("Detached under threshold, margin 1", "detached-1"),
)
SHOWN = (
    *("ce-tied", "margin-8", "margin-2", "margin-1", "margin-.6", "margin-1-T.46"),
    "margin-.3-16",
)
TRANSLATED = ("ce-tied", "margin-.6", "margin-.3-16", "twins-.3-16")
MEASURED = ("gradients-ce", "gradients-2")
TAILED = ("ce-tied", "margin-2", "margin-1", "margin-.3-16")
STEPPED = ("ce-tied",)
FOLLOWED = (
    *("ce-tied", "margin-1", "margin-.6", "alpha-.0625", "margin-.3-16"),
    "twins-.3-16",
)
SPARSE = (
    *("margin-8", "margin-2", "margin-1", "margin-.6", "alpha-.0625"),
    *("margin-.3-16", "twins-.3-16"),
)
WIDTHS = {  # of fixed margins, and of alphas: whose runs have them
    "margin": {
        **{m: f"margin-{m}" for m in ("0", ".5", ".6", "1", "2", "4", "8")},
        "∞": "ce-tied",
    },
    "alpha": {a: f"alpha-{a}" for a in (".0625", ".25", ".5", "1")},
}
TABLES = (
    Part(name="table-metrics", title="Metrics", rows=_METRICS),
    Part(
        name="table-extended",
        title="Extended table",
        rows=_EXTENDED,
        note="Rivals are as the paper ran them. table-rivals has more of them, each tuned alike.",
    ),
    Part(name="table-untied", title="Without weight tying", rows=_UNTIED),
    Part(
        name="table-softminus",
        title="Softminus",
        rows=_SOFTMINUS,
        note="DT: the threshold is detached. The authors' code subtracts P(target) exp(-margin) "
        "with exponent 1/C, and so does the lab.",
    ),
    Part(name="table-detached", title="Detached under the threshold", rows=_DETACHED),
)
RIVALS = Part(
    name="table-rivals",
    title="Rivals, each tuned alike",
    families=tuple(FAMILIES),
    note="Each method, ours included, had as many settings, as many runs of each, and one rule to "
    "choose by. Weights are tied where nothing else is said.",
)
EFFECTIVE = Part(
    name="table-effective",
    title="Effective margins of the GPT-2 family",
    note="Initialised models are drawn and computed here, over a sample of tokens. Pre-trained "
    "ones need their weights: --weights gpt2=model.safetensors, or another NAME=FILE. In brackets "
    "the spread over tokens.",
)
HYPERPARAMETERS = Part(
    name="table-hyperparameters",
    title="Hyperparameters",
    note="The code has a few that the paper does not print.",
)
BESIDE = Part(
    name="table-protocols",
    title="Two protocols side by side",
    note="Rows whose runs are there by both protocols: means over seeds with 95% intervals. The "
    "paper's way chooses weights and temperatures on the test text; the clean one does not, and "
    "gives each language text of its own. Each reads the temperature of its own protocol.",
)
TRANSLATIONS = Part(
    name="table-translations",
    title="Learned translations",
    methods=TRANSLATED,
    note="The three nearest rows of the head by cosine, first seed; and over all seeds, how many "
    "of the twelve are the same letter in the other language or case.",
)
TOKENS = Part(
    name="figure-tokens",
    title="Token distribution",
    note="Expected counts in training of one pass over the text, the most frequent token first. "
    "The paper prints from 150,209.5 to 0.98 for the frequent language, from 3,065.5 to 0.02 for "
    "the rare one.",
)
COSINES = Part(
    name="figure-cosines",
    title="Cosines between embeddings",
    methods=TRANSLATED,
    note="Rows of the head of the first seed, by language and then by character, and the classes "
    "of pairs: NA without case, UC and LC upper and lower case, T one character in both languages, "
    "C upper and lower case of a letter, T+C both. The means are over all seeds.",
)
COMPONENTS = Part(
    name="figure-components",
    title="Principal components of embeddings",
    methods=TRANSLATED,
    note="Rows of the head of the first seed. A line joins a character's two languages; the five "
    "rarest characters of each language are crossed.",
)
TAIL = Part(
    name="figure-tail",
    title="Long tail of a distribution",
    methods=TAILED,
    note="Probabilities of the frequent language's tokens after one held-out context, sorted. "
    "Thin lines are seeds, thick ones their geometric mean.",
)
GRADIENTS = Part(
    name="figure-gradients",
    title="Gradient ratios",
    methods=MEASURED,
    note="Alignment (through the context and as a target) over marginalization, by the rank of the "
    "token's frequency: the mean over seeds and its 95% interval. Norms are of the whole batch's "
    "gradient before clipping, measured at some of the steps. Where a threshold makes "
    "marginalization zero, steps drop out of the average of ratios, as in the paper's printed "
    "figure; the lower bound puts the token's average there, as its footnote says. Below 1, "
    "marginalization is the larger. A line breaks at tokens without a ratio above 0.",
)
OPTIMISATION = Part(
    name="figure-optimisation",
    title="Types of optimization in one step",
    methods=STEPPED,
    note="One position of the batch that a trained baseline would see next, first seed: what its "
    "gradient does to the rows, by cross-entropy and, at the same weights, with margin 1. The "
    "plane is spanned by the hidden state, along which the target is pulled and other rows are "
    "pushed, and by the gradient of the context's token: so it holds the arrows of cross-entropy "
    "whole, and rows and the other loss's context arrow as they fall on it. Across is the logit; "
    "the dotted line is the threshold. An arrow's length is the logarithm of the gradient's norm, "
    "over six powers of ten, and the shortest for all below; a row whose marginalization is "
    "exactly zero has no arrow of it and a hollow mark. Of the context's tokens, the one that "
    "moves most has an arrow.",
)
DISCOVERY = Part(
    name="figure-discovery",
    title="Discovery of the shared letters",
    methods=FOLLOWED,
    note="The share of the rare language's rows whose nearest row of the frequent language, by "
    "cosine, is the same character, while training: a line a seed. Chance is one in the number of "
    "characters. A run has discovered that the languages share their letters if a third of the "
    "rows find theirs at the end; that is our bound, in a gap: of the committed runs those with a "
    "best perplexity below 7.5 have .46 or more, all others .20 or less.",
)
KEPT = Part(
    name="figure-kept",
    title="Share of entries kept",
    methods=SPARSE,
    note="The share of logits that the loss kept, while training: the mean over seeds and its 95% "
    "interval. Only these entries need a gradient.",
)
MARGINS = Part(
    name="figure-margins",
    title="Margin against quality",
    methods=tuple(method for methods in WIDTHS.values() for method in methods.values()),
    note="Each dot is a seed; the line joins means, a band is a 95% interval. Margin ∞ is "
    "cross-entropy; alpha is a margin in proportion to the norms of the hidden state and the "
    "target's row. Alpha .5 is in the paper's code and not in the paper: one seed, perplexity "
    "4.966 (hr) and 9.690 (lr) at temperature 1. Alpha 1 is ours.",
)
TEMPERATURE = Part(
    name="figure-temperature",
    title="Perplexity against temperature",
    methods=SHOWN,
)
DISTRIBUTIONS = Part(
    name="figure-distributions",
    title="Distributions over seeds",
    note="A dot is a seed, the upright line the mean, the band its 95% interval; one more run "
    "would lie on the thin line, if runs are normal. The ring is what the paper prints.",
)
PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        *(*TABLES, RIVALS, BESIDE, EFFECTIVE, HYPERPARAMETERS, TRANSLATIONS),
        *(OPTIMISATION, TOKENS, GRADIENTS, TAIL, COSINES, COMPONENTS, TEMPERATURE),
        *(DISCOVERY, KEPT, MARGINS, DISTRIBUTIONS),
    )
}


def parts_of(only: Iterable[str] = ()) -> tuple[Part, ...]:
    """Return the parts that are named, in the paper's order; all if none are.

    Example:
        >>> [part.name for part in parts_of(["figure-temperature", "table-untied"])]
        ['table-untied', 'figure-temperature']
    """
    names = [checks.choice("--only", name, tuple(PARTS)) for name in only]
    return tuple(part for part in PARTS.values() if not names or part.name in names)


def methods_of(parts: Iterable[Part]) -> tuple[str, ...]:
    """Return the methods whose runs some parts show, each once.

    Distributions and protocols go with the tables that are shown; alone they need every table.

    Example:
        >>> methods_of(parts_of(["table-detached"]))
        ('detached-2', 'detached-1')
    """
    chosen = list(parts)
    if {DISTRIBUTIONS.name, BESIDE.name} & {part.name for part in chosen}:
        chosen += tables_of(chosen)
    return tuple(dict.fromkeys(method for part in chosen for method in part.needs()))


def tables_of(parts: Iterable[Part]) -> list[Part]:
    """Return the tables of metrics among some parts; all tables if there are none."""
    return [part for part in parts if part.rows or part.families] or list(TABLES)
