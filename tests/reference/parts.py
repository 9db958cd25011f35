"""Small random models and modules to try the references on; weights drawn so wide that every term has its own value."""

from __future__ import annotations

import copy

import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

CLS, SEP, MASK, VOCABULARY = 2, 3, 4, 40  # 0 is [PAD], 1 [UNK], words start at 5


def small_config(*, layers: int = 4, width: int = 16, vocabulary: int = VOCABULARY) -> BertConfig:
    """A BERT of a few thousand weights."""
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=32,
        initializer_range=0.4,
    )


def redrawn(module: nn.Module, *, seed: int) -> nn.Module:
    """The module in eval mode with every weight drawn anew, norms and biases too: nothing stays 0 or 1 by luck."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(module.named_parameters()):
            middle = 1.0 if weight.dim() == 1 and name.endswith("weight") else 0.0
            weight.copy_(middle + 0.3 * torch.randn(weight.shape, generator=draw))
    return module.eval()


def small_bert(*, seed: int = 0, **size: int) -> BertForMaskedLM:
    """A random masked LM with tied embeddings."""
    return redrawn(BertForMaskedLM(small_config(**size)), seed=seed)


def fresh_layers(count: int, *, seed: int = 100, config: BertConfig | None = None) -> list[BertLayer]:
    """Random layers for a decoder or a head, weights of their own."""
    wanted = config or small_config()
    # A config takes the name of its attention from the model that it is given to.
    wanted._attn_implementation = "eager"
    return [redrawn(BertLayer(wanted), seed=seed + number) for number in range(count)]


def last_layers(model: BertForMaskedLM, count: int) -> list[BertLayer]:
    """Copies of the encoder's last layers."""
    return [copy.deepcopy(layer) for layer in model.bert.encoder.layer[-count:]]


def gpt2_layers(count: int, *, seed: int = 200, width: int = 16) -> list[GPT2Block]:
    """Random blocks of GPT-2."""
    config = GPT2Config(n_embd=width, n_head=2, n_layer=count, n_positions=32, vocab_size=VOCABULARY)
    config._attn_implementation = "eager"
    return [redrawn(GPT2Block(config, layer_idx=number), seed=seed + number) for number in range(count)]


def projector_modules(width: int = 16, *, kind: str = "bn", seed: int = 300) -> list[nn.Module]:
    """The projector of DiffCSE with batch norm, or the one of SimCSE without ("tanh")."""
    if kind == "tanh":
        modules: list[nn.Module] = [nn.Linear(width, width), nn.Tanh()]
    else:
        modules = [
            nn.Linear(width, 2 * width, bias=False),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width, bias=False),
            nn.BatchNorm1d(width, affine=False),
        ]
    return [redrawn(module, seed=seed + number) for number, module in enumerate(modules)]


def small_discriminator(*, seed: int = 7, **size: int) -> BertModel:
    """A random encoder without pooler."""
    return redrawn(BertModel(small_config(**size), add_pooling_layer=False), seed=seed)


def binary_head(width: int = 16, *, seed: int = 400) -> nn.Module:
    """Dense, GELU, linear to one logit."""
    return redrawn(nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)), seed=seed)


def linear_head(width: int, classes: int, *, seed: int = 500) -> nn.Module:
    """One linear layer."""
    return redrawn(nn.Linear(width, classes), seed=seed)
