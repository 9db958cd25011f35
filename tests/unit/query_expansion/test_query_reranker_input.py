"""Inputs of query rerankers: separators, token types, and agreement with sentence-transformers."""

import random
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from drtk.query_expansion.query_reranker_input import CandidateTexts, CandidateTokenizer, InputFormat
from tests.reference import queries as slow
from tests.tiny_models import TOPICS, make_topic_words, save_tiny_cross_encoder

CANDIDATE = CandidateTexts("which rivers?", " engines  gardens ", "violins", "planets castles winters")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return AutoTokenizer.from_pretrained(save_tiny_cross_encoder(tmp_path_factory.mktemp("model")))


def test_parts_are_separated_by_special_tokens(tokenizer):
    passage = "violins [SEP] planets castles winters [SEP]"
    for variant, style, wanted in (
        ("ri", "official", "[CLS] which rivers? [SEP] engines gardens [SEP]"),
        ("rd", "official", f"[CLS] which rivers? [SEP] engines gardens [SEP] {passage}"),
        ("ri", "thesis", "[CLS] which rivers? engines gardens [SEP]"),
        ("rd", "thesis", f"[CLS] which rivers? engines gardens [SEP] {passage.replace('[SEP] ', '', 1)}"),
    ):
        tokens = CandidateTokenizer(tokenizer, InputFormat(variant, style, 64))([CANDIDATE])
        assert tokens.types is not None
        text = tokenizer.decode(tokens.ids.tolist())
        assert text.replace(" [UNK]", "?") == wanted  # the tiny vocabulary has no question mark
        first = len(tokenizer(wanted.split(" [SEP]")[0] + " [SEP]", add_special_tokens=False)["input_ids"])
        assert tokens.types.tolist() == [0] * first + [1] * (len(tokens.ids) - first)


def test_equal_texts_of_many_candidates_are_the_same_tokens(tokenizer):
    reading = CandidateTokenizer(tokenizer, InputFormat("ri", "official", 32))
    pairs = (("which rivers?", "gardens"), ("which rivers?", ""), ("", "gardens"))
    tokens = reading([CandidateTexts(*pair) for pair in pairs])
    alone = reading([CandidateTexts("which rivers?", "gardens")])
    assert tokens.ids[: tokens.lengths[0]].tolist() == alone.ids.tolist()
    assert len(tokens) == 3
    assert len(reading([])) == 0


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_two_parts_are_the_pair_that_the_tokenizer_makes(family, tmp_path, tokenizer):
    if family == "roberta":
        from tokenizers import ByteLevelBPETokenizer
        from transformers import RobertaTokenizerFast

        trained = ByteLevelBPETokenizer()
        special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained.train_from_iterator(["which rivers engines gardens"] * 5, 300, special_tokens=special)
        trained.save_model(str(tmp_path))
        tokenizer = RobertaTokenizerFast.from_pretrained(tmp_path)
    candidate = CandidateTexts("which rivers?", "gardens")
    official = CandidateTokenizer(tokenizer, InputFormat("ri", "official", 32))([candidate])
    pair = tokenizer("which rivers?", "gardens")
    assert official.ids.tolist() == pair["input_ids"]
    if official.types is not None:
        assert official.types.tolist() == pair["token_type_ids"]
    thesis = CandidateTokenizer(tokenizer, InputFormat("ri", "thesis", 32))([candidate])
    assert thesis.ids.tolist() == tokenizer("which rivers ? gardens")["input_ids"]


def test_the_passage_of_rd_is_what_a_cross_encoder_reads_as_its_second_text(tokenizer, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from drtk.models.cross_encoder import load_cross_encoder, save_cross_encoder
    from drtk.query_expansion.query_reranker_input import INPUT_ENTRY
    from drtk.query_expansion.rerank import RankEstimator
    from drtk.runtime.atomic import write_json

    loaded = load_cross_encoder(save_tiny_cross_encoder(tmp_path / "plain"))
    for style, second in (("official", "engines gardens [SEP] violins [SEP] planets"), ("thesis", "violins planets")):
        folder = tmp_path / style
        save_cross_encoder(loaded, folder)
        stated = InputFormat("rd", style, 64).to_dict()
        manifest = {"command": "drtk rerank-queries train", "settings": {}, "inputs": [], INPUT_ENTRY: stated}
        write_json(folder / "meta.json", manifest)
        candidate = CandidateTexts("which rivers?", "engines gardens", "violins", "planets")
        mine = RankEstimator(str(folder), device="cpu")([candidate])
        first = "which rivers?" if style == "official" else "which rivers ? engines gardens"
        theirs = library.CrossEncoder(str(folder), device="cpu").predict([(first, second)])
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def sample_text(draw: random.Random, longest: int) -> str:
    return " ".join(draw.choice(make_topic_words(draw.choice(TOPICS))) for _ in range(draw.randint(0, longest)))


@pytest.mark.parametrize("style", ["official", "thesis"])
@pytest.mark.parametrize("variant", ["ri", "rd"])
def test_inputs_and_truncation_equal_those_of_the_reference(tokenizer, variant, style):
    draw = random.Random(3)
    for _ in range(60):
        candidate = CandidateTexts(*(sample_text(draw, longest) for longest in (9, 9, 3, 30)))
        longest = draw.choice([8, 12, 20, 64])
        parts = [candidate.question, candidate.text]
        if style == "thesis":
            parts = [slow.expand(candidate.question, candidate.text)]
        if variant == "rd":
            passage = [candidate.title, candidate.passage]
            parts += passage if style == "official" else [" ".join(passage)]
        pieces = [tokenizer(part, add_special_tokens=False)["input_ids"] for part in parts]
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
        actual = CandidateTokenizer(tokenizer, InputFormat(variant, style, longest))([candidate]).ids.tolist()
        assert actual == slow.scorer_input(pieces, first=first, last=last, longest=longest)
