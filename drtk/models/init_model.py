"""A WordPiece tokenizer trained on a corpus, and an untrained model for it: an encoder, or one that writes."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from drtk.errors import DrtkError, UsageError
from drtk.models.checkpoint import TextEncoder
from drtk.models.config import InitModelSettings
from drtk.models.encoder import POOLINGS, Encoder
from drtk.models.model_folder import Recipe

SPECIALS = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "t5": ("<pad>", "</s>", "<unk>"),  # in the order of T5's own vocabulary
    "gpt2": ("<|endoftext|>", "<unk>"),
}
IN_MEMORY = 1 << 28  # bytes of corpus text kept in memory between two passes; more goes to a temporary file


def train_tokenizer(texts: Iterable[str], settings: InitModelSettings) -> Any:
    """A tokenizer whose word pieces were learnt from `texts`, with the special tokens of `settings.arch`.

    The same texts give the same pieces. Raises DrtkError where the texts hold no words.
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
    if settings.arch == "gpt2":
        end = SPECIALS["gpt2"][0]
        return PreTrainedTokenizerFast(
            tokenizer_object=pieces,
            bos_token=end,
            eos_token=end,
            unk_token=unknown,
            model_max_length=settings.max_length,
        )
    if settings.arch == "t5":
        pieces.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", vocabulary["</s>"])]
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=pieces,
            pad_token="<pad>",
            eos_token="</s>",
            unk_token=unknown,
            model_max_length=settings.max_length,
        )
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return BertTokenizerFast(
        tokenizer_object=pieces,
        do_lower_case=settings.lowercase,
        tokenize_chinese_chars=settings.language == "chinese",
        model_max_length=settings.max_length,
    )


def _learn_pieces(texts: Iterable[str], normalizer: Any, splitter: Any, settings: InitModelSettings) -> dict[str, int]:
    """Word piece -> id.

    The trainer numbers pieces inside words (##a) in the order of a hash table that differs from run to run, and breaks
    ties by these numbers. So all of them are given to it beforehand, which takes a first pass over the characters.
    """
    from tokenizers import Tokenizer, models, trainers

    seen: Counter[str] = Counter()
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, mode="w+", encoding="utf-8", newline="\n") as spool:
        for text in texts:
            plain = normalizer.normalize_str(" ".join(text.split()))
            seen.update(plain)
            spool.write(plain + "\n")
        ranked = sorted((char for char in seen if not char.isspace()), key=lambda char: (-seen[char], char))
        alphabet = sorted(ranked[: max(1, settings.vocab_size // 4)])
        if not alphabet:
            raise DrtkError("the corpus holds no words to learn a vocabulary from")
        inside = [
            f"##{char}"
            for char in alphabet  # punctuation stands alone
            if len(splitter.pre_tokenize_str(normalizer.normalize_str("a" + char))) == 1
        ]
        trainer = trainers.WordPieceTrainer(
            vocab_size=settings.vocab_size,
            min_frequency=settings.min_frequency,
            special_tokens=[*SPECIALS[settings.arch], *inside],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        pieces = Tokenizer(models.WordPiece(unk_token=SPECIALS[settings.arch][1]))
        pieces.normalizer, pieces.pre_tokenizer = normalizer, splitter
        spool.seek(0)
        pieces.train_from_iterator(spool, trainer)
    found: dict[str, int] = pieces.get_vocab()
    return found


def init_encoder(tokenizer: Any, settings: InitModelSettings, *, seed: int) -> TextEncoder:
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


def init_generator(tokenizer: Any, settings: InitModelSettings, *, seed: int) -> Any:
    """A T5 or GPT-2 model of the given size whose weights are drawn from `seed`; the global generator is left alone.

    Raises UsageError where the heads do not divide the width.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

    if settings.hidden % settings.heads:
        raise UsageError(f"--heads {settings.heads} does not divide --hidden {settings.hidden}")
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
