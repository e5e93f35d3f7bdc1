"""Splits: disjoint, complete, repeatable, near the share that was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elbowroom.errors import ArgumentValueError
from elbowroom.lab.corpora import Document
from elbowroom.lab.splits import Part, carve, pieces, size, split


def documents(*texts):
    return [Document.from_text(f"d{i}", text) for i, text in enumerate(texts)]


def read(parts, separator=""):
    return "".join(pieces(parts, separator))


def numbered(n, length=50):
    return documents(*(f"{i:04d}" + "." * (length - 4) for i in range(n)))


def test_one_document_is_cut_where_the_paper_cuts():
    text = "".join(chr(97 + i % 26) for i in range(1234))
    train, held_out = split(documents(text), 0.1)
    assert read(train) == text[: int(0.9 * 1234)]
    assert read(held_out) == text[int(0.9 * 1234) :]


def test_few_documents_are_cut_each():
    train, held_out = split(documents("a" * 100, "", "b" * 50), 0.1)
    assert [len(part) for part in train] == [90, 45]
    assert read(held_out, "|") == "a" * 10 + "|" + "b" * 5


def test_many_documents_stay_whole():
    found = numbered(200)
    train, held_out = split(found, 0.1)
    assert (len(train), len(held_out)) == (180, 20)
    assert sorted(part.document.name for part in (*train, *held_out)) == sorted(
        document.name for document in found
    )
    assert all(len(part) == 50 for part in (*train, *held_out))
    assert [p.document for p in train] == [d for d in found if d in {p.document for p in train}]


def test_the_choice_depends_on_the_texts_alone():
    found = numbered(40)
    renamed = [Document.from_text("x", document.read()) for document in reversed(found)]
    chosen = [{p.document.sha256 for p in split(d, 0.2)[1]} for d in (found, renamed)]
    assert chosen[0] == chosen[1]


@given(
    st.lists(st.integers(0, 15), min_size=1, max_size=60),
    st.floats(0.05, 0.5),
    st.sampled_from(["auto", "position"]),
)
def test_duplicates_never_straddle(kinds, validation, by):
    found = documents(*(f"{kind}" * (20 + kind) for kind in kinds))
    train, held_out = split(found, validation, by)
    assert size(train) + size(held_out) == sum(document.characters for document in found)
    spans = {(p.document.sha256, i) for p in train for i in range(p.start, p.stop)}
    assert not spans & {(p.document.sha256, i) for p in held_out for i in range(p.start, p.stop)}


def test_a_document_that_outweighs_all_is_cut():
    found = [*numbered(20), *documents("x" * 100_000)]
    train, held_out = split(found, 0.1)
    assert len(train) == len(held_out) == 21
    asked = split(found, 0.1, "documents")  # unless whole documents were asked for
    assert size(asked[1]) == 1000


def test_whole_documents_by_wish():
    train, held_out = split(documents("a" * 100, "b" * 30), 0.1, "documents")
    assert (read(train), read(held_out)) == ("a" * 100, "b" * 30)  # all too long: the shortest
    train, held_out = split(documents("a" * 10, "b" * 10, "a" * 10), 0.9, "documents")
    assert {p.document.sha256 for p in train}.isdisjoint(p.document.sha256 for p in held_out)
    assert train
    with pytest.raises(ArgumentValueError, match="at least 2 different documents"):
        split(documents("a", "a"), 0.1, "documents")


@pytest.mark.parametrize("validation", [0.0, 1.0])
def test_both_sides_get_something(validation):
    with pytest.raises(ArgumentValueError, match="validation"):
        split(documents("abc"), validation)


def test_ways_are_known():
    with pytest.raises(ArgumentValueError, match="by: expected 'auto'"):
        split(documents("abc"), 0.1, "chance")  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=10), st.floats(0.01, 0.99))
def test_carving_takes_the_end(lengths, share):
    parts = tuple(
        Part(document, 1, 1 + n)
        for n, document in zip(lengths, numbered(len(lengths)), strict=True)
    )
    first, second = carve(parts, share)
    assert read(first) + read(second) == read(parts)
    assert size(first) == int((1 - share) * size(parts))
    assert all(len(part) for part in (*first, *second))
