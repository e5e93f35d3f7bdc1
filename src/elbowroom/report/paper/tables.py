"""The paper's tables as values, for a page and for files: our runs beside what is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elbowroom.report.markup import element, visible
from elbowroom.report.numbers import ABSENT, fixed, short
from elbowroom.report.paper.cells import cell_markup, cell_text
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import mean_interval
from elbowroom.study.paper import DECIMALS, LABELS, PAPER, SCORES, Part, Study, base_of
from elbowroom.study.paper.effective import Effective, Trained
from elbowroom.study.paper.printed import HYPERPARAMETERS, TRANSLATION_SLIPS, TRANSLATIONS
from elbowroom.study.paper.translations import count

_WHERE = {  # hyperparameter: where a configuration has it
    "block_size": "model.context",
    "batch_size": "training.batch",
    "n_layer": "model.layers",
    "n_head": "model.heads",
    "n_embd": "model.width",
    "max_iters": "training.steps",
    "lr_decay_iters": "training.steps",
    "learning_rate": "optimizer.lr",
    "min_lr": "optimizer.min_lr",
    "weight_decay": "optimizer.weight_decay",
    "beta1": "optimizer.betas.0",
    "beta2": "optimizer.betas.1",
    "grad_clip": "optimizer.clip",
}
_CHOICE = {  # of weights, in the paper's protocol
    "eval_iters": "training.keep.batches",
    "eval_interval": "training.keep.every",
}
_AS_IN_THE_CODE = {"max_iters": (8001,), "lr_decay_iters": (8001,)}
_NOTES = {
    "max_iters": "the code makes 8,001 updates, the first with learning rate 0",
    "lr_decay_iters": "the lab decays over all updates",
    "dropout": "the lab's GPT has none",
}


def notes_of(part: Part) -> list[str]:
    """Return the notes of a table's rows, each once, in the order of their numbers."""
    return list(dict.fromkeys(row.note for row in part.rows if row.note))


def summary_table(study: Study, part: Part, *, markup: bool = False) -> Table:
    """Return a table of metrics as the paper has it: a line a row and language.

    Args:
        study: our runs.
        part: which table.
        markup: with drawings, for a page; else in words.
    """
    notes = notes_of(part)
    columns = [Column(label="model", text=True), Column(label="language", text=True)]
    columns += [Column(label=LABELS[score]) for score in SCORES]
    rows: list[list[Cell]] = []
    for row in part.rows:
        label = row.label if not row.note else f"{row.label} [{notes.index(row.note) + 1}]"
        for language in row.languages:
            first = element("span", element("bdi", label), class_="method")
            cells: list[Cell] = [first if markup else label, language]
            for score in SCORES:
                result, decimals = study.result(row, language, score), DECIMALS[score]
                said = f"{row.label}, {language}, {LABELS[score]}"
                text = cell_text(result, decimals)
                cells.append(cell_markup(result, decimals, said) if markup else text)
            rows.append(cells)
    return Table(title=part.title, columns=columns, rows=rows)


def seeds_table(study: Study, part: Part) -> Table:
    """Return a table of metrics with a line a cell: every seed, and all digits in CSV."""
    columns = [
        Column(label="model", text=True),
        Column(label="language", text=True),
        Column(label="score", text=True),
        Column(label="seeds"),
        Column(label="mean", decimals=4),
        Column(label="one more seed", decimals=4),
        Column(label="paper", text=True),
        Column(label="meant", text=True),
        Column(label="inside", text=True),
        Column(label="every seed", text=True),
    ]
    rows: list[list[Cell]] = []
    for row in part.rows:
        for language in row.languages:
            for score in SCORES:
                found = study.result(row, language, score)
                printed = found.printed
                inside = {True: "yes", False: "no", None: ""}[found.inside]
                first: list[Cell] = [row.label, language, LABELS[score], len(found.values)]
                first += [found.mean, found.new, printed.text if printed else ""]
                meant = printed.meant if printed else ""
                seeds = " ".join(f"{value:.5g}" for _, value in sorted(found.values.items()))
                rows.append([*first, meant, inside, seeds])
    return Table(title=f"{part.title}: every seed", columns=columns, rows=rows)


def hyperparameter_table(study: Study) -> Table:
    """Return what the paper prints beside what our runs had."""
    record = study.records[0] if study.records else None
    first = next((r for r in study.records if r["name"] != "monolingual"), record)
    config = (first or {}).get("config") or base_of()
    chosen = study.protocol is PAPER
    where = _WHERE | (_CHOICE if chosen else {})
    notes = _NOTES | ({} if chosen else dict.fromkeys(_CHOICE, "the last iterate is judged"))
    rows: list[list[Cell]] = []
    for name, printed in HYPERPARAMETERS.items():
        ours = _at(config, where[name]) if name in where else None
        same = ours is None or float(ours) in (float(printed), *_AS_IN_THE_CODE.get(name, ()))
        said = ("" if same else "differs", notes.get(name, ""))
        note = "; ".join(filter(None, said))
        rows.append([name, printed, ABSENT if ours is None else short(float(ours)), note])
    warmup = short(float(_at(config, "optimizer.warmup")))
    rows.append(["warmup_iters", ABSENT, warmup, "in the paper's code: 100"])
    labels = ("hyperparameter", "paper", "ours", "note")
    columns = [Column(label=label, text=label in ("hyperparameter", "note")) for label in labels]
    return Table(title="Hyperparameters", columns=columns, rows=rows)


def effective_table(found: Sequence[Effective], trained: Sequence[Trained] = ()) -> Table:
    """Return effective margins of initialised models, and of trained ones where weights are here.

    Args:
        found: of the GPT-2 family, with what the paper prints.
        trained: of weights that the user has; models that the paper does not have come last.
    """
    columns = [
        Column(label="model", text=True),
        Column(label="d_model"),
        Column(label="margin, initialised"),
        Column(label="spread over tokens", decimals=3),
        Column(label="paper"),
        Column(label="alpha, initialised", decimals=4),
        Column(label="spread over tokens", decimals=5),
        Column(label="paper"),
        Column(label="margin, pre-trained"),
        Column(label="paper"),
        Column(label="alpha, pre-trained"),
        Column(label="paper"),
    ]
    ours = {one.model: one for one in trained}
    rows: list[list[Cell]] = []
    for one in found:
        margin, alpha = ("in" if inside else "out" for inside in one.inside)
        row: list[Cell] = [one.model, one.width, one.margin, one.margin_std]
        row += [f"{one.margin_printed.text} {margin}", one.alpha, one.alpha_std]
        row.append(f"{one.alpha_printed.text} {alpha}")
        rows.append([*row, *_trained(ours.pop(one.model, None), one.trained)])
    for other in ours.values():
        absent: list[Cell] = [ABSENT] * 6
        rows.append([other.model, other.width, *absent, *_trained(other, (ABSENT, ABSENT))])
    return Table(title="Effective margins of the GPT-2 family", columns=columns, rows=rows)


def _trained(one: Trained | None, printed: tuple[str, str]) -> list[Cell]:
    """Return margin and alpha with their spread over tokens, each beside the printed one."""
    ours = (ABSENT, ABSENT)
    if one is not None:
        ours = (
            f"{one.margin:.2f} ({one.margin_std:.2f})",
            f"{one.alpha:.3f} ({one.alpha_std:.1e})",
        )
    return [ours[0], printed[0], ours[1], printed[1]]


def translation_table(study: Study, methods: Sequence[str]) -> Table | None:
    """Return the nearest rows of A and a, of the first seed; None where no run has them.

    Args:
        study: our runs; their records hold "neighbours".
        methods: whose.
    """
    letters = ("A hr", "a hr", "A lr", "a lr")
    columns = [Column(label="model", text=True), Column(label="of", text=True)]
    columns += [Column(label=letter, text=True) for letter in letters]
    columns.append(Column(label="translations of 12", decimals=1))
    rows: list[list[Cell]] = []
    for method in methods:
        listed = [r["neighbours"] for r in study.of(method) if r.get("neighbours")]
        if listed:
            told = [_near(listed[0].get(letter, ())) for letter in letters]
            rows.append([method, "ours", *told, mean_interval([count(one) for one in listed])])
        if method in TRANSLATIONS and listed:
            rows.append([*_printed(method, letters)])
    return Table(title="Learned translations", columns=columns, rows=rows) if rows else None


def cosine_table(study: Study, methods: Sequence[str]) -> Table | None:
    """Return mean cosines by class of pairs over seeds; None where no run has them.

    Args:
        study: our runs; their records hold "cosines".
        methods: whose.
    """
    each = {m: [r["cosines"] for r in study.of(m) if r.get("cosines")] for m in methods}
    names = list(dict.fromkeys(name for listed in each.values() for one in listed for name in one))
    columns = [Column(label="model", text=True), Column(label="seeds")]
    columns += [Column(label=name, decimals=3) for name in names]
    rows: list[list[Cell]] = []
    for method, listed in each.items():
        if listed:
            known = ([one[name] for one in listed if name in one] for name in names)
            means = (mean_interval(values) if values else None for values in known)
            rows.append([method, len(listed), *means])
    return (
        Table(title="Mean cosine by class of pairs", columns=columns, rows=rows) if rows else None
    )


def _printed(method: str, letters: Sequence[str]) -> list[Cell]:
    shown: list[Cell] = [method, "paper"]
    whole = {}
    for letter in letters:
        near = [list(one) for one in TRANSLATIONS[method][letter]]
        for i, one in enumerate(near):
            one[0] = TRANSLATION_SLIPS.get((method, letter, i), one[0])
        whole[letter] = near
        shown.append(_near(near))
    return [*shown, float(count(whole))]


def _near(near: Sequence[Sequence[Any]]) -> str:
    said = []
    for name, cosine in near:
        token, _, language = name.rpartition(" ")
        said.append(f"{visible(token)} {language} {fixed(float(cosine), 2)}")
    return ", ".join(said)


def _at(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list | tuple) else value[name]
    return value
