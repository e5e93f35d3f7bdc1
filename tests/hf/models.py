"""Tiny causal LMs of transformers, one of each kind of head that the library meets."""

from __future__ import annotations

import importlib
import logging
import warnings

import torch

V, T = 61, 9
SHAPE = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": V, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
CAPPED = SHAPE | {"final_logit_softcapping": 2.0}
MODELS = {  # module, model, configuration, its settings
    "gpt2": ("gpt2", "GPT2LMHeadModel", "GPT2Config", GPT2),
    "llama": ("llama", "LlamaForCausalLM", "LlamaConfig", SHAPE),
    "qwen": ("qwen3", "Qwen3ForCausalLM", "Qwen3Config", SHAPE),
    "mistral": ("mistral", "MistralForCausalLM", "MistralConfig", SHAPE),
    "gemma": (
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        CAPPED,
    ),
    "granite": ("granite", "GraniteForCausalLM", "GraniteConfig", SHAPE | {"logits_scaling": 3.0}),
}


def model(name: str, **settings):
    """Return a model of small random weights, in training mode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("transformers").setLevel(logging.ERROR)
        module, kind, config, shape = MODELS[name]
        found = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
        configs = importlib.import_module(f"transformers.models.{module}.configuration_{module}")
        torch.manual_seed(1)
        made = getattr(found, kind)(getattr(configs, config)(**shape | settings))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return made.train()


def batch(ignored: int = 3):
    """Return ids and labels, some of which do not count."""
    torch.manual_seed(2)
    ids = torch.randint(3, V, (2, T))
    labels = ids.clone()
    labels[0, :ignored] = -100
    return {"input_ids": ids, "labels": labels}


def gradients(made) -> dict[str, torch.Tensor]:
    """Return what the backward pass left, and clear it."""
    found = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
    made.zero_grad(set_to_none=True)
    return found


def loss_and_gradients(made, **given):
    """Return the loss as a number, and the gradients by name."""
    loss = made(**given).loss
    loss.backward()
    return loss.detach(), gradients(made)
