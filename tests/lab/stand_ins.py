"""What TensorBoard and W&B do with points, in a few lines: put into ``sys.modules`` by tests.

Signatures are those of `torch.utils.tensorboard.SummaryWriter` and of wandb 0.19.10 and later.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Points = dict[tuple[str, int], list[float]]  # every value that is shown for a name and step


class Boards:
    """TensorBoard's view of the folders that were written."""

    def __init__(self) -> None:
        self.shown: dict[str, Points] = {}
        self.open: list[str] = []

    def writer(self, log_dir: str, purge_step: int | None = None) -> Any:
        """Stands in for ``SummaryWriter``."""
        points = self.shown.setdefault(log_dir, {})
        if purge_step is not None:
            for key in [key for key in points if key[1] >= purge_step]:
                del points[key]
        self.open.append(log_dir)

        def add_scalar(tag: str, scalar_value: float, global_step: int) -> None:
            assert log_dir in self.open
            points.setdefault((tag, global_step), []).append(float(scalar_value))

        return SimpleNamespace(add_scalar=add_scalar, close=lambda: self.open.remove(log_dir))


class Server:
    """W&B's view of runs: steps never go back, and a run that is known goes on after its last."""

    def __init__(self) -> None:
        self.shown: dict[str, Points] = {}
        self.names: dict[str, str] = {}
        self.calls: list[dict[str, Any]] = []
        self.open: list[str] = []

    def init(self, *, id: str, name: str, reinit: str, resume: str, **more: Any) -> Any:
        """Stands in for ``wandb.init``."""
        assert reinit == "create_new" or not self.open
        assert resume == "allow" or id not in self.shown
        assert Path(more["dir"]).is_absolute()
        assert Path(more["dir"]).is_dir()
        self.calls.append({"id": id, "name": name, **more})
        self.names[id] = name
        points = self.shown.setdefault(id, {})
        last = [max((step for _, step in points), default=-1)]
        self.open.append(id)

        def log(data: dict[str, Any], step: int) -> None:
            assert id in self.open
            assert step >= last[0], "a step that is less than the current one is dropped"
            last[0] = step
            for key, value in data.items():
                points.setdefault((key, step), []).append(value)

        start = last[0] + 1
        return SimpleNamespace(log=log, starting_step=start, finish=lambda: self.open.remove(id))


def install(monkeypatch: pytest.MonkeyPatch) -> tuple[Boards, Server]:
    """Put both into the place of the packages."""
    boards, server = Boards(), Server()
    tensorboard, wandb = ModuleType("torch.utils.tensorboard"), ModuleType("wandb")
    tensorboard.SummaryWriter = boards.writer  # type: ignore[attr-defined]
    wandb.init = server.init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return boards, server
