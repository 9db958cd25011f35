"""A WordPiece tokenizer trained on a corpus, and an untrained BERT-type encoder for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from drtk.errors import DrtkError, UsageError
from drtk.models.checkpoint import TextEncoder
from drtk.models.encoder import Encoder
from drtk.models.pooling import POOLINGS
from drtk.models.recipe import Recipe
from drtk.settings.scratch import ScratchSettings

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_tokenizer(texts: Iterable[str], settings: ScratchSettings) -> Any:
    """A BERT tokenizer whose word pieces were learnt from `texts`; the same texts give the same pieces.

    Raises DrtkError where the texts hold no words.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import BertTokenizerFast

    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer(
        lowercase=settings.lowercase, handle_chinese_chars=settings.language == "chinese"
    )
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=list(SPECIALS),
        show_progress=False,
    )
    pieces.train_from_iterator(texts, trainer)
    if pieces.get_vocab_size() <= len(SPECIALS):
        raise DrtkError("the corpus holds no words to learn a vocabulary from")
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, pieces.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return BertTokenizerFast(
        tokenizer_object=pieces,
        do_lower_case=settings.lowercase,
        tokenize_chinese_chars=settings.language == "chinese",
        model_max_length=settings.max_length,
    )


def untrained_encoder(tokenizer: Any, settings: ScratchSettings, *, seed: int) -> TextEncoder:
    """A BERT-type encoder of the given size whose weights are drawn from `seed`; the global generator is left alone.

    Raises UsageError where the heads do not divide the width, or the pooling is unknown.
    """
    from transformers import BertConfig, BertModel

    if settings.hidden % settings.heads:
        raise UsageError(f"--heads {settings.heads} does not divide --hidden {settings.hidden}")
    recipe = Recipe(
        pooling=tuple(settings.pooling.split("+")),
        normalize=settings.normalize,
        similarity=settings.similarity,
        query_length=settings.max_length,
        passage_length=settings.max_length,
    ).checked(POOLINGS)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.intermediate or 4 * settings.hidden,
        max_position_embeddings=settings.max_length,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = BertModel(config)
    encoder = Encoder(backbone, pooling=recipe.pooling, normalize=recipe.normalize)
    return TextEncoder(encoder.eval(), tokenizer, recipe)
