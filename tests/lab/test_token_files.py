"""Encoding piece by piece gives the ids of the whole text, whatever the lines are like."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from elbowroom.lab import token_files
from elbowroom.lab.token_files import Meter, in_memory, map_file, narrowest, to_file
from elbowroom.lab.tokenizers import BPE, Bytes

WORDS = "to be or  not\n\nto be, that's the\tquestion:\u00a0 42 times\x1c !!  大きさ "
BPE_TRAINED = BPE.train([WORDS * 30], 400)


def encoded(texts, tokenizer, piece):
    before, token_files.PIECE = token_files.PIECE, piece
    try:
        width = narrowest(tokenizer.vocab_size)
        return in_memory(Meter(0, None).encode(tokenizer, iter(texts), width), width)[0].tolist()
    finally:
        token_files.PIECE = before


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["to", "be", " ", "  ", "\n", "\t", "'s", "!?", "4", "\x1c", "大"])),
    st.integers(1, 9),
)
def test_pieces_give_the_ids_of_the_whole(words, cut):
    text = "".join(words)
    gaps = [i for i in range(1, len(text)) if text[i] in " \n" and not text[i - 1].isspace()]
    assume(all(b - a < 14 for a, b in pairwise([0, *gaps, len(text)])))  # longer words are cut
    whole = BPE_TRAINED.encode(text).tolist()
    pieces = [text[i : i + cut] for i in range(0, len(text), cut)]
    assert encoded(pieces, BPE_TRAINED, 14) == whole


def test_one_huge_word_is_cut_and_whole_again():
    text = "x" * 1000
    for tokenizer in (BPE_TRAINED, Bytes()):
        ids = encoded([text[:300], text[300:]], tokenizer, 64)
        assert tokenizer.decode(ids) == text


def test_nothing_gives_an_empty_file(tmp_path):
    tokens, digest = to_file(iter([]), np.dtype("<u2"), tmp_path / "0.bin")
    assert tokens.shape == (0,)
    assert tokens.dtype == np.uint16
    mapped = map_file(tmp_path, "0.bin", verify=True)
    assert mapped.shape == (0,)
    assert in_memory(iter([]), np.dtype("<u2"))[1] == digest


def test_a_mapped_file_cannot_be_changed(tmp_path):
    tokens, _ = to_file(iter([np.arange(3, dtype=np.uint8)]), np.dtype("|u1"), tmp_path / "0.bin")
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
