"""The report of a comparison: one HTML file, the verdict first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from elbowroom.report import drawings
from elbowroom.report.files import write_text
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.origin import failure_section, origin_section
from elbowroom.report.records import Comparison, Record, comparison
from elbowroom.report.results import result_section, verdict_section
from elbowroom.report.rows import runs_table
from elbowroom.report.scatter import HeadMatrix, embedding_map
from elbowroom.report.shell import Section, page, panels

BAND = (
    "A dot is a seed, the upright line the mean, the band its interval; one more run would lie on "
    "the thin line, if runs are normal. Differences are to the runs with the same seeds."
)
CURVES = "Thin lines are seeds, thick ones their mean. The scale on the left is logarithmic."


def compare_report(
    records: Iterable[Record],
    metrics: Sequence[Iterable[Record]] = (),
    embeddings: Sequence[HeadMatrix] = (),
    out: str | Path = "report.html",
    *,
    references: Sequence[str] = (),
    score: str = "ppl",
    level: float = 0.95,
    title: str = "Which loss, for which language",
    command: str | None = None,
) -> Path:
    """Write the report of a comparison, all of it or nothing, and return its path.

    One file that loads nothing: verdicts, a table a language with every seed, learning curves,
    perplexity against temperature, kept share, loss by frequency, embedding maps, how it was made,
    and the runs that failed. Sections without data are left out.

    Args:
        records: one a run, as in its ``record.json``; the method is its ``name``.
        metrics: the lines of each run's ``metrics.jsonl``, in the same order; may be left out.
        embeddings: the heads to draw maps of.
        out: the file.
        references: the methods that the others are compared with, the main one first; the first
            record's if none are named.
        score: the score that is judged, such as "ppl" or "bits_per_byte".
        level: of all intervals.
        title: of the page.
        command: what repeats it; what the records' provenance says if None.
    """
    runs = comparison(records, metrics, references=references, score=score, level=level)
    return write_text(out, compare_page(runs, embeddings, title=title, command=command))


def compare_page(
    runs: Comparison,
    embeddings: Sequence[HeadMatrix] = (),
    *,
    title: str = "Which loss, for which language",
    command: str | None = None,
) -> str:
    """Return the report of a comparison as text; see `compare_report`."""
    results = [result_section(runs, language) for language in runs.languages]
    sections = [
        Section(anchor="verdict", title="Verdict", body=verdict_section(runs)),
        Section(anchor="results", title="Results", body=join(_note(BAND), *results)),
        *_figures(runs, embeddings),
        Section(anchor="runs", title="Every run", body=_every_run(runs)),
        Section(anchor="origin", title="How it was made", body=origin_section(runs, command)),
        Section(anchor="failures", title="Failed runs", body=failure_section(runs)),
    ]
    failed, count = len(runs.failures), len(runs.runs)
    warning = f"{failed} of {count} runs did not finish and count nowhere." if failed else ""
    return page(title, _lead(runs), sections, runs.methods, warning)


def _lead(runs: Comparison) -> str:
    seeds = {run.seeds for run in runs.runs}
    counts = (
        (len(runs.methods), "method"),
        (len(runs.languages), "language"),
        (len(seeds), "seed"),
    )
    said = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts]
    return f"{', '.join(said)}: {len(runs.runs)} runs, judged by {runs.score.name}."


def _note(text: str) -> Markup:
    return element("p", text, class_="note")


def _figures(runs: Comparison, embeddings: Sequence[HeadMatrix]) -> list[Section]:
    """Return the sections of drawings that have something to draw."""
    swept = f"{CURVES} The dotted line is temperature 1, where a model is used as it was trained."
    trained = (
        f"{CURVES.partition('. ')[0]}. Losses that leave entries out are lower for it: "
        "compare a method with itself here."
    )
    kept = "Entries of the softmax that the loss did not mask. Cross-entropy keeps all."
    bins = "Mean loss of the tokens in each bin, with the interval over seeds. Lower is better."
    found = (
        ("curves", "Learning curves", drawings.learning_curves(runs), CURVES),
        ("training", "Training loss", drawings.training_curves(runs), trained),
        ("temperature", "Temperature", drawings.temperature_curves(runs), swept),
        ("kept", "Kept share", drawings.kept_curves(runs), kept),
        ("frequency", "By frequency", drawings.frequency_bars(runs), bins),
    )
    sections = [
        Section(anchor=anchor, title=title, body=panels(figures, note))
        for anchor, title, figures, note in found
        if figures
    ]
    maps = [
        embedding_map(f"map-{i}", head, first=len(runs.methods))
        for i, head in enumerate(embeddings)
    ]
    return (
        [*sections, Section(anchor="maps", title="Embedding maps", body=panels(maps))]
        if maps
        else sections
    )


def _every_run(runs: Comparison) -> Markup:
    table = runs_table(runs)
    classes = [f"m m{runs.methods.index(str(row[0]))}" for row in table.rows]
    address = f"data:text/csv;charset=utf-8,{quote(table.csv())}"
    link = element("a", "Save as CSV", href=address, download="runs.csv")
    summary = element("summary", f"{len(runs.runs)} runs with their scores")
    return element("details", summary, element("p", link), table.html(classes=classes))
