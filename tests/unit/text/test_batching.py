"""Tokenization of passages and pairs, padding, and batches by length."""

import copy
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    BatchEncoding,
    DebertaV2Tokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from drtk.models.checkpoint import load_encoder
from drtk.records import Passage, Query
from drtk.text import batching
from drtk.text.batching import (
    PairTokenizer,
    TextTokenizer,
    TokenizedTexts,
    group_by_length,
    iter_batches_by_length,
    tokenize_texts,
)
from tests.backbone_families import create_byte_level_tokenizer
from tests.tiny_models import save_tiny_encoder

TOKENS = TokenizedTexts.from_lists([[5, 6, 7], [8], [9, 4]], [[0, 0, 1], [0], [0, 1]])


@pytest.mark.parametrize(
    ("rows", "left", "ids", "mask", "types"),
    [
        ([0, 1], False, [[5, 6, 7], [8, 1, 1]], [[1, 1, 1], [1, 0, 0]], [[0, 0, 1], [0, 0, 0]]),
        ([2, 0], True, [[1, 9, 4], [5, 6, 7]], [[0, 1, 1], [1, 1, 1]], [[0, 0, 1], [0, 0, 1]]),
    ],
)
def test_pad_fills_on_the_right_or_left(rows, left, ids, mask, types):
    batch = TOKENS.pad(rows, pad=1, left=left)
    assert [batch[name].tolist() for name in ("input_ids", "attention_mask", "token_type_ids")] == [ids, mask, types]


@given(lengths=st.lists(st.integers(0, 300), max_size=60), budget=st.integers(1, 2000), most=st.integers(1, 10))
def test_batches_hold_every_row_once_and_keep_the_budget(lengths: list[int], budget: int, most: int):
    batches = list(iter_batches_by_length(np.array(lengths, dtype=np.int64), budget=budget, max_texts=most))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= most
        assert len(batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= budget
    longest = [max(lengths[row] for row in batch) for batch in batches]
    assert longest == sorted(longest, reverse=True)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    return load_encoder(save_tiny_encoder(tmp_path_factory.mktemp("model"))).tokenizer


def pieces(tokenizer, items: list, **changes: object) -> list[str]:
    settings = {"prompt": "", "max_length": 64, "title": "join", "with_types": True}
    tokens = TextTokenizer(tokenizer, **settings | changes)(items)
    ids = [tokens.ids[start : start + length] for start, length in zip(tokens.starts, tokens.lengths, strict=True)]
    return [" ".join(tokenizer.convert_ids_to_tokens(row.tolist())) for row in ids]


PASSAGE = Passage("d1", "rivers riverer", "riverish")


def test_titles_are_joined_separated_paired_or_dropped(tokenizer):
    title, text = (pieces(tokenizer, [part])[0].split()[1:-1] for part in ("riverish", "rivers riverer"))
    for mode, separators, types in (("join", [], {0}), ("sep", ["[SEP]"], {0}), ("segment", ["[SEP]"], {0, 1})):
        [actual] = pieces(tokenizer, [PASSAGE], title=mode)
        assert actual.split() == ["[CLS]", *title, *separators, *text, "[SEP]"]
        tokens = TextTokenizer(tokenizer, prompt="", max_length=64, title=mode, with_types=True)([PASSAGE])
        assert tokens.types is not None
        assert set(tokens.types.tolist()) == types
        for blank in ("", " \t"):
            assert pieces(tokenizer, [Passage("c", "rivers", blank)], title=mode) == pieces(tokenizer, ["rivers"])
    assert pieces(tokenizer, [PASSAGE], title="none") == pieces(tokenizer, ["rivers riverer"])
    assert pieces(tokenizer, [Passage("c", "", "riverish")], title="sep") == pieces(tokenizer, ["riverish"])


def test_pairs_and_single_texts_keep_their_order(tokenizer):
    items = [Passage("a", "rivers"), PASSAGE, Passage("b", "rivered"), Passage("c", "", "riverish")]
    together = pieces(tokenizer, items, title="segment")
    assert together == [pieces(tokenizer, [item], title="segment")[0] for item in items]


def test_no_texts_give_an_empty_batch(tokenizer):
    nothing = TextTokenizer(tokenizer, prompt="", max_length=7, title="join", with_types=True)([])
    assert nothing.pad([], pad=0)["input_ids"].shape == (0, 0)


def test_prompts_come_first_and_queries_have_no_title(tokenizer):
    assert pieces(tokenizer, [Query("q", "rivers")], prompt="riverish ") == pieces(tokenizer, ["riverish rivers"])
    assert pieces(tokenizer, [PASSAGE], prompt="x ") == pieces(tokenizer, ["x riverish rivers riverer"])


class OwnTokenizer(PreTrainedTokenizerFast):
    """A tokenizer that changes the result of its backend, as those of some model families do."""

    def _encode_plus(self, *args: object, **options: object) -> BatchEncoding:
        encoded = super()._encode_plus(*args, **options)
        return BatchEncoding({name: [row[::-1] for row in rows] for name, rows in encoded.items()})


@pytest.mark.parametrize("kind", ["bert", "byte-level", "own"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_tokens_equal_those_of_transformers(kind: str, side: str, tokenizer):
    chosen = tokenizer if kind == "bert" else create_byte_level_tokenizer()
    chosen = OwnTokenizer(tokenizer_object=chosen.backend_tokenizer) if kind == "own" else copy.deepcopy(chosen)
    chosen.truncation_side = side
    texts, others = ["rivers riverer " * 9, "", "a [SEP] river"], ["riverish", "rivers " * 30, ""]
    for max_length, pairs in product((8, 500), (None, others)):
        given = {"text_pair": pairs, "max_length": max_length, "return_token_type_ids": True}
        expected = chosen(texts, truncation="longest_first", **given)
        if kind != "own":
            chosen(texts, padding=True, truncation=True, max_length=3)  # leaves its settings behind
        tokens = tokenize_texts(chosen, texts, pairs, max_length=max_length, with_types=True)
        ends = np.cumsum(tokens.lengths)[:-1]
        assert [row.tolist() for row in np.split(tokens.ids, ends)] == expected["input_ids"]
        assert [row.tolist() for row in np.split(tokens.types, ends)] == expected["token_type_ids"]


def create_pair_tokenizer(kind: str, bert: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    if kind == "own":
        return OwnTokenizer(tokenizer_object=create_byte_level_tokenizer().backend_tokenizer, pad_token="<pad>")
    if kind == "bert":
        return copy.deepcopy(bert)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if kind == "deberta":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "roberta":
        tokens = {token: id for id, token in enumerate([*special, *sorted(ByteLevel.alphabet()), "ri"])}
        return RobertaTokenizer(vocab=tokens, merges=[("r", "i")])
    words = ["rivers", "river", "er", "s", "a", "\u2581", "\u2581rivers", "\u2581river"]
    make = DebertaV2Tokenizer if kind == "deberta" else XLMRobertaTokenizer
    return make(vocab=[(word, -float(rank)) for rank, word in enumerate([*special, *words])])


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "deberta", "own"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_joined_pairs_equal_pairs_that_are_tokenized_as_text(kind: str, side: str, tokenizer):
    chosen = create_pair_tokenizer(kind, tokenizer)
    chosen.truncation_side = side
    texts = ["", "rivers", "a [SEP] </s> river", *("river rivers " * length for length in (2, 4, 9))]
    pairs = [*product(texts, texts)]
    for max_length in (6, 7, 8, 500):
        tokenize = PairTokenizer(chosen, max_length=max_length)
        assert (tokenize._template is None) == (kind == "own")
        actual = tokenize(pairs)
        first, second = map(list, zip(*pairs, strict=True))
        expected = tokenize_texts(chosen, first, second, max_length=max_length, with_types=tokenize.with_types)
        for name in ("ids", "types", "lengths", "starts", "num_truncated"):
            np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))


def test_a_text_is_tokenized_once_while_it_is_in_the_cache(tokenizer, monkeypatch: pytest.MonkeyPatch):
    encoded: list[str] = []
    encode = batching.encode_without_special_tokens
    monkeypatch.setattr(
        batching, "encode_without_special_tokens", lambda own, texts: encoded.extend(texts) or encode(own, texts)
    )
    monkeypatch.setattr(batching, "CACHE_SIZE", 3)
    tokenize = PairTokenizer(tokenizer, max_length=64, prompt="rivers ")
    encoded.clear()  # of the template
    expected = tokenize([("river", "a"), ("river", "b")]).ids.tolist()
    assert encoded == ["rivers river", "a", "b"]
    assert tokenize([("river", "a"), ("river", "b")]).ids.tolist() == expected
    assert len(encoded) == 3
    tokenize([("river", "c")])  # drops the oldest text
    assert tokenize([("river", "a"), ("river", "b")]).ids.tolist() == expected
    assert encoded[3:] == ["c", "rivers river"]


@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8), overhead=st.integers(0, 20))
def test_group_by_length_has_the_least_cost(lengths: list[int], overhead: int):
    def cost(groups: list[list[int]]) -> int:
        return sum(max(group) * len(group) + overhead for group in groups)

    assert group_by_length(np.array([], dtype=np.int64), overhead=overhead) == []
    actual = group_by_length(np.array(lengths), overhead=overhead)
    assert sorted(np.concatenate(actual).tolist()) == list(range(len(lengths)))
    ordered = sorted(lengths, reverse=True)
    ways = []
    for mask in range(1 << (len(lengths) - 1)):  # every way to cut the sorted list
        cuts = [0, *(at + 1 for at in range(len(lengths) - 1) if mask >> at & 1), len(lengths)]
        ways.append(cost([ordered[a:b] for a, b in pairwise(cuts)]))
    assert cost([[lengths[row] for row in rows] for rows in actual]) == min(ways)


def test_truncated_texts_are_counted(tokenizer):
    def count(items: list, **changes: object) -> int:
        settings = {"prompt": "", "max_length": 5, "title": "segment", "with_types": True}
        return TextTokenizer(tokenizer, **settings | changes)(items).num_truncated

    exact = "rivers " * 3  # with two special tokens
    assert len(pieces(tokenizer, [exact])[0].split()) == 5
    passages = [Passage("d", "rivers " * length, "rivers") for length in (1, 9)]
    assert count([exact, exact + "rivers", *passages]) == 2
    assert count([exact], prompt="rivers ") == 1
    assert tokenize_texts(tokenizer, [exact, exact + "rivers"], max_length=5, are_targets=True).num_truncated == 1
