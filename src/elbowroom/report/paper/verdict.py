"""The verdict of a reproduction: how many printed numbers our runs agree with, and the claims."""

from __future__ import annotations

from collections.abc import Sequence

from elbowroom.report.markup import Markup, element, join
from elbowroom.report.results import badge
from elbowroom.study.paper import LABELS, Part, Study, tables_of
from elbowroom.study.paper.claims import judge

RULE = (
    "A printed number, which is of one run, agrees if it lies where one more seed of ours would "
    "lie with 95% chance; so about one in twenty would not even if nothing differed. The paper's "
    "rows share a seed, so they are not independent of each other. Claims are judged over the same "
    "seeds, by perplexity at a temperature fitted on other text, corrected for their number."
)


def setting_lines(study: Study) -> list[str]:
    """Return in what our runs differ from the paper's setting; nothing if they do not."""
    if study.is_papers:
        return []
    listed = sorted(study.differences.items())
    said = "; ".join(f"{setting} {' and '.join(values)}" for setting, values in listed)
    first = "These runs are not in the paper's setting, so its numbers are shown and not judged"
    return [f"{first}. What differs: {said}."]


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


def claim_lines(study: Study) -> list[tuple[str, str, str]]:
    """Return what was compared, the outcome and the sentence with its numbers."""
    return [
        (f"{claim.text}, {language}", verdict.outcome, verdict.text)
        for (claim, language), verdict in judge(study).items()
    ]


def verdict_lines(study: Study, parts: Sequence[Part]) -> list[str]:
    """Return the verdict as lines for a terminal."""
    claims = [f"{what}: {said}" for what, _, said in claim_lines(study)]
    return [*setting_lines(study), *agreement_lines(study, parts), *claims]


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
    claims = [
        element("li", f"{what}: ", badge(outcome), " ", _numbers(said))
        for what, outcome, said in claim_lines(study)
    ]
    return join(
        *differ,
        element("ul", *first, class_="summary") if first else None,
        element("ul", *rest) if rest else None,
        element("h3", "What is claimed, over our seeds") if claims else None,
        element("ul", *claims) if claims else None,
        element("p", RULE, class_="note"),
    )


def _numbers(said: str) -> Markup:
    """Return a verdict's sentence without its outcome, which stands before it."""
    return element("span", said.partition(" ")[2] or said, class_="soft")
