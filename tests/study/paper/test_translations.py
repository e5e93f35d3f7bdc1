from __future__ import annotations

import torch

from elbowroom.lab.corpora import Pair, Texts
from elbowroom.lab.corpora.texts import Document
from elbowroom.lab.tokens import Corpus, prepare
from elbowroom.study.paper.translations import cosines_of, count, letters_of, neighbours_of

TEXT = "A bat sat at a cat. " * 40


def corpus(text: str, *, pair: bool = True) -> Corpus:
    texts = Texts(name="made up", documents={"en": (Document.from_text("all", text),)})
    return prepare(texts.paired(Pair()) if pair else texts, "characters", context=8)


def test_letters_are_found_and_counted() -> None:
    found = corpus(TEXT)
    size = found.vocab_size // 2
    weight = torch.eye(size)
    letters = [found.tokenizer.encode(x).tolist()[0] for x in "Aa"]
    weight[letters[0]] = weight[letters[1]] + 0.1 * weight[letters[0]]  # A is near a
    near = neighbours_of(torch.cat((weight, weight)), found)
    assert near is not None
    assert list(near) == ["A hr", "a hr", "A lr", "a lr"]
    assert near["A hr"][0] == ["A lr", 1.0]
    assert {name for name, _ in near["A hr"]} == {"A lr", "a hr", "a lr"}
    assert count(near) == 12


def test_texts_without_twins_or_letters_and_broken_heads_have_none() -> None:
    found = corpus(TEXT)
    head = torch.ones(found.vocab_size, 4)
    assert neighbours_of(head.fill_(torch.nan), found) is None
    assert cosines_of(head, found) is None
    alone = corpus(TEXT, pair=False)
    assert neighbours_of(torch.ones(alone.vocab_size, 4), alone) is None
    small = corpus(TEXT.lower())
    assert neighbours_of(torch.ones(small.vocab_size, 4), small) is None


def test_cosines_by_class_of_pairs() -> None:
    found = corpus(TEXT)
    letters = letters_of(found)
    assert letters is not None
    assert set(letters) == set(TEXT)
    weight = torch.eye(len(letters))
    means = cosines_of(torch.cat((weight, weight)), found)
    assert means is not None
    assert "ID" not in means
    assert (means["T"], means["C"], means["T+C"]) == (1.0, 0.0, 0.0)
    assert letters_of(corpus(TEXT, pair=False)) is None
    assert cosines_of(weight, corpus(TEXT, pair=False)) is None
