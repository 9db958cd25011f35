"""Tiny untrained masked language models of every supported family."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drtk.models.backbone import FAMILIES as FAMILIES

VOCABULARY = 97


def create_masked_lm(family: str, *, attention: str = "sdpa", vocabulary: int = VOCABULARY, **changes: Any) -> Any:
    """Return a masked language model in evaluation mode (3 layers, ModernBERT 4; hidden size 32) with random norms and biases."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    size: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    if family == "distilbert":
        size = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}
    if family == "electra":
        size |= {"embedding_size": 16}
    if family == "modernbert":  # four layers: two with global attention, the others see 2 tokens on each side
        size |= {"num_hidden_layers": 4, "local_attention": 4}
        size |= {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    if "roberta" in family:
        size |= {"pad_token_id": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        config = AutoConfig.for_model(family, vocab_size=vocabulary, **size | changes)
        model = AutoModelForMaskedLM.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def save_random_masked_lm(family: str, folder: Path, **changes: Any) -> Any:
    """Save and return a `create_masked_lm` model with a tokenizer of the collection (byte-level for RoBERTa)."""
    from transformers import AutoTokenizer

    from drtk.runtime.progress import silence_transformers
    from tests.tiny_models import save_tiny_encoder

    if family == "roberta":
        tokenizer = create_byte_level_tokenizer()
    else:
        tokenizer = AutoTokenizer.from_pretrained(save_tiny_encoder(folder.parent / f"{folder.name}-tokenizer"))
    model = create_masked_lm(family, vocabulary=len(tokenizer), **changes)
    with silence_transformers():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return model


def create_byte_level_tokenizer() -> Any:
    """Return a tokenizer like RoBERTa's (byte-level BPE, <s> and </s>), trained on the synthetic collection."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from tests.tiny_models import make_collection

    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=specials, show_progress=False
    )
    made.train_from_iterator(
        (f"{row['title']} {row['text']}, ({row['title']})." for row in make_collection()[0]), trainer
    )
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    named = dict(zip(names, specials, strict=True)) | {"cls_token": "<s>", "sep_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **named)


def create_padded_batch(model: Any, *, lengths: tuple[int, ...] = (9, 6, 4), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return token ids and attention mask of a batch that is padded on the right, (batch, tokens) each."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, model.config.vocab_size, (len(lengths), max(lengths)), generator=draw)
    attention = (torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).long()
    return torch.where(attention.bool(), ids, model.config.pad_token_id), attention
