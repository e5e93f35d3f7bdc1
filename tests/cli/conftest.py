from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import lab


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with small texts and a cache of its own."""
    return lab.settle(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder in which a comparison on a simulated pair is done: in ``runs/``."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        home = lab.settle(tmp_path_factory.mktemp("compared"), monkeypatch)
        assert lab.compare("texts/en.txt?pair=same", "--output", "runs", "--quiet") == 0
    return home
