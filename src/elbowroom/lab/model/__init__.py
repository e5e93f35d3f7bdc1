"""The lab's model: one GPT with a leading dimension of runs; a single run is the ordinary case."""

from elbowroom.lab.model.config import ModelConfig
from elbowroom.lab.model.gpt import GPT

__all__ = ["GPT", "ModelConfig"]
