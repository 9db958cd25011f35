"""Small tokenizers of three kinds, built without a download."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXT = ["the cat sat on the mat and unbelievable things happened there, naïve ones: 10,000 €!"] * 3


def word_pieces(folder: Path) -> str:
    """Save a tokenizer like BERT's: 'word' is one piece, 'wording' two ('word', '##ing'), other letters one each."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?-"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", "##ing", *letters, *(f"##{x}" for x in letters)]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return _save_tokenizer(
        tokenizer, folder, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


def byte_pieces(folder: Path) -> str:
    """Save a tokenizer like RoBERTa's: byte-level BPE; a character such as € is several pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=280,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<s>", "</s>"],
            show_progress=False,
        ),
    )
    return _save_tokenizer(tokenizer, folder, bos_token="<s>", eos_token="</s>")


def sentence_pieces(folder: Path) -> str:
    """Save a tokenizer like SentencePiece: a unigram model over text with ▁ for spaces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        TEXT, trainers.UnigramTrainer(vocab_size=60, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    )
    return _save_tokenizer(tokenizer, folder, unk_token="<unk>")


def _save_tokenizer(tokenizer: Tokenizer, folder: Path, **special: str) -> str:
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return str(folder)
