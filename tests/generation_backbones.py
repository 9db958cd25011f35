"""Untrained decoder-only encoders and generative rerankers."""

from pathlib import Path
from typing import Any

import torch

from drtk.runtime.progress import silence_transformers
from tests.tiny_models import make_collection

SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
TEMPLATE = """{% for message in messages if message.role == 'system' %}<i>{{ message.content }}{% endfor %}<q>\
{{ (messages | selectattr('role', 'eq', 'query') | first).content }}<d>\
{{ (messages | selectattr('role', 'eq', 'document') | first).content }}<e>{{ tail | default('') }}"""


def train_tokenizer(*, end: str = "", side: str = "left", metaspace: bool = False) -> Any:
    """Return a BPE tokenizer. end: token after every text    metaspace: words begin with ▁, as in SentencePiece"""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace() if metaspace else pre_tokenizers.ByteLevel()
    special = ["<pad>", "<unk>", "</s>", "<q>", "<d>", "<e>", "<i>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"{row['title']} {row['text']}" for row in make_collection()[0]]
    tokenizer.train_from_iterator([*texts, *["Query: Document: Relevant: true false"] * 20], trainer)
    if end:
        at = tokenizer.token_to_id(end)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, at)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>", padding_side=side,
        model_max_length=96,
    )  # fmt: skip


def save(folder: Path, architecture: str, tokenizer: Any, **settings: Any) -> Path:
    """Save an untrained model of transformers, such as Qwen3Model, with its tokenizer."""
    import transformers

    kind = getattr(transformers, architecture)
    with torch.random.fork_rng(devices=[]), silence_transformers():
        torch.manual_seed(1)
        config = kind.config_class(**settings, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
        kind(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def save_causal_reranker(folder: Path, template: str = TEMPLATE) -> Path:
    """Save a decoder-only reranker with a chat template, in the layout of transformers."""
    tokenizer = train_tokenizer()
    tokenizer.add_tokens(["yes", "no"])
    tokenizer.chat_template = template
    return save(folder, "Qwen3ForCausalLM", tokenizer, **SIZE, head_dim=8)


def save_monot5(folder: Path) -> Path:
    """Save a T5 model whose tokenizer has the words of monoT5's prompt."""
    tokenizer = train_tokenizer(end="</s>", side="right", metaspace=True)
    size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return save(folder, "T5ForConditionalGeneration", tokenizer, **size, decoder_start_token_id=0, eos_token_id=2)
