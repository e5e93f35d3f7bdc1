from __future__ import annotations

import pytest

from elbowroom.errors import ArgumentValueError
from elbowroom.study.paper.effective import effective_margins


def test_margins_grow_with_the_width_and_are_told_from_the_print() -> None:
    steps: list[tuple[int, int]] = []
    widths = {"gpt2": 16, "gpt2-xl": 64}
    found = effective_margins(
        vocab_size=200,
        widths=widths,
        sample=20,
        draws=2,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert [one.model for one in found] == list(widths)
    assert found[0].margin.estimate < found[1].margin.estimate
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert not found[0].inside[0]  # the paper's are much wider
    assert found[0].trained == ("32.96 (5.4)", "0.029 (4.5e-3)")
    again = effective_margins(vocab_size=200, widths=widths, sample=20, draws=2)
    assert again == found


def test_one_draw_has_no_interval() -> None:
    with pytest.raises(ArgumentValueError, match="draws: expected an integer, at least 2"):
        effective_margins(draws=1)
