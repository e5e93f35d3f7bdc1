"""Settings for every test: shapes are checked where beartype is there, one thread, one seed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from jaxtyping import config, install_import_hook

checker = None
if importlib.util.find_spec("beartype"):
    import tests.checking  # noqa: F401

    checker = "tests.checking.check"
with install_import_hook("elbowroom", checker):
    import elbowroom  # noqa: F401

import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _settings() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the shape checker off, so that a test of bad input reaches elbowroom's own errors."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
