"""Examples: dependence of masks and views on seed, epoch and id."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from drtk.config import load_preset
from drtk.errors import MismatchError, UsageError
from drtk.pretraining.example_builder import ExampleBuilder, SpecialTokens, list_corpus_fields
from drtk.pretraining.masking import compute_mask_budget
from drtk.pretraining.parse import apply_changes, parse_composition
from drtk.text.token_dataset import TokenCorpus
from drtk.text.tokenizers import load_tokenizer
from tests.enriched_corpus import write_enriched_corpus
from tests.tiny_models import save_tiny_encoder

EDITS = [
    f"slots.{name}.{change}" for name in ("changed_one", "changed_two") for change in ("corruption=any", "rate=0.3")
]


class Shelf:
    def __init__(self, folder: Path) -> None:
        self.model = str(save_tiny_encoder(folder / "model"))
        self.corpus_file = str(write_enriched_corpus(folder / "corpus.jsonl", Path(self.model)))
        self.tokenizer = load_tokenizer(self.model)

    def __call__(self, preset: str, *changes: str, seed: int = 1, max_length: int = 32) -> Any:
        plan = parse_composition(apply_changes(load_preset(preset).content, changes), preset)
        corpus = TokenCorpus.open(self.corpus_file, self.model, fields=list_corpus_fields(plan))
        special = SpecialTokens.from_tokenizer(self.tokenizer)
        return ExampleBuilder(plan, corpus, special, max_length=max_length, seed=seed)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


def test_corruption_any_samples_three_edits_uniformly(shelf: Shelf) -> None:
    build = shelf("diffcse-sts-bert", *EDITS)
    counts: Counter[str] = Counter()
    for epoch in range(10):
        for row in range(36):
            slots = build(row, epoch=epoch, step=0)
            edited, original = slots["changed_one"], slots["one"]
            added = len(edited.input_ids) - len(original.input_ids)
            counts["replaced" if edited.edited is None else "inserted" if added > 0 else "deleted"] += 1
    assert len(counts) == 3
    # 360 draws: 120 each, a standard deviation of sqrt(360 x 1/3 x 2/3) = 8.9; five of them are 45.
    assert all(75 < count < 165 for count in counts.values()), counts


def test_insertions_fit_into_the_maximum_length(shelf: Shelf) -> None:
    build = shelf("diffcse-sts-bert", *EDITS, max_length=12)
    lengths = [len(build(row, epoch=0, step=0)["changed_one"].input_ids) for row in range(36)]
    assert max(lengths) == 11  # 7 tokens, 2 insertions, 2 special tokens


def test_views_sampled_per_step_are_equal_within_a_step(shelf: Shelf) -> None:
    build = shelf("qac-cotmae-mixed")
    kinds = {}
    for step in range(40):
        lengths = [len(build(row, epoch=0, step=step)["context"].input_ids) for row in range(0, 9, 3)]
        kinds[step] = max(lengths) > 5  # a query is of 3 words, a passage of 6 or more
    assert set(kinds.values()) == {True, False}


def test_passage_without_next_passage_gets_a_placeholder(shelf: Shelf) -> None:
    actual = shelf("master")(2, epoch=0, step=0)["next"]  # the third of three passages of its document
    assert not actual.present
    assert (len(actual.input_ids), int(actual.content.sum()), int(actual.masked.sum())) == (2, 0, 0)


def test_errors_of_views_and_weights_name_the_slot(shelf: Shelf) -> None:
    with pytest.raises(UsageError, match=r"\[slots.context\]: there is no view 'pair'; choose from pair.a, pair.b"):
        shelf("cotmae", "slots.context.view=pair")(0, epoch=0, step=0)
    with pytest.raises(MismatchError, match=r"\[slots.context\]: passage 'd0#0': masking 'rom' requires token weights"):
        shelf("qac-cotmae", "slots.context.masking=rom")(0, epoch=0, step=0)


def test_count_with_specials_includes_special_tokens_in_the_rate(shelf: Shelf) -> None:
    mlm, simlm = shelf("mlm", "slots.passage.masking=random"), shelf("simlm", "slots.encoder.masking=random")
    for row in range(36):
        passage, encoder = mlm(row, epoch=0, step=0)["passage"], simlm(row, epoch=0, step=0)["encoder"]
        assert passage.masked.sum() == compute_mask_budget(0.3, len(passage.input_ids) - 2)
        assert encoder.masked.sum() == compute_mask_budget(0.3, len(encoder.input_ids))
