"""Training steps of DeepCT and DeepImpact (docs/methods/term-weights.md)."""

import json
import shutil
from itertools import permutations
from pathlib import Path

import pytest
import torch

from drtk.expansion.config import WeightingSettings
from drtk.expansion.term_weights.train import (
    PassageQuestions,
    PassageQuestionsDataset,
    collate_pairs,
    collate_recall,
    compute_deepct_loss,
    compute_deepimpact_loss,
    compute_term_recall,
    find_largest_impact,
)
from drtk.models import packing
from drtk.models.term_weighter import TermWeightModel, TermWeightPredictor, init_term_weight_model
from drtk.records import Example, Passage
from drtk.text.word_pieces import WordPieceTokenizer
from drtk.text.words import make_stemmer
from drtk.training.dataset import SampledExample
from drtk.training.examples import PackedExamples
from drtk.training.sampling import EpochDataset
from tests.packed_attention import allow_packing_on_a_cpu
from tests.tiny_models import save_tiny_encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture(scope="module")
def weigher(model: Path) -> TermWeightModel:
    return init_term_weight_model(model, "deepct", seed=1)


class Corpus:
    def __init__(self, *passages: Passage) -> None:
        self._passages = {passage.id: passage for passage in passages}

    def get_many(self, ids: list[str]) -> list[Passage]:
        return [self._passages[id] for id in ids]


def test_recall_is_the_share_of_queries_with_the_words_stem():
    # flying -> fli, flies -> fli: in 2 of 3 queries; bird in 1; the and of are function words on both sides
    queries = ["Which bird flies?", "the flying of what", "of the"]
    words = ["the", "flies", "of", "birds", "sea", "flies"]
    stem = make_stemmer("porter")
    assert compute_term_recall(words, queries, stem=stem) == pytest.approx([0, 2 / 3, 0, 1 / 3, 0, 2 / 3])
    assert compute_term_recall(["wing", "sea"], ["a wing, a wing"], stem=stem) == [1.0, 0.0]


def test_targets_are_at_first_pieces_within_the_maximum_length(weigher, model):
    tokenizer = WordPieceTokenizer(str(model))
    passage = Passage("p", "riverengines rivers engines", "rivers")
    (pieces,) = tokenizer([passage.text])
    width = 1 + len(pieces.ids)  # of title and text
    items = [PassageQuestions(passage, ["rivers riverengines"])]
    batch = collate_recall(items, weigher=weigher, tokenizer=tokenizer, room=width - 1, title="join")
    # [CLS] rivers riverengines (several pieces) rivers [SEP]: engines is cut off
    assert batch["input_ids"].shape == (1, width + 1)
    first = [0, 1, 1, *[0] * (pieces.words.count(0) - 1), 1, 0]
    assert batch["first"][0].tolist() == first
    assert batch["recall"][0].tolist() == first  # all three words are asked for


def test_each_epoch_has_every_passage_once_with_all_its_queries(model):
    examples = [Example("q1", ("p1",), ()), Example("q2", ("p2", "p1"), ()), Example("q3", ("p3",), ())]
    corpus = Corpus(*(Passage(f"p{n}", f"text {n}") for n in (1, 2, 3)))
    texts = {f"q{n}": f"query {n}" for n in (1, 2, 3)}
    passages = PassageQuestionsDataset(PackedExamples(examples), queries=texts, corpus=corpus)
    data = EpochDataset(passages, batch=3, steps=2, seed=5)
    epochs = [[data[3 * epoch + at] for at in range(3)] for epoch in (0, 1)]
    for epoch in epochs:
        asked = {item.passage.id: item.queries for item in epoch}
        assert asked == {"p1": ["query 1", "query 2"], "p2": ["query 2"], "p3": ["query 3"]}
    assert len(data) == 6
    assert data[4] == epochs[1][1]  # a function of the place alone


def test_question_words_are_marked_at_their_first_occurrence(weigher, model):
    tokenizer = WordPieceTokenizer(str(model))
    passages = [Passage("p", "engines rivers rivers"), Passage("n", "rivers", extra={"queries": ["violins"]})]
    drawn = [SampledExample("the Rivers of violins, rivers", [0, 1], passages)]
    batch = collate_pairs(drawn, weigher=weigher, tokenizer=tokenizer, room=60, title="join", expand=("queries",))
    first_row = [0.0] * batch["in_question"].shape[1]
    first_row[1 + len(tokenizer(["engines"])[0].ids)] = 1
    second_row = [0.0] * batch["in_question"].shape[1]
    second_row[1] = second_row[1 + len(tokenizer(["rivers"])[0].ids)] = 1
    assert batch["in_question"].tolist() == [first_row, second_row]


def test_a_model_that_was_trained_on_short_texts_can_be_trained_on_longer_ones(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "short")
    path = tmp_path / "short" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 16}))
    positions = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    state = torch.get_rng_state()
    assert init_term_weight_model(tmp_path / "short", "deepct", seed=1).max_length == positions > 16
    assert torch.equal(torch.get_rng_state(), state)  # the head's seed is local


def test_the_largest_impact_is_that_of_all_passages(model):
    weigher = init_term_weight_model(model, "deepimpact", seed=1)
    passages = [Passage(f"p{number}", text) for number, text in enumerate(["rivers engines", "violins", "castles"])]

    def largest(ids: tuple[str, ...]) -> float:
        inputs = WordPieceTokenizer(str(model)), PackedExamples([Example("q", ids, ())]), Corpus(*passages)
        return find_largest_impact(weigher, *inputs, settings=WeightingSettings(), length=60, device="cpu")

    single = [largest((passage.id,)) for passage in passages]
    for ids in permutations(["p0", "p1", "p2"]):
        assert largest(ids) == pytest.approx(max(single), rel=1e-5)


def test_weights_without_padding_are_equal(model, monkeypatch):
    texts = [[5, 6, 7, 8], [9], [10, 11]]
    expected = TermWeightPredictor(init_term_weight_model(model, "deepct", seed=1), device="cpu")(texts)
    allow_packing_on_a_cpu(monkeypatch)
    weighter = init_term_weight_model(model, "deepct", seed=1)
    packed = TermWeightPredictor(weighter, device="cpu")
    assert packing.is_packed(weighter.module.backbone)
    for one, other in zip(packed(texts), expected, strict=True):
        assert one.tolist() == pytest.approx(other.tolist(), abs=1e-5)


def test_objectives_have_hand_computed_losses():
    class Given(torch.nn.Module):
        def forward(self, weights: torch.Tensor) -> torch.Tensor:
            return weights

    weights = torch.tensor([[1.0, 2.0, 5.0], [2.0, 0.0, 9.0]])
    asked = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])  # scores 3 and 2: log(1 + e^-1) = .313262
    actual = compute_deepimpact_loss(Given(), {"weights": weights, "in_question": asked})
    assert actual["pairs"].item() == pytest.approx(0.313262, abs=2e-6)
    actual = compute_deepct_loss(Given(), {"weights": weights, "recall": torch.ones(2, 3), "first": asked})
    assert actual["recall"].item() == pytest.approx((0 + 1 + 1) / 3)
