"""What training tells and leaves behind, without what depends on the clock."""

from __future__ import annotations

from elbowroom.lab import trainer
from elbowroom.lab.population import Population
from tests.lab.toy import lines, weights

CLOCK = ("wall_seconds", "tokens_per_second", "provenance")
FILES = ["config.yaml", "metrics.jsonl", "model.safetensors", "record.json", "tokenizer.json"]


def record(folder):
    return {k: v for k, v in folder.record.items() if k not in CLOCK}


def result(folder):
    """Return all that a finished run leaves; the weights and the rest to the bit."""
    return {
        "files": sorted(path.name for path in folder.path.iterdir()),
        "config": (folder.path / "config.yaml").read_text(),
        "tokenizer": (folder.path / "tokenizer.json").read_text(),
        "weights": weights(folder),
        "metrics": lines(folder),
        "record": record(folder),
    }


def differences(found, expected):
    """Return what differs between two trainings' results, by folder and part."""
    assert [f.path.name for f in found.folders] == [f.path.name for f in expected.folders]
    pairs = [
        (a.path.name, result(a), result(b))
        for a, b in zip(found.folders, expected.folders, strict=True)
    ]
    return [f"{name}: {part}" for name, a, b in pairs for part in b if a[part] != b[part]]


class Watch:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)

    def steps(self):
        """Return what was told but for the progress within an evaluation."""
        told = (event for event in self.events if event.kind != "judging")
        return [(event.kind, event.step) for event in told]

    def of(self, kind):
        return [event for event in self.events if event.kind == kind]

    def warnings(self):
        return [event.message for event in self.of("warning")]


class Clock:
    """Time that passes by a second a step, in the trainer alone."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        advance = Population.advance

        def ticking(population, steps):
            advance(population, steps)
            self.now += steps

        monkeypatch.setattr(Population, "advance", ticking)
        monkeypatch.setattr(trainer, "time", self)

    def monotonic(self):
        return self.now


def after(steps):
    """Return the minutes after which training stops when it has made so many steps."""
    return (steps - 0.5) / 60
