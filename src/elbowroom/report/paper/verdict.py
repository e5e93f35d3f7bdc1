"""The verdict of a reproduction: how many printed numbers our runs agree with, and the claims."""

from __future__ import annotations

from collections.abc import Sequence

from elbowroom.report.markup import Markup, element, join
from elbowroom.report.results import badge
from elbowroom.study.paper import LABELS, PAPER, Part, Study, tables_of
from elbowroom.study.paper.questions import Answer, answers

RULE = (
    "A printed number, which is of one run, agrees if it lies where one more seed of ours would "
    "lie with 95% chance; so about one in twenty would not even if nothing differed. The paper's "
    "rows share a seed, so they are not independent of each other. Methods are compared over the "
    "same seeds, by {score} and at temperature 1, each corrected for the number of comparisons."
)


def setting_lines(study: Study) -> list[str]:
    """Return in what our runs differ from the paper's setting; nothing if they do not."""
    lines = [] if study.protocol is PAPER else [study.protocol.note]
    if not study.differences:
        return lines
    listed = sorted(study.differences.items())
    said = "; ".join(f"{setting} {' and '.join(values)}" for setting, values in listed)
    first = "These runs are not in the paper's setting, so its numbers are shown and not judged"
    return [*lines, f"{first}. What differs: {said}."]


def agreement_lines(study: Study, parts: Sequence[Part]) -> list[str]:
    """Return how many printed numbers lie inside, in all tables and in each."""
    tables = [part for part in tables_of(parts) if any(row.printed for row in part.rows)]
    if not tables:
        return []
    found = [(part, *study.tally([part])) for part in tables]
    judged = [(part, inside, of) for part, inside, of in found if of]
    if not judged:
        few = "no row has the two finished runs that an interval needs"
        return [] if not study.is_papers else [f"Nothing is judged against print yet: {few}."]
    inside, of = study.tally(tables)
    lines = [f"{inside} of {of} printed numbers lie where one more seed of ours would lie."]
    lines += [f"{part.title}: {inside} of {of}." for part, inside, of in judged]
    lines = lines if len(judged) > 1 else lines[:1]
    outside = study.outside(tables).items()
    named = [
        f"{row}, {language} ({', '.join(LABELS[score] for score in scores)})"
        for (row, language), scores in outside
    ]
    return [*lines, f"Outside: {'; '.join(named)}."] if named else lines


def answer_lines(study: Study, *, whole: bool = True) -> list[str]:
    """Return each question with its answer and, if whole, the comparisons that it rests on."""
    lines = []
    for answer in answers(study):
        lines.append(f"{answer.question} {' '.join(answer.sentences)}")
        claims = answer.claims if whole else ()
        lines += [f"- {c.text}, {language}: {v.text}" for c, language, v in claims]
    return lines


def verdict_lines(study: Study, parts: Sequence[Part], *, whole: bool = True) -> list[str]:
    """Return the verdict as lines of text.

    Args:
        study: our runs.
        parts: what the report shows.
        whole: with every comparison, seed by seed; else as a terminal has it.
    """
    answered = answer_lines(study, whole=whole)
    return [*setting_lines(study), *agreement_lines(study, parts), *answered]


def verdict_section(study: Study, parts: Sequence[Part]) -> Markup:
    """Return the verdict for the page.

    Args:
        study: our runs.
        parts: what the report shows.
    """
    differ = [element("p", said, class_="warning") for said in setting_lines(study)]
    lines = agreement_lines(study, parts)
    first = [element("li", line) for line in lines[:1]]
    rest = [element("li", line) for line in lines[1:]]
    return join(
        *differ,
        element("ul", *first, class_="summary") if first else None,
        element("ul", *rest) if rest else None,
        *(_answer(answer) for answer in answers(study)),
        element("p", RULE.format(score=study.protocol.score_name), class_="note"),
    )


def _answer(answer: Answer) -> Markup:
    """Return a question with its answer; the comparisons are folded away."""
    claims = [
        element("li", f"{c.text}, {language}: ", badge(v.outcome), " ", _numbers(v.text))
        for c, language, v in answer.claims
    ]
    summary = element("summary", f"{len(claims)} comparisons, seed by seed")
    return join(
        element("h3", answer.question),
        element("ul", *(element("li", said) for said in answer.sentences)),
        element("details", summary, element("ul", *claims)) if claims else None,
    )


def _numbers(said: str) -> Markup:
    """Return a verdict's sentence without its outcome, which stands before it."""
    return element("span", said.partition(" ")[2] or said, class_="soft")
