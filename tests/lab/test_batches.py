"""Batches: windows of the text, drawn by seed, step and number alone, in the shares asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from elbowroom.errors import ArgumentValueError
from elbowroom.lab.batches import LANGUAGE, PLACE, Batches, Windows
from elbowroom.lab.random import below, uniform
from elbowroom.lab.tokens import Stream
from tests.lab.toy import corpus

CPU = torch.device("cpu")


def batches(shares, seeds, batch=6, **options):
    found = torch.tensor(shares, dtype=torch.float64).expand(len(seeds), -1)
    return Batches(corpus(), found, seeds, batch=batch, context=8, device=CPU, **options)


def test_a_window_is_text_and_the_text_after_it():
    batch = batches([0.5, 0.5], [0, 1]).draw(torch.tensor(3))
    assert batch.ids.shape == batch.target.shape == (2, 6, 8)
    assert torch.equal(batch.ids[..., 1:], batch.target[..., :-1])
    streams = corpus().train
    for row, target, language in zip(
        batch.ids.flatten(0, 1), batch.target.flatten(0, 1), batch.language.flatten(), strict=True
    ):
        whole = streams[language].ids()
        window = np.array([*row.tolist(), int(target[-1])])
        places = np.lib.stride_tricks.sliding_window_view(whole, 9)
        assert (places == window).all(-1).any()


def test_by_hand():
    shares, step = [0.7, 0.3], torch.tensor(5)
    batch = batches(shares, [11]).draw(step)
    seed, number = torch.tensor([[11]]), torch.arange(6)
    language = (uniform(seed, LANGUAGE, step, number) >= 0.7).long()
    assert torch.equal(batch.language, language)
    place = below(torch.tensor(len(corpus().train[0]) - 8), seed, PLACE, step, number)
    text = torch.from_numpy(corpus().train[0].ids())
    for n in range(6):
        start = int(place[0, n])
        expected = text[start : start + 8] + int(language[0, n]) * corpus().train[1].offset
        assert torch.equal(batch.ids[0, n], expected)


def test_the_first_and_the_last_place_have_a_window():
    streams = [
        Stream(tokens=np.arange(20, dtype=np.uint8)),
        Stream(tokens=np.arange(9, dtype="u2")),
    ]
    windows = Windows(streams, 8, CPU)
    assert windows.places.tolist() == [12, 1]
    language = torch.tensor([0, 0, 1])
    ids, target = windows.cut(language, torch.tensor([0, 11, 0]))
    assert ids[:, 0].tolist() == [0, 11, 0]
    assert target[:, -1].tolist() == [8, 19, 8]
    assert not windows.on_device


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_text_on_the_device_is_the_same(dtype, monkeypatch):
    """What a GPU does, on a CPU: all text in one tensor."""
    texts = [np.arange(5, 40, dtype=dtype), np.arange(100, 130, dtype=dtype)]
    streams = [
        Stream(tokens=texts[0]),
        Stream(tokens=texts[1], offset=7),
        Stream(tokens=texts[0], offset=50),  # the same text lies there once
    ]
    host = Windows(streams, 4, CPU)
    resident = Windows(streams, 4, CPU)
    monkeypatch.setattr(resident, "_resident", resident.joined())
    assert resident.on_device
    assert len(resident.joined()) == 65
    language = torch.tensor([[0, 1], [2, 1]])
    place = torch.tensor([[3, 0], [30, 25]])
    for a, b in zip(host.cut(language, place), resident.cut(language, place), strict=True):
        assert torch.equal(a, b)
        assert a.dtype == torch.int64


def test_too_short_a_text():
    with pytest.raises(ArgumentValueError, match="context: expected more than 8 tokens of each"):
        Windows([Stream(tokens=np.zeros(8, dtype=np.uint8))], 8, CPU)


@pytest.mark.parametrize("shares", [[1.0, 0.0], [0.0, 1.0]])
def test_a_language_that_is_never_drawn(shares):
    drawn = torch.cat([batches(shares, [0, 1]).draw(torch.tensor(i)).language for i in range(200)])
    assert (drawn == shares.index(1.0)).all()


def test_languages_come_in_their_shares():
    source = batches([0.98, 0.02], list(range(10)), batch=100)
    drawn = torch.cat([source.draw(torch.tensor(i)).language for i in range(50)])
    n, share = drawn.numel(), float(drawn.float().mean())
    assert abs(share - 0.02) < 4 * math.sqrt(0.02 * 0.98 / n)


def test_shares_need_not_add_up_and_may_differ_from_run_to_run():
    shares = torch.tensor([[1.0, 0.0], [2.0, 2.0], [0.0, 9.0]])
    source = Batches(corpus(), shares, [3, 3, 3], batch=64, context=8, device=CPU)
    language = source.draw(torch.tensor(0)).language.float().mean(-1)
    assert language[0] == 0
    assert 0.3 < language[1] < 0.7
    assert language[2] == 1


def test_a_run_sees_the_same_in_any_company_and_any_part():
    for step in (0, 1, 10**6):
        alone = batches([0.7, 0.3], [5]).draw(torch.tensor(step))
        among = batches([0.7, 0.3], [1, 5, 2**62]).draw(torch.tensor(step))
        part = batches([0.7, 0.3], [5]).draw(torch.tensor(step), slice(2, 4))
        for name in ("ids", "target", "language"):
            whole = getattr(alone, name)
            assert torch.equal(getattr(among, name)[1:2], whole)
            assert torch.equal(getattr(part, name), whole[:, 2:4])
    other = batches([0.7, 0.3], [6]).draw(torch.tensor(0))
    assert not torch.equal(other.ids, batches([0.7, 0.3], [5]).draw(torch.tensor(0)).ids)


def test_processes_share_a_batch():
    step = torch.tensor(4)
    whole = batches([0.7, 0.3], [5]).draw(step)
    parts = [batches([0.7, 0.3], [5], rank=r, world=3).draw(step) for r in range(3)]
    assert torch.equal(torch.cat([p.ids for p in parts], 1), whole.ids)
    with pytest.raises(ArgumentValueError, match="batch: expected a multiple of 4 processes"):
        batches([0.7, 0.3], [5], rank=0, world=4)


def test_shares_of_another_shape():
    with pytest.raises(ArgumentValueError, match="shares: expected shape"):
        Batches(corpus(), torch.ones(1, 3), [0], batch=2, context=8, device=CPU)
