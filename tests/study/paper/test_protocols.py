from __future__ import annotations

from typing import Any

import pytest

from elbowroom.errors import ArgumentValueError
from elbowroom.lab.corpora import CorpusSpec
from elbowroom.study.paper import (
    CLEAN,
    LAST,
    METHODS,
    PAPER,
    PROTOCOLS,
    Row,
    base_of,
    config_of,
    parts_of,
    studies_of,
    study_of,
)
from elbowroom.study.paper.claims import judge
from elbowroom.study.paper.protocols import protocol_of
from elbowroom.study.paper.results import differences
from tests.study.paper.made_up import record

ROW = Row(label="Baseline", method="ce-tied", printed="ce-tied")


def made(protocol: str, methods: tuple[str, ...] = ("ce-tied",), seeds: int = 3) -> list[Any]:
    base = base_of(protocol=protocol)
    return [record(method, seed, base) for method in methods for seed in range(seeds)]


def test_the_papers_rule_is_that_of_its_code() -> None:
    keep = config_of("margin-1").training.keep
    assert (keep.which, keep.every, keep.batches, keep.by) == ("best", 250, 20, "cross_entropy")
    assert config_of("margin-1").data.source == "shakespeare"


def test_clean_runs_read_disjoint_text_and_keep_the_last_weights() -> None:
    run = config_of("margin-1", base_of(protocol="clean"))
    pair = CorpusSpec.parse(run.data.source).simulated
    assert pair is not None
    assert (pair.protocol, pair.second_part, pair.share) == ("disjoint", 0.2, 0.02)
    assert run.training.keep.which == "last"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_run_is_of_its_protocol_and_differs_in_nothing(name: str) -> None:
    for quick in (False, True):
        base = base_of(protocol=name, quick=quick)
        for method in METHODS:
            assert protocol_of(config_of(method, base)).name == name
    for one in made(name, tuple(METHODS), 1):
        assert differences(one) == {}, one["name"]


def test_what_a_protocol_changes_and_a_run_has_otherwise_is_a_difference() -> None:
    often = record("ce-tied")
    often["config"]["training"]["keep"]["every"] = 10
    assert differences(often) == {"training.keep.every": "10"}
    other = record("ce-tied", 0, base_of(protocol="clean"))
    other["config"]["data"]["source"] = "shakespeare?pair=disjoint"
    assert differences(other) == {"data.source": "shakespeare?pair=disjoint"}
    with pytest.raises(ArgumentValueError, match="protocol: expected 'paper' or 'last' or 'clean'"):
        base_of(protocol="papers")


def test_an_old_record_is_of_neither_protocol_and_judged() -> None:
    old = made("last")
    for one in old:
        del one["config"]["training"]["keep"]
        del one["config"]["loss"]["scale_after_training"]
    study = study_of(old)
    assert study.protocol is LAST
    assert study.is_papers
    assert study.result(ROW, "hr", "ppl").inside is not None


def test_each_protocol_reads_the_temperature_of_its_own() -> None:
    for protocol in PROTOCOLS.values():
        listed = made(protocol.name)
        for one in listed:
            for scores in one["languages"].values():
                scores["fitted_ppl"], scores["best_ppl"] = 9.0, 8.0
        value = 8.0 if protocol is PAPER else 9.0
        found = study_of(listed).values("ce-tied", "hr", "fitted_ppl")
        assert found == dict.fromkeys(range(3), value)


def test_clean_runs_are_not_judged_against_print_and_claims_are() -> None:
    study = study_of(made("clean", ("ce-tied", "margin-1")))
    assert study.protocol is CLEAN
    assert (study.differences, study.is_papers) == ({}, False)
    cell = study.result(ROW, "hr", "ppl")
    assert cell.printed is not None
    assert (cell.inside, cell.comparable) == (None, False)
    assert study.tally(parts_of()) == (0, 0)
    judged = judge(study)
    assert len(judged) == 4
    fitted = [v.text for (claim, _), v in judged.items() if claim.score == "fitted_ppl"]
    assert all("perplexity at a fitted temperature" in text for text in fitted)
    for (claim, _), verdict in judge(study_of(made("paper", ("ce-tied", "margin-1")))).items():
        at = "best on the test text" if claim.score == "fitted_ppl" else "temperature 1"
        assert at in verdict.text


def test_protocols_are_not_mixed() -> None:
    both = [*made("clean"), *made("paper", ("margin-1",)), {**record("ce-tied"), "name": "mine"}]
    with pytest.raises(ArgumentValueError, match="records: expected runs of one protocol, got cl"):
        study_of(both)
    paper, clean = studies_of(both)
    assert (paper.protocol, clean.protocol) == (PAPER, CLEAN)
    assert [len(study.records) for study in (paper, clean)] == [3, 3]
    assert (paper.others, clean.others) == (("mine",), ())
    (nothing,) = studies_of([])
    assert nothing.records == ()
