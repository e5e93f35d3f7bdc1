from __future__ import annotations

import pytest

from elbowroom.lab.corpora import Pair, Texts
from elbowroom.lab.corpora.texts import Document
from elbowroom.lab.tokens import prepare
from elbowroom.study.paper.tokens import expected_counts, rarest


def test_counts_are_those_of_the_training_text_times_the_share() -> None:
    text = "aab" * 100 + "z" * 100  # the last tenth is held out
    texts = Texts(name="made up", documents={"en": (Document.from_text("all", text),)})
    corpus = prepare(texts.paired(Pair(share=0.02)), "characters", context=8)
    found = expected_counts(corpus)
    read = "".join(corpus.tokenizer.decode(list(corpus.train[0].tokens)))
    assert list(found) == ["hr", "lr"]
    for language, share in (("hr", 0.98), ("lr", 0.02)):
        assert [token for token, _ in found[language]] == ["a", "b", "z"]
        for token, count in found[language]:
            assert count == pytest.approx(share * read.count(token))
    ids = {token: int(corpus.tokenizer.encode(token)[0]) for token in "abz"}
    size = corpus.vocab_size // 2
    assert rarest(corpus, 2) == [ids["z"], ids["b"], ids["z"] + size, ids["b"] + size]
