"""Training one run by a loop of its own: the public functions, no run dimension in the loss."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

import elbowroom as er
from elbowroom import TokenCounts, init, margins, rivals, variants
from elbowroom.lab.batches import Batches
from elbowroom.lab.model import GPT

PENALTIES = {
    "cosreg": rivals.cosreg,
    "laplacian": rivals.laplacian,
    "centering": rivals.centering_penalty,
}


class ByHand:
    """One run; `steps` trains it."""

    def __init__(self, run, corpus, shares):
        self.run, self.corpus = run, corpus
        training = run.training
        shares = torch.tensor(shares, dtype=torch.float64)
        shares = shares / shares.sum()
        counts = torch.as_tensor(corpus.counts()).double()
        tokens = training.steps * training.batch * run.model.context
        self.counts = TokenCounts(shares @ (counts / counts.sum(-1, keepdim=True)) * tokens)
        if run.loss.count_steps is not None:
            self.running = TokenCounts.running(corpus.vocab_size, steps=run.loss.count_steps)
        config = replace(run.model, vocab_size=corpus.vocab_size)
        self.model = GPT(config, [run.init_seed])
        matrices = {id(m): m for m in (self.model.embedding, self.model.head)}.values()
        for matrix in matrices:
            init.zero_rows_(matrix, self.rows(run.zero_rows)[None])
        if self.model.bias is not None:
            prior = self.counts.log_prior()
            self.model.bias.data[0] = prior - prior.mean()
        self.batches = Batches(
            corpus,
            shares[None],
            [run.data_seed],
            batch=training.batch,
            context=run.model.context,
            device=torch.device("cpu"),
        )
        self.optimizer = self._optimizer(list(matrices))
        self.losses, self.norms = [], []

    def rows(self, rows):
        """Return the mask of the rows that a criterion names."""
        given = {k: v for k, v in rows.criteria().items() if v is not None}
        if not given:
            return torch.zeros(self.corpus.vocab_size, dtype=torch.bool)
        groups = torch.as_tensor(self.corpus.group_of_token)
        if "languages" in given:
            wanted = [self.corpus.languages.index(name) for name in given["languages"]]
            return sum(groups == i for i in wanted) > 0
        if "language_share" in given:
            given["group_of_token"] = groups
        return self.counts.rare(**given)

    def _optimizer(self, matrices):
        config = self.run.optimizer
        groups = self.model.parameter_groups(config.weight_decay)
        options = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
        if config.name == "row_adamw":
            made = er.RowAdamW(groups, rows=matrices, catch_up=config.catch_up, **options)
        elif config.name == "coupled_adamw":
            made = rivals.CoupledAdamW(groups, coupled=matrices, **options)
        else:
            made = torch.optim.AdamW(groups, **options)
        if config.center:
            rivals.center_rows(made, self.model.head)
        return made

    def rate(self, i):
        """Return the learning rate of a step."""
        c, steps = self.run.optimizer, self.run.training.steps
        low = 0.0 if c.schedule == "constant" else c.min_lr
        begin = {"cosine": c.warmup, "wsd": steps - round(c.decay * steps), "constant": steps}
        begin = max(c.warmup, begin[c.schedule])
        u = 0.0 if i <= begin else (i - begin) / (steps - begin)
        share = (1 + math.cos(math.pi * u)) / 2 if c.schedule == "cosine" else 1 - u
        warm = min(1.0, i / c.warmup) if c.warmup else 1.0
        return warm * (low + (c.lr - low) * share)

    def margin(self):
        """Return the margin, or the rule."""
        m = self.run.loss.margin
        wrap = (lambda x: margins.ByNorms(x, m.norms)) if m.norms else float
        if m.start == math.inf:
            return math.inf
        if not m.moves:
            return wrap(m.start)
        end = m.end if m.end is not None else margins.top_p(self.corpus.vocab_size, m.end_top_p)
        return margins.Annealed(wrap(m.start), wrap(end), m.shape, m.hold, m.release)

    def variant(self):
        """Return the variant."""
        v = self.run.loss.variant
        return {
            "none": None,
            "softminus": variants.Softminus(v.c, v.detach_threshold),
            "detached_below": variants.DetachedBelow(),
            "decoupled": variants.Decoupled(),
            "leaky": variants.Leaky(v.weight),
            "rare_only": variants.RareOnly(self.rows(v.rows)),
        }[v.name]

    def loss(self, hidden, weight, target, bias, i):
        """Return the loss of tokens ``[N]``."""
        c = self.run.loss
        head = {"bias": bias, "logit_scale": c.logit_scale}
        progress = i / self.run.training.steps
        if c.name == "thresholded":
            protect = self.rows(c.protect) if c.protect and progress < c.protect_until else None
            found = er.linear_thresholded_cross_entropy(
                hidden,
                weight,
                target,
                self.margin(),
                progress=progress,
                protect=protect,
                variant=self.variant(),
                label_smoothing=c.label_smoothing,
                z_loss=c.z_loss,
                **head,
            )
        else:
            own = dict(c.options)
            counted = ("agg", "class_balanced", "equalization", "ldam", "logit_adjusted", "seesaw")
            if c.name in counted or own.get("proposal") == "frequency":
                own["counts"] = self.counts if c.count_steps is None else self.running
            if c.name in ("equalization", "sampled_softmax"):
                own |= {"seed": self.run.data_seed, "step": i}
            found = getattr(rivals, c.name)(hidden, weight, target, **own, **head)
        if c.penalty != "none":
            found = found + PENALTIES[c.penalty](weight, c.penalty_weight)
        return found

    def step(self, i):
        """Make one step on the whole batch."""
        config, batch = self.run.optimizer, self.batches.draw(torch.tensor(i))
        target = batch.target.flatten()
        if self.run.loss.count_steps is not None:
            self.running.update(target)
        hidden = self.model(batch.ids).flatten(0, 2)
        bias = None if self.model.bias is None else self.model.bias[0]
        loss = self.loss(hidden, self.model.head[0], target, bias, i)
        self.optimizer.zero_grad()
        loss.backward()
        params = list(self.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(params, config.clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(i)
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        self.norms.append(float(norm))

    def steps(self, count):
        """Make the first so many steps; return itself."""
        for i in range(count):
            self.step(i)
        return self
