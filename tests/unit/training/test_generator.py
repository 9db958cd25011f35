"""Generator training: loss, training pairs, held-out pairs, and selected weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from drtk.errors import DrtkError
from drtk.losses.language import IGNORE_INDEX
from drtk.models.generator_input import GeneratorInputFormat, load_input_format
from drtk.models.seq2seq import load_generation_model
from drtk.records import Example, Passage
from drtk.training.examples import PackedExamples
from drtk.training.generator import GenerationEvaluator, collate, compute_generator_terms
from drtk.training.text_pairs import ExamplePairs, PassageQueryPairs, TextPair, sample_pairs, split_held_out

TEXTS = [
    TextPair("rivers riverer rivered", "rivers"),
    TextPair("engines", "engineer engined engineish"),
    TextPair("sailors", ""),
]


class Corpus:
    """Corpus in memory, by id."""

    def __init__(self, *passages: Passage) -> None:
        self.passages = {passage.id: passage for passage in passages}

    def get_many(self, ids: list[str]) -> list[Passage]:
        return [self.passages[id] for id in ids]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_generator_loss_is_the_mean_over_tokens_without_padding(models: Path, smoothing: float):
    writer = load_generation_model(models / "t5")
    batch = collate(TEXTS, generator=writer, max_length=20, target_length=8)
    lengths = [len(writer.tokenizer(pair.target)["input_ids"]) for pair in TEXTS]
    # the end token is a target, padding is none
    assert (batch["labels"] != IGNORE_INDEX).sum(dim=1).tolist() == lengths
    assert len(set(lengths)) == 3
    (loss,) = compute_generator_terms(writer.model, batch, smoothing=smoothing).values()
    # transformers' own shift of labels into decoder inputs
    theirs = writer.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"])
    smoothed = torch.nn.functional.cross_entropy(
        theirs.logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=smoothing
    )
    assert loss.item() == pytest.approx(smoothed.item(), rel=1e-5)
    # the same pairs one by one, without any padding: the mean over tokens, not over pairs
    singles = [collate([pair], generator=writer, max_length=20, target_length=8) for pair in TEXTS]
    terms = [compute_generator_terms(writer.model, each, smoothing=smoothing) for each in singles]
    losses = [each["cross_entropy"].item() for each in terms]
    assert loss.item() == pytest.approx(np.average(losses, weights=lengths), rel=1e-5)
    assert abs(loss.item() - np.mean(losses)) > 1e-4
    long = TextPair("rivers " * 30, "engines " * 30)
    batch = collate([long], generator=writer, max_length=12, target_length=5)
    assert (batch["input_ids"].shape, batch["labels"].shape) == ((1, 12), (1, 5))
    assert batch["labels"][0, -1] == writer.tokenizer.eos_token_id


def test_evaluation_computes_the_loss_over_all_tokens_and_generates_texts(models: Path):
    writer = load_generation_model(models / "t5")
    writer.model.train()
    seen: list[tuple[list[str], list[str]]] = []

    def score(written: list[str], wanted: list[str]) -> dict[str, float]:
        seen.append((list(written), list(wanted)))
        return {"rougeL": 0.25}

    def collate_pairs(pairs: list[TextPair]) -> dict[str, torch.Tensor]:
        return collate(pairs, generator=writer, max_length=20, target_length=8)

    pairs = [*TEXTS, TextPair(TEXTS[0].source, "rivered")]  # a source with two targets is written for once
    actual = GenerationEvaluator(writer, pairs, collate=collate_pairs, score=score, batch_size=2, max_new_tokens=4)()
    assert writer.model.training
    writer.model.eval()
    batch = collate_pairs(pairs)
    whole = compute_generator_terms(writer.model, batch, smoothing=0.0)["cross_entropy"].item()
    assert actual == {"dev_loss": pytest.approx(whole, rel=1e-5), "rougeL": 0.25}
    ((written, wanted),) = seen
    assert wanted == [pair.target for pair in pairs]
    begun = writer.model.generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=4, do_sample=False
    )
    texts = [" ".join(text.split()) for text in writer.tokenizer.batch_decode(begun, skip_special_tokens=True)]
    assert written == texts
    assert written[0] == written[3]


def test_every_positive_is_a_pair_with_prefix_and_title_and_empty_queries_are_none():
    examples = [Example("q1", ("d1", "d2"), ()), Example("q2", ("d2",), ()), Example("q3", ("d1",), ())]
    queries = {"q1": "what is a wing", "q2": "lift", "q3": " "}
    corpus = Corpus(Passage("d1", "text one", "Wing"), Passage("d2", "text two"))
    asked = GeneratorInputFormat(prefix="ask:").format
    pairs = ExamplePairs(PackedExamples(examples), queries=queries, corpus=corpus, format_source=asked)
    assert [pairs[number] for number in range(len(pairs))] == [
        TextPair("ask: Wing text one", "what is a wing"),
        TextPair("ask: text two", "what is a wing"),
        TextPair("ask: text two", "lift"),
    ]
    assert [pairs.get_group_key(number) for number in range(3)] == ["d1", "d2", "d2"]


def test_each_query_of_a_passage_is_a_training_pair():
    first = Passage("d1", "one", "Wing", extra={"queries": ["a", "", "b"]})
    third = Passage("d3", "three", extra={"queries": ["c"]})
    passages = [first, Passage("d2", "two"), third]
    untitled = GeneratorInputFormat(title="none").format
    pairs = PassageQueryPairs(passages, corpus=Corpus(*passages), format_source=untitled)
    expected = [TextPair("one", "a"), TextPair("one", "b"), TextPair("three", "c")]
    assert [pairs[number] for number in range(len(pairs))] == expected
    wrong = [Passage("d4", "", extra={"queries": [1]})]
    with pytest.raises(ValueError, match="'queries' must be a list of strings"):
        PassageQueryPairs(wrong, corpus=Corpus(), format_source=untitled)


def make_passage_pairs(count: int) -> PassageQueryPairs:
    passages = [Passage(f"d{at}", "x", extra={"queries": [f"{at}.0", f"{at}.1"]}) for at in range(count)]
    return PassageQueryPairs(passages, corpus=Corpus(*passages), format_source=GeneratorInputFormat().format)


def held_out_keys(pairs: PassageQueryPairs, share: float) -> set[str]:
    side = split_held_out(pairs, share)[1]
    return {side.get_group_key(number) for number in range(len(side))}


def test_held_out_passages_depend_only_on_their_id():
    pairs = make_passage_pairs(1000)
    train, dev = split_held_out(pairs, 0.1)
    sides = [{side.get_group_key(number) for number in range(len(side))} for side in (train, dev)]
    assert not sides[0] & sides[1]
    assert len(train) + len(dev) == 2000
    assert 70 <= len(sides[1]) <= 130  # 1000 * .1 = 100, standard deviation sqrt(1000 * .1 * .9) = 9.5
    assert {key for key in sides[1] if int(key[1:]) < 300} == held_out_keys(make_passage_pairs(300), 0.1)
    assert sides[1] < held_out_keys(pairs, 0.3)


def test_the_evaluation_sample_is_deterministic_and_in_order():
    pairs = make_passage_pairs(100)
    some = sample_pairs(pairs, 20)
    assert len(some) == 20
    assert some == sample_pairs(pairs, 20)
    places = [[int(part) for part in pair.target.split(".")] for pair in some]
    assert places == sorted(places)
    assert places[-1][0] > 50
    assert {pair.target for pair in some} < {pair.target for pair in sample_pairs(pairs, 40)}
    assert len(sample_pairs(pairs, 1000)) == 200


def test_a_model_records_its_input_format(tmp_path: Path):
    assert load_input_format(tmp_path, {"prefix": "a"}, strict=True) == GeneratorInputFormat(prefix="a")
    stated = {"prefix": "ask:", "title": "none", "max_length": 99, "of a later version": 1}
    manifest = {"command": "drtk x", "settings": {}, "inputs": [], "writing": stated}
    (tmp_path / "meta.json").write_text(json.dumps(manifest))
    wishes = {"prefix": None, "title": "none", "max_length": 30}
    assert load_input_format(tmp_path, wishes, strict=True) == GeneratorInputFormat("ask:", "none", 30)
    with pytest.raises(DrtkError, match="was trained with `prefix` 'ask:', not ''"):
        load_input_format(tmp_path, {"prefix": ""}, strict=True)
    assert load_input_format(tmp_path, {"prefix": ""}, strict=False) == GeneratorInputFormat("", "none", 99)
