"""Train a WordPiece tokenizer on a corpus, and initialize an encoder or a generation model with random weights."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from drtk.errors import DrtkError
from drtk.models.checkpoint import TextEncoder
from drtk.models.config import InitModelSettings
from drtk.models.encoder import Encoder
from drtk.models.model_folder import EncodingConfig

SPECIALS = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "t5": ("<pad>", "</s>", "<unk>"),  # in the order of T5's vocabulary
    "gpt2": ("<|endoftext|>", "<unk>"),
}
IN_MEMORY = 1 << 28  # bytes of text to keep in memory between two passes; larger corpora use a temporary file


def train_tokenizer(texts: Iterable[str], settings: InitModelSettings) -> Any:
    """Train a WordPiece tokenizer with the special tokens of `settings.arch`; equal texts give equal tokenizers.

    Raises DrtkError if the texts contain no words.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import BertTokenizerFast, PreTrainedTokenizerFast

    normalizer = normalizers.BertNormalizer(
        lowercase=settings.lowercase, handle_chinese_chars=settings.language == "chinese"
    )
    splitter = pre_tokenizers.BertPreTokenizer()
    vocabulary = _learn_pieces(texts, normalizer, splitter, settings)
    unknown = next(name for name in SPECIALS[settings.arch] if "unk" in name.lower())
    pieces = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    pieces.normalizer, pieces.pre_tokenizer, pieces.decoder = normalizer, splitter, decoders.WordPiece()
    common = {"tokenizer_object": pieces, "model_max_length": settings.max_length}
    if settings.arch == "gpt2":
        end = SPECIALS["gpt2"][0]
        return PreTrainedTokenizerFast(bos_token=end, eos_token=end, unk_token=unknown, **common)
    if settings.arch == "t5":
        pieces.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", vocabulary["</s>"])]
        )
        return PreTrainedTokenizerFast(pad_token="<pad>", eos_token="</s>", unk_token=unknown, **common)
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return BertTokenizerFast(
        do_lower_case=settings.lowercase, tokenize_chinese_chars=settings.language == "chinese", **common
    )


def _learn_pieces(texts: Iterable[str], normalizer: Any, splitter: Any, settings: InitModelSettings) -> dict[str, int]:
    """Train a WordPiece vocabulary and return {word piece: id}.

    The trainer numbers the characters inside words (##a) in random order, and breaks ties between equally frequent pairs
    by these numbers. Passing the characters as special tokens makes the vocabulary deterministic, but needs a first pass.
    """
    from tokenizers import Tokenizer, models, trainers

    counts: Counter[str] = Counter()
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, mode="w+", encoding="utf-8", newline="\n") as spool:
        for text in texts:
            plain = normalizer.normalize_str(" ".join(text.split()))
            counts.update(plain)
            spool.write(plain + "\n")
        ranked = sorted((char for char in counts if not char.isspace()), key=lambda char: (-counts[char], char))
        alphabet = sorted(ranked[: max(1, settings.vocab_size // 4)])
        if not alphabet:
            raise DrtkError("the corpus contains no words; check the text field")
        continuations = [
            f"##{char}"
            for char in alphabet  # but not punctuation, which is a word of its own
            if len(splitter.pre_tokenize_str(normalizer.normalize_str("a" + char))) == 1
        ]
        trainer = trainers.WordPieceTrainer(
            vocab_size=settings.vocab_size,
            min_frequency=settings.min_frequency,
            special_tokens=[*SPECIALS[settings.arch], *continuations],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        pieces = Tokenizer(models.WordPiece(unk_token=SPECIALS[settings.arch][1]))
        pieces.normalizer, pieces.pre_tokenizer = normalizer, splitter
        spool.seek(0)
        pieces.train_from_iterator(spool, trainer)
    return pieces.get_vocab()


def init_encoder(tokenizer: Any, settings: InitModelSettings, *, seed: int) -> TextEncoder:
    """Return a BERT encoder with random weights. The global random state does not change.

    Raises UsageError if `hidden` is not a multiple of `heads`, or for an unknown pooling.
    """
    from transformers import BertConfig, BertModel

    settings.check()
    encoding = EncodingConfig(
        pooling=tuple(settings.pooling.split("+")),
        normalize=settings.normalize,
        similarity=settings.similarity,
        query_length=settings.max_length,
        passage_length=settings.max_length,
    )
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
    encoder = Encoder(backbone, pooling=encoding.pooling, normalize=encoding.normalize)
    return TextEncoder(encoder.eval(), tokenizer, encoding)


def init_generator(tokenizer: Any, settings: InitModelSettings, *, seed: int) -> Any:
    """Return a T5 or GPT-2 model (`settings.arch`) with random weights. The global random state does not change.

    Raises UsageError if `hidden` is not a multiple of `heads`, or for an unknown pooling.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

    settings.check()
    inner = settings.intermediate or 4 * settings.hidden
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if settings.arch == "gpt2":
            return GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=len(tokenizer),
                    n_embd=settings.hidden,
                    n_layer=settings.layers,
                    n_head=settings.heads,
                    n_inner=inner,
                    n_positions=settings.max_length,
                    bos_token_id=tokenizer.bos_token_id,
                    eos_token_id=tokenizer.eos_token_id,
                )
            ).eval()
        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=len(tokenizer),
                d_model=settings.hidden,
                d_kv=settings.hidden // settings.heads,
                d_ff=inner,
                num_layers=settings.layers,
                num_decoder_layers=settings.layers,
                num_heads=settings.heads,
                feed_forward_proj="gated-gelu",
                tie_word_embeddings=True,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
                decoder_start_token_id=tokenizer.pad_token_id,
            )
        ).eval()
