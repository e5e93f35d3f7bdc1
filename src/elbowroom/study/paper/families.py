"""What the rivals' table compares: cross-entropy, ours and the rivals, each with its settings.

Every family has `SETTINGS` settings; the first is what its publication uses or, where that leaves
it open, what this library does. One that has no hyperparameter of its own tunes the learning rate.
What differs from the publications is on the page of the rivals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elbowroom.study.paper.rivals import rivals
from elbowroom.study.paper.settings import RATE, Family, Setting, by_rate, known, said

SETTINGS = 4  # of each family, ours included
REFERENCES = {"ce-tied": "CE", "annealed": "ours"}  # whom the others are compared with, in short
TOP_P = 0.999  # our annealed margin ends where it leaves this nucleus as it is
UNTIED: dict[str, Any] = {"model": {"tied": False}}
RARE: dict[str, Any] = {"languages": ["lr"]}


def _annealed(start: float, name: str = "annealed", **more: Any) -> Setting:
    margin = {"start": start, "end_top_p": TOP_P}
    change = {"loss": {"margin": margin}, **more}
    return Setting(method=f"{name}-{said(start)}", words=_words(start), change=change)


def _words(start: float) -> str:
    return f"{said(start)} to top-p {said(TOP_P)}"


def _twins(key: str, words: str, margin: Mapping[str, float]) -> Setting:
    """Return an annealed margin with rare rows from zero, protected for nine tenths of training."""
    loss = {"margin": margin, "protect": RARE, "protect_until": 0.9}
    change = {"loss": loss, "zero_rows": RARE}
    return Setting(method=f"twins-{key}-until.9", words=f"{words}, until .9", change=change)


def _ours() -> list[Family]:
    """Return cross-entropy and what this project, or the paper, sets against it."""
    fixed = tuple(known(f"margin-{m}", m) for m in ("1", "2", ".6", "4"))
    eighth = {"loss": {"margin": {"start": 0.125, "norms": "both"}}}
    by_norms = (
        *(known(f"alpha-{a}", a) for a in (".0625", ".25", ".5")),
        Setting(method="alpha-.125", words=".125", change=eighth),
    )
    first, others, last = _words(1.0), (0.3, 3.0), ".3 to 16"
    tied = (known("margin-default", first), *map(_annealed, others), known("margin-.3-16", last))
    loose = (_annealed(s, "untied-annealed", **UNTIED) for s in others)
    untied = (known("untied-default", first), *loose, known("untied-.3-16", last))
    default = {"loss": {"margin": {"start": 1.0, "end_top_p": TOP_P}}}
    twins = tuple(
        setting
        for key, words, margin in (
            (".3-16", last, {"start": 0.3, "end": 16.0}),
            ("default", first, default["loss"]["margin"]),
        )
        for setting in (known(f"twins-{key}", f"{words}, until .5"), _twins(key, words, margin))
    )
    return [
        Family(
            name="ce-tied",
            label="Cross-entropy",
            settings=by_rate("ce-tied", {}, is_known=True),
            note=RATE,
        ),
        Family(
            name="ce-untied",
            label="Cross-entropy, untied",
            settings=by_rate("ce-untied", UNTIED, is_known=True),
            note=RATE,
        ),
        Family(name="margin", label="Margin, fixed", settings=fixed),
        Family(name="alpha", label="Alpha", settings=by_norms),
        Family(name="annealed", label="Annealed, ours", settings=tied),
        Family(
            name="default",
            label="Default, ours",
            settings=by_rate("margin-default", default, is_known=True),
            note=f"1 to top-p {said(TOP_P)}; the learning rate is tuned, as for cross-entropy",
        ),
        Family(
            name="twins",
            label="Annealed, zero rows, ours",
            settings=twins,
            note="the rare language's rows start at zero and are protected at first",
        ),
        Family(name="untied-annealed", label="Annealed, untied, ours", settings=untied),
    ]


FAMILIES: dict[str, Family] = {family.name: family for family in (*_ours(), *rivals())}
SETTING_OF: dict[str, Setting] = {
    setting.method: setting
    for family in FAMILIES.values()
    for setting in family.settings
    if setting.change is not None
}
