"""Answers in words: which questions have one, and what the sentences say."""

from __future__ import annotations

from elbowroom.study.paper import study_of
from elbowroom.study.paper.claims import CLAIMS, SCORES
from elbowroom.study.paper.printed import KNOWN_SLIPS
from elbowroom.study.paper.questions import LUCKY, QUESTIONS, answers
from elbowroom.study.paper.rows import METHODS
from tests.study.paper.made_up import record, records


def said(*methods: str, seeds: int = 4) -> dict[str, str]:
    """Return the answers by question's key."""
    found = answers(study_of(records(methods, seeds)))
    keys = {question: key for key, question in QUESTIONS.items()}
    return {keys[answer.question]: " ".join(answer.sentences) for answer in found}


def test_nothing_is_said_without_runs() -> None:
    assert answers(study_of([])) == []


def test_every_claim_is_about_methods_and_scores_that_exist() -> None:
    assert {c.method for c in CLAIMS} | {c.reference for c in CLAIMS} <= METHODS.keys()
    assert {c.score for c in CLAIMS} == SCORES.keys()
    assert {c.question for c in CLAIMS} <= QUESTIONS.keys()
    assert set(LUCKY.values()) <= METHODS.keys()


def test_thresholding_tied_and_untied_at_both_temperatures() -> None:
    text = said("ce-tied", "margin-1", "ce-untied", "untied-1")["help"]
    assert "Tied, at a fitted temperature: hr worse in 1 of 1; lr better in 1 of 1." in text
    assert "Tied, at temperature 1: hr worse in 1 of 1; lr worse in 1 of 1." in text
    assert "Untied, at a fitted temperature: hr " in text


def test_the_comparisons_behind_an_answer_are_its_own() -> None:
    found = answers(study_of(records(("ce-tied", "margin-1", "margin-.3-16"), 4)))
    first = found[0]
    assert first.question == QUESTIONS["help"]
    assert {claim.question for claim, _, _ in first.claims} == {"help"}
    assert {language for _, language, _ in first.claims} == {"hr", "lr"}


def test_starts_lie_apart_and_the_printed_luck_is_counted() -> None:
    listed = records(("ce-tied", "margin-1"), 4)
    lucky = next(r for r in listed if (r["name"], r["init_seed"]) == ("margin-1", 2))
    lucky["languages"]["lr"] |= {"fitted_ppl": 6.5, "best_ppl": 6.5}
    found = answers(study_of(listed))
    text = next(" ".join(a.sentences) for a in found if a.question == QUESTIONS["seed"])
    assert "starts of one method differ by up to " in text
    assert "(margin-1: 6.50 to " in text
    assert "Margin 1 + SE, lr: 1 of our 4 starts (seed 2) reach the printed 6.90" in text
    assert "a share of 5 to 70% (95% interval)" in text  # Wilson's, of 1 in 4


def test_discoveries_are_named_with_their_seeds() -> None:
    listed = [record("margin-1", seed, translation=t) for seed, t in enumerate((0.1, 0.5, 0.9))]
    found = answers(study_of(listed))
    text = next(" ".join(a.sentences) for a in found if a.question == QUESTIONS["seed"])
    assert "the languages share: margin-1 in 2 of 3 (seed 1, 2)." in text


def test_separated_embeddings_as_published_and_skipped() -> None:
    text = said("margin-1", "skipped-1")["separated"]
    assert "As published they are plain AdamW" in text
    assert "Rows truly skipped, tied: hr " in text
    assert "separated" not in said("ce-tied")


def test_slips_are_listed_and_our_runs_decide() -> None:
    text = said("softminus-dt-1-c5")["slips"]
    assert text.startswith(KNOWN_SLIPS[0])
    assert "hr, MRR: 0.6595 is printed, 0.5017 was meant; our runs (" in text


def test_annealing_keeps_temperature_one() -> None:
    text = said("ce-tied", "margin-1", "margin-.3-16")["annealing"]
    assert "The temperature that fits best is, on average, " in text
    assert " with a fixed margin of 1 (hr)" in text
    assert " with margin .3 to 16 (lr)" in text


def test_quick_runs_reach_no_print() -> None:
    listed = [record("margin-1", seed) for seed in range(3)]
    for each in listed:
        each["config"]["training"]["steps"] = 600
    found = answers(study_of(listed))
    assert not any("reach the printed" in said for a in found for said in a.sentences)
