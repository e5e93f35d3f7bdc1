"""Let a trained run write.

For example:

elbowroom sample runs/compare/ours-i0-d0 --prompt "ROMEO:"

elbowroom sample runs/compare/ours-i0-d0 --prompt "ROMEO:" --top-p 0.9 --samples 3
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro

from elbowroom.cli.main import UsageError
from elbowroom.cli.show import Integer, Number
from elbowroom.cli.train import Device
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.generate import generate
from elbowroom.lab.model import GPT
from elbowroom.lab.tokenizers import Tokenizer, Twins, load_tokenizer


@dataclass(kw_only=True)
class Command(Device):
    """The command's arguments."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""
    prompt: str = "\n"
    """How the text begins."""
    tokens: int = 300
    """Tokens to write."""
    samples: int = 1
    """Texts to write."""
    temperature: float = 1.0
    """What the logits are divided by; 0 takes the most probable token."""
    top_p: Number = None
    """Draw from the most probable tokens that make up this share."""
    top_k: Integer = None
    """Draw from so many tokens at most."""
    min_p: Number = None
    """Draw from tokens at least this share as probable as the first."""
    seed: int = 0
    """Decides what is drawn."""
    second: bool = False
    """Prompt in the second language of a simulated pair."""

    def run(self) -> None:
        """Write."""
        if self.samples < 1 or self.tokens < 1:
            raise UsageError("--samples and --tokens: expected at least 1")
        folder = RunFolder(self.run_folder)
        config = folder.config()
        tokenizer = load_tokenizer(folder.path / "tokenizer.json")
        model = GPT(replace(config.model, vocab_size=tokenizer.vocab_size), [0])
        model.load_run_state(0, folder.load_model()[0])
        device = self.place()
        ids = self._encode(tokenizer).to(device)
        tokens = generate(
            model.to(device),
            ids.expand(1, self.samples, -1),
            steps=self.tokens,
            temperature=self.temperature,
            logit_scale=config.loss.logit_scale,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
        )
        self._write(tokenizer, ids.tolist(), tokens)

    def _encode(self, tokenizer: Tokenizer) -> torch.Tensor:
        if not self.prompt:
            raise UsageError("--prompt: expected some text to begin with")
        if isinstance(tokenizer, Twins):
            ids = tokenizer.encode(self.prompt, copy=int(self.second))
        elif self.second:
            raise UsageError("--second: this run has no simulated second language")
        else:
            ids = tokenizer.encode(self.prompt)
        return torch.as_tensor(ids)

    def _write(self, tokenizer: Tokenizer, prompt: list[int], tokens: object) -> None:
        """Print texts: one as it comes, several one after the other."""
        texts = [list(prompt) for _ in range(self.samples)]
        said = ""
        for step in tokens:  # type: ignore[attr-defined]
            for text, token in zip(texts, step[0].tolist(), strict=True):
                text.append(token)
            if self.samples == 1:  # whole again, for a character may be several tokens
                whole = tokenizer.decode(texts[0])
                if not whole.endswith("\ufffd"):
                    print(whole[len(said) :], end="", flush=True)
                    said = whole
        if self.samples == 1:
            print(tokenizer.decode(texts[0])[len(said) :])
            return
        for number, text in enumerate(texts, start=1):
            print(f"--- {number}", file=sys.stdout)
            print(tokenizer.decode(text))
