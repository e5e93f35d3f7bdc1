from __future__ import annotations

import pytest

from elbowroom.errors import ArgumentValueError
from elbowroom.study.paper import METHODS, PARTS, methods_of, parts_of, tables_of


def test_parts_are_in_the_papers_order_whatever_the_order_asked_for() -> None:
    assert [part.name for part in parts_of()] == list(PARTS)
    named = parts_of(["figure-temperature", "table-metrics"])
    assert [part.name for part in named] == ["table-metrics", "figure-temperature"]
    with pytest.raises(ArgumentValueError, match="--only: expected 'table-metrics' or"):
        parts_of(["table-3"])


def test_a_part_needs_its_own_runs_only() -> None:
    assert methods_of(parts_of(["table-hyperparameters", "table-effective"])) == ()
    assert len(methods_of(parts_of(["figure-temperature"]))) == 7
    untied = methods_of(parts_of(["table-untied"]))
    assert untied == methods_of(parts_of(["table-untied", "figure-distributions"]))
    assert set(methods_of(parts_of(["figure-distributions"]))) < set(METHODS) | {""}
    assert [p.name for p in tables_of(parts_of(["table-untied", "table-effective"]))] == [
        "table-untied"
    ]
    assert len(tables_of(parts_of(["table-effective"]))) == 5
