"""Let a trained run write.

For example:

elbowroom sample runs/compare/ours-i0-d0 --prompt "ROMEO:"

elbowroom sample runs/compare/ours-i0-d0 --prompt "ROMEO:" --top-p 0.9 --samples 3
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro

from elbowroom.cli.main import UsageError
from elbowroom.cli.show import Integer, Number, Text
from elbowroom.cli.train import Device
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.folder import RunFolder, run_folders
from elbowroom.lab.generate import generate
from elbowroom.lab.model import GPT
from elbowroom.lab.tokenizers import Tokenizer, Twins, load_tokenizer

MOST_NAMED = 6  # runs in a message


@dataclass(kw_only=True)
class Command(Device):
    """The command's arguments."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""
    prompt: Text = None
    """How the text begins; with a new line, or a space, if left out."""
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
        folder = the_run(self.run_folder)
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
            logit_scale=config.loss.final_scale,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
        )
        self._write(tokenizer, ids.tolist(), tokens)

    def _encode(self, tokenizer: Tokenizer) -> torch.Tensor:
        """Return the prompt's ids."""
        if self.second and not isinstance(tokenizer, Twins):
            raise UsageError("--second: this run has no simulated second language")
        if self.prompt is None:
            return beginning(tokenizer, self.second)
        if not self.prompt:
            raise UsageError("--prompt: expected some text to begin with")
        try:
            return encoded(tokenizer, self.prompt, self.second)
        except ArgumentValueError as error:  # a character that the texts did not have
            said = str(error).removeprefix(f"{error.argument}: ").partition(";")[0]
            raise UsageError(f"--prompt: {said}; leave it out") from error

    def _write(
        self, tokenizer: Tokenizer, prompt: list[int], tokens: Iterator[torch.Tensor]
    ) -> None:
        """Print texts: one as it comes, several one after the other."""
        if self.samples == 1:
            write(tokenizer, prompt, (int(token) for token in tokens))
            return
        drawn = torch.cat(list(tokens)).T.tolist()  # [1, B] each
        for number, text in enumerate(drawn, start=1):
            print(f"--- {number}")
            print(tokenizer.decode([*prompt, *text]))


def write(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Iterable[int]) -> None:
    """Print a text as it comes, a character when it is whole: it may be several tokens.

    Args:
        tokenizer: of a run.
        prompt: the ids it begins with.
        tokens: those that follow.
    """
    ids: list[int] = []
    said = ""
    for more in itertools.chain([prompt], ([token] for token in tokens)):
        ids += more
        text = tokenizer.decode(ids)
        if not text.endswith("\ufffd"):
            print(text[len(said) :], end="", flush=True)
            said = text
    print(tokenizer.decode(ids)[len(said) :])


def the_run(path: Path) -> RunFolder:
    """Return the folder of one run; for a folder with several, name them.

    Args:
        path: of a run.
    """
    found = run_folders(path)
    if found[0].path != path:
        names = [str(folder.path) for folder in found]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        raise UsageError(f"{path}: name one run in it: {', '.join(names[:MOST_NAMED])}{more}")
    return found[0]


def encoded(tokenizer: Tokenizer, text: str, second: bool) -> torch.Tensor:
    """Return a text's ids, in the second language if asked for.

    Args:
        tokenizer: of a run.
        text: to encode.
        second: of a simulated pair.
    """
    if isinstance(tokenizer, Twins):
        return torch.as_tensor(tokenizer.encode(text, copy=int(second)))
    return torch.as_tensor(tokenizer.encode(text))


def beginning(tokenizer: Tokenizer, second: bool) -> torch.Tensor:
    """Return ids to begin with where there is no prompt: white space, if it is known.

    Args:
        tokenizer: of a run.
        second: of a simulated pair.
    """
    for text in ("\n", " "):
        try:
            return encoded(tokenizer, text, second)
        except ArgumentValueError:
            continue
    return encoded(tokenizer, tokenizer.decode([0]), second)
