"""The whole report of a reproduction: one page, and each table and figure as files beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elbowroom.report.figure import Figure
from elbowroom.report.files import write_text
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.origin import failure_section, origin_section
from elbowroom.report.paper import figures, tables, tuning
from elbowroom.report.paper.beside import beside_table
from elbowroom.report.paper.chosen import chosen_table
from elbowroom.report.paper.curves import discovery_figures, discovery_table, kept_figures
from elbowroom.report.paper.margins import margin_figures
from elbowroom.report.paper.optimisation import optimisation_figures, optimisation_table
from elbowroom.report.paper.planes import plane
from elbowroom.report.paper.ratios import gradient_figures, gradient_table
from elbowroom.report.paper.verdict import setting_lines, verdict_lines, verdict_section
from elbowroom.report.records import comparison
from elbowroom.report.scatter import HeadMatrix
from elbowroom.report.shell import Section, page, panels
from elbowroom.report.tables import Table
from elbowroom.study.paper import Part, Study, tables_of
from elbowroom.study.paper.effective import Effective, Trained
from elbowroom.study.paper.layout import (
    BESIDE,
    COMPONENTS,
    COSINES,
    DISCOVERY,
    DISTRIBUTIONS,
    EFFECTIVE,
    GRADIENTS,
    HYPERPARAMETERS,
    KEPT,
    MARGINS,
    OPTIMISATION,
    TAIL,
    TEMPERATURE,
    TOKENS,
    TRANSLATIONS,
)
from elbowroom.study.paper.tokens import Counts
from elbowroom.study.paper.tuning import settled, tunings

TITLE = "The paper's tables and figures, made again"
CELL = (
    "Each cell: the mean of our runs, its 95% interval over seeds, and every seed as a dot over "
    "where one more seed would lie (the thin line). Each drawing has its own scale."
)
RING = " The ring is the paper's number, which is in or out of that line."
SIGNS = "The signs of eigenvectors, on which the printed I(W) depends, are arbitrary."
NEEDED = "finished runs, their heads, their texts or what they measured while training"
NOTHING = f"Nothing to show: this needs {NEEDED}, which is not here."
NOT_DRAWN = f"Nothing to draw: this needs {NEEDED}, which is not here."
Command = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What a report shows that is not in the records of runs."""

    effective: Sequence[Effective] = ()
    """Effective margins of initialised models."""
    trained: Sequence[Trained] = ()
    """Effective margins of weights that the user has."""
    tokens: Counts = field(default_factory=dict)
    """Expected counts of tokens by language."""
    heads: Sequence[HeadMatrix] = ()
    """Output matrices to draw."""
    rarest: Sequence[int] = ()
    """Ids of the rarest tokens, to be crossed."""
    beside: Study | None = None
    """The same methods' runs by another protocol."""
    remaining: int = 0
    """Runs that were asked for and are not finished."""


def write_reproduction(
    study: Study, parts: Sequence[Part], folder: str | Path, command: Command, extras: Extras
) -> Path:
    """Write ``report.html`` and the files of its tables and figures; return the page's path.

    Tables go to ``tables/`` as Markdown, LaTeX and CSV, figures to ``figures/`` as SVG and PDF.

    Args:
        study: our runs.
        parts: what to show.
        folder: for all files.
        command: what makes a part again, by its name; all of it for "".
        extras: what is not in the records.
    """
    folder, parts = Path(folder), settled(parts, study)
    sections = [Section(anchor="verdict", title="Verdict", body=verdict_section(study, parts))]
    for part in parts:
        body = _part(study, part, parts, folder, extras)
        said = element("p", "Made again by ", element("code", command(part.name)), class_="note")
        parted = join(body, said)
        sections.append(Section(anchor=part.name, title=part.title, body=parted))
    if study.records:
        runs = comparison(study.reported or study.records)
        origin = origin_section(runs, command(""))
        sections.append(Section(anchor="origin", title="How it was made", body=origin))
        failed = failure_section(comparison(study.records))
        sections.append(Section(anchor="failures", title="Failed runs", body=failed))
    shown = any(part.name == TEMPERATURE.name for part in parts)
    methods = figures.shown_methods(study, TEMPERATURE.methods) if shown else []
    text = page(TITLE, _lead(study, extras), sections, methods, search="margin 1 lr")
    write_text(folder / "verdict.txt", "".join(f"{x}\n" for x in verdict_lines(study, parts)))
    return write_text(folder / "report.html", text)


def _lead(study: Study, extras: Extras) -> str:
    done = [record for record in study.records if record["status"] == "done"]
    methods = {record["name"] for record in done}
    tuned = len(done) - len([record for record in study.reported if record["status"] == "done"])
    said = f"{len(done)} finished runs of {len(methods)} methods"
    said += f", {tuned} of them for tuning" if tuned else ""
    failed = len(study.records) - len(done)
    said += f", {failed} failed" if failed else ""
    said += f"; {extras.remaining} runs are still to be trained." if extras.remaining else "."
    if study.others:
        said += f" Records of {', '.join(study.others)} belong to no row and are left out."
    return f"{said} Protocol: {study.protocol.name}."


def _part(study: Study, part: Part, parts: Sequence[Part], folder: Path, extras: Extras) -> Markup:
    """Return a part for the page, and write its files."""
    note = element("p", part.note, class_="note") if part.note else None
    if part.families:
        return join(note, _rivals(study, part, folder))
    if part.rows:
        return join(note, _metrics(study, part, folder))
    if part.name == DISTRIBUTIONS.name:
        return join(note, *(_folded(study, table, folder) for table in tables_of(parts)))
    if part.name == BESIDE.name:
        return join(note, _beside(study, parts, folder, extras))
    table, drawn = _SHOWN[part.name](study, part, extras)
    if table is None and not drawn:
        return join(note, element("p", NOTHING, class_="soft"))
    if table is not None:
        _save(folder, part.name, [table], table)
    missing = part.name.startswith("figure-") and not drawn
    return join(
        note,
        element("p", NOT_DRAWN, class_="soft") if missing else None,
        _figures(drawn, folder) if drawn else None,
        table.html() if table is not None else None,
    )


def _rivals(study: Study, part: Part, folder: Path) -> Markup:
    """Return what was tuned and how it stands; the tuning itself is folded and hides nothing."""
    found = tunings(study, part.families)
    tried = tuning.tuning_table(found)
    _save(folder, f"{part.name}-tuning", [tried], tried)
    stand, lines = tuning.standing_table(study, found), tuning.standing_lines(study, found)
    _save(folder, f"{part.name}-standing", [stand], stand)
    folded = join(element("p", tuning.RULE, class_="note"), tried.html())
    scores = _metrics(study, part, folder) if part.rows else None
    return join(
        element("p", tuning.budget_line(found)),
        element("ul", *(element("li", line) for line in lines)) if lines else None,
        tuning.standing_table(study, found, markup=True).html() if stand.rows else None,
        element("p", tuning.standing_note(found), class_="note") if stand.rows else None,
        element("details", element("summary", "All scores"), scores) if scores else None,
        element("details", element("summary", tried.title), folded),
    )


def _metrics(study: Study, part: Part, folder: Path) -> Markup:
    seeds, chosen = tables.seeds_table(study, part), chosen_table(study, part)
    written = [tables.summary_table(study, part), seeds, *([chosen] if chosen else [])]
    _save(folder, part.name, written, seeds)
    shown = tables.summary_table(study, part, markup=True)
    listed = [element("li", note) for note in tables.notes_of(part)]
    slips = [
        f"{row.label}, {language}"
        for row in part.rows
        for language in row.languages
        if (found := study.result(row, language, "isotropy").printed) and found.note
    ]
    meant = f"Printed by a slip, judged by what was meant: {'; '.join(slips)}." if slips else ""
    ring = RING if any(row.printed for row in part.rows) else ""
    return join(
        element("p", CELL + ring, class_="note"),
        shown.html(),
        element("ol", *listed, class_="note"),
        element("p", meant, class_="note") if meant else None,
        element("p", f"{study.protocol.note} {SIGNS}", class_="note"),
        element("details", element("summary", "Every seed, in numbers"), seeds.html()),
        element("details", element("summary", "Which weights were chosen"), chosen.html())
        if chosen
        else None,
    )


def _beside(study: Study, parts: Sequence[Part], folder: Path, extras: Extras) -> Markup:
    table = beside_table(study, extras.beside, parts)
    if table is None or extras.beside is None:
        said = "Not here: finished runs by both protocols, paper and clean, in one output folder."
        return element("p", said, class_="soft")
    _save(folder, BESIDE.name, [table], table)
    other = extras.beside
    said = " ".join(dict.fromkeys((other.protocol.note, *setting_lines(other))))
    return join(element("p", f"Beside: {said}", class_="note"), table.html())


def _folded(study: Study, table: Part, folder: Path) -> Markup:
    drawn = figures.distribution_figures(study, table)
    if not drawn:
        return element("p", f"{table.title}: no finished runs.", class_="soft")
    body = _figures(drawn, folder)
    return element("details", element("summary", table.title), body, open=table is TABLE_FIRST)


def _figures(drawn: Sequence[Figure], folder: Path) -> Markup:
    for figure in drawn:
        for form, save in (("svg", figure.save_svg), ("pdf", figure.save_pdf)):
            save(folder / "figures" / f"{figure.name}.{form}")
    return panels(drawn)


def _components(extras: Extras) -> list[Figure]:
    heads = enumerate(extras.heads)
    return [plane(f"components-{i}", head, extras.rarest) for i, head in heads]


# Part: its table and its figures; those of metrics, of rivals and of both protocols are above.
_SHOWN: dict[str, Callable[[Study, Part, Extras], tuple[Table | None, list[Figure]]]] = {
    EFFECTIVE.name: lambda s, p, e: (tables.effective_table(e.effective, e.trained), []),
    HYPERPARAMETERS.name: lambda s, p, e: (tables.hyperparameter_table(s), []),
    TRANSLATIONS.name: lambda s, p, e: (tables.translation_table(s, p.methods), []),
    OPTIMISATION.name: lambda s, p, e: (
        optimisation_table(s, p.methods),
        optimisation_figures(s, p.methods),
    ),
    TOKENS.name: lambda s, p, e: (None, figures.token_figures(e.tokens)),
    GRADIENTS.name: lambda s, p, e: (gradient_table(s, p.methods), gradient_figures(s, p.methods)),
    TAIL.name: lambda s, p, e: (None, figures.tail_figures(s, p.methods)),
    COSINES.name: lambda s, p, e: (
        tables.cosine_table(s, p.methods),
        figures.cosine_figures(e.heads),
    ),
    COMPONENTS.name: lambda s, p, e: (None, _components(e)),
    TEMPERATURE.name: lambda s, p, e: (None, figures.temperature_figures(s, p.methods)),
    DISCOVERY.name: lambda s, p, e: (
        discovery_table(s, p.methods),
        discovery_figures(s, p.methods),
    ),
    KEPT.name: lambda s, p, e: (None, kept_figures(s, p.methods)),
    MARGINS.name: lambda s, p, e: (None, margin_figures(s)),
}


def _save(folder: Path, name: str, shown: Sequence[Table], whole: Table) -> None:
    """Write a table's files: those to be read, and one with all digits."""
    place = folder / "tables"
    text = "\n".join(f"## {table.title}\n\n{table.markdown()}" for table in shown)
    write_text(place / f"{name}.md", text)
    latex = "\n".join(f"% {table.title}\n{table.latex()}" for table in shown)
    write_text(place / f"{name}.tex", latex)
    write_text(place / f"{name}.csv", whole.csv())


TABLE_FIRST = tables_of(())[0]
