"""Pairs of processes, for the tests of training by several."""

from __future__ import annotations

import pytest

from tests.lab.torchrun_pair import Pair, Partner


@pytest.fixture(scope="session")
def partner():
    made = Partner()
    yield made
    made.close()


@pytest.fixture
def pair(partner, tmp_path, monkeypatch):
    return Pair(partner, tmp_path, monkeypatch)
