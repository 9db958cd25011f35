"""What query rerankers read: four encodings, what is cut, and that sentence-transformers reads the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from drtk.query_expansion.query_reranker_input import CandidateTexts, CandidateTokenizer, InputFormat
from tests.tiny_models import save_tiny_cross_encoder

WHOLE = CandidateTexts("which rivers?", " engines  gardens ", "violins", "planets castles winters")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    return AutoTokenizer.from_pretrained(save_tiny_cross_encoder(tmp_path_factory.mktemp("model")))


def read(tokenizer: object, candidate: CandidateTexts, **reading: object) -> tuple[str, list[int]]:
    """The tokens of a candidate as text, special ones among them, and their segments."""
    tokens = CandidateTokenizer(tokenizer, InputFormat(**reading))([candidate])  # type: ignore[arg-type]
    assert tokens.types is not None
    return tokenizer.decode(tokens.ids.tolist()), tokens.types.tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("scorer", "style", "wanted"),
    [
        ("ri", "official", "[CLS] which rivers? [SEP] engines gardens [SEP]"),
        (
            "rd",
            "official",
            "[CLS] which rivers? [SEP] engines gardens [SEP] violins [SEP] planets castles winters [SEP]",
        ),
        ("ri", "thesis", "[CLS] which rivers? engines gardens [SEP]"),
        ("rd", "thesis", "[CLS] which rivers? engines gardens [SEP] violins planets castles winters [SEP]"),
    ],
)
def test_parts_are_separated_by_special_tokens(tokenizer: object, scorer: str, style: str, wanted: str) -> None:
    found, types = read(tokenizer, WHOLE, scorer=scorer, style=style, max_length=64)
    assert found.replace(" [UNK]", "?") == wanted  # the tiny vocabulary has no question mark
    first = len(types) - sum(types)
    head = wanted.split(" [SEP]")[0] + " [SEP]"
    ids = tokenizer(head, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
    assert types == [0] * first + [1] * (len(types) - first)
    assert first == len(ids)


def test_the_last_parts_are_cut_first(tokenizer: object) -> None:
    whole = CandidateTokenizer(tokenizer, InputFormat("rd", "official", 64))
    sizes = [
        len(tokenizer(part, add_special_tokens=False)["input_ids"])
        for part in whole.input_format.split_into_parts(WHOLE)
    ]  # type: ignore[operator]
    total = sum(sizes) + 5  # [CLS] and four [SEP]
    parts = whole([WHOLE]).ids.tolist()
    assert len(parts) == total
    sep = parts[-1]
    for length in range(sizes[0] + 6, total):
        ids = CandidateTokenizer(tokenizer, InputFormat("rd", "official", length))([WHOLE]).ids.tolist()
        assert len(ids) == length
        assert ids.count(sep) == 4
        left = length - 5
        kept = []
        for size in sizes:  # each part gets what those before it leave
            kept.append(min(size, left))
            left -= kept[-1]
        ends = [at for at, id in enumerate(ids) if id == sep]
        starts = [1, *(end + 1 for end in ends[:-1])]
        assert [end - start for start, end in zip(starts, ends, strict=True)] == kept


def test_equal_texts_of_many_candidates_are_the_same_tokens(tokenizer: object) -> None:
    reading = CandidateTokenizer(tokenizer, InputFormat("ri", "official", 32))
    tokens = reading(
        [CandidateTexts("which rivers?", "gardens"), CandidateTexts("which rivers?", ""), CandidateTexts("", "gardens")]
    )
    alone = reading([CandidateTexts("which rivers?", "gardens")])
    assert tokens.ids[: tokens.lengths[0]].tolist() == alone.ids.tolist()
    assert len(tokens) == 3
    assert len(reading([])) == 0


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_two_parts_are_the_pair_that_the_tokenizer_makes(family: str, tmp_path: Path, tokenizer: object) -> None:
    if family == "roberta":
        from tokenizers import ByteLevelBPETokenizer
        from transformers import RobertaTokenizerFast

        trained = ByteLevelBPETokenizer()
        trained.train_from_iterator(
            ["which rivers engines gardens"] * 5, 300, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        )
        trained.save_model(str(tmp_path))
        tokenizer = RobertaTokenizerFast.from_pretrained(tmp_path)
    found = CandidateTokenizer(tokenizer, InputFormat("ri", "official", 32))(
        [CandidateTexts("which rivers?", "gardens")]
    )
    pair = tokenizer("which rivers?", "gardens")  # type: ignore[operator]
    assert found.ids.tolist() == pair["input_ids"]
    if found.types is not None:
        assert found.types.tolist() == pair["token_type_ids"]
    thesis = CandidateTokenizer(tokenizer, InputFormat("ri", "thesis", 32))(
        [CandidateTexts("which rivers?", "gardens")]
    )
    assert thesis.ids.tolist() == tokenizer("which rivers ? gardens")["input_ids"]  # type: ignore[operator]


def test_the_passage_of_rd_is_what_a_cross_encoder_reads_as_its_second_text(tokenizer: object, tmp_path: Path) -> None:
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
        mine = RankEstimator(str(folder), device="cpu")(
            [CandidateTexts("which rivers?", "engines gardens", "violins", "planets")]
        )
        first = "which rivers?" if style == "official" else "which rivers ? engines gardens"
        theirs = library.CrossEncoder(str(folder), device="cpu").predict([(first, second)])
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
