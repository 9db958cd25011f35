"""drtk show --preset: masked, replaced and labeled tokens of real passages."""

import re
from pathlib import Path

import numpy as np
import pytest

from drtk.config import load_preset, merge_settings
from drtk.errors import UsageError
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.dataset import PretrainingData
from drtk.pretraining.example_builder import TokenizedSlot
from drtk.pretraining.parse import parse_composition
from drtk.pretraining.preview import LEGEND, TokenFormatter, mark_words
from drtk.text.token_dataset import TokenCorpus
from drtk.text.tokenizers import load_tokenizer
from tests.enriched_corpus import write_enriched_corpus
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import run_command
from tests.tiny_models import save_tiny_encoder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shown")
    write_enriched_corpus(folder / "corpus.jsonl", save_tiny_encoder(folder / "model"))
    return folder


def show(capfd: pytest.CaptureFixture[str], data: Path, preset: str, *more: str) -> str:
    return run_command(capfd, "show", data / "corpus.jsonl", "--preset", preset, "--model", data / "model", *more)


class Letters:
    """A tokenizer of letters: 1 [CLS], 2 [SEP], 3 [MASK], 4 a, 5 b, 6 ##c."""

    mask_token, all_special_ids = "[MASK]", (1, 2, 3)
    names: tuple[str, ...] = ("", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c")

    def get_vocab(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def convert_ids_to_tokens(self, id: int) -> str:
        return self.names[id]


def make_slot(clean: list[int], hidden: list[int], edited: list[int] | None = None) -> TokenizedSlot:
    places = np.arange(len(clean))
    content = (places > 0) & (places < len(clean) - 1)
    labels = None if edited is None else np.array(edited)
    return TokenizedSlot(np.array(clean), np.array(clean), content, np.isin(places, hidden), labels, None, present=True)


def test_tokens_are_marked_by_what_happened_to_them():
    slot = make_slot([1, 4, 5, 6, 5, 4, 2], hidden=[1, 3, 4])
    actual = mark_words(slot, [1, 3, 5, 4, 5, 4, 2], TokenFormatter(Letters()))
    assert actual == ["[MASK]", "b{c→a}", "{b}", "a"]  # ##c continued b, and was replaced by a


def test_insertions_and_what_follows_a_deletion_are_marked():
    for hidden, ids, expected in (([2], [1, 4, 4, 2], ["a", "{+a}"]), ([], [1, 4, 5, 2], ["a", "{-}", "b"])):
        slot = make_slot([1, 4, 5, 2], hidden=hidden, edited=[0, 0, 1, 0])
        assert mark_words(slot, ids, TokenFormatter(Letters())) == expected


def test_the_preview_equals_the_first_epoch_of_training(data, capfd):
    said = show(capfd, data, "condenser", "--count", "6", "--seed", "7")
    plan = parse_composition(load_preset("condenser").content, "condenser")
    corpus = TokenCorpus.open(str(data / "corpus.jsonl"), str(data / "model"))
    tokenizer = load_tokenizer(str(data / "model"))
    settings = merge_settings(PretrainSettings, {"batch_size": 8, "max_length": 144}, {})
    rows = PretrainingData(corpus, plan, settings, tokenizer, 7).build_dataset()
    by_id = {rows[number].key[-1]: rows[number].slots["passage"] for number in range(32)}
    passages = {passage.partition("\n")[0]: passage for passage in said.split("\n\n")[:-1]}
    assert len(passages.keys() & by_id.keys()) >= 4
    for id in passages.keys() & by_id.keys():
        slot = by_id[id]
        labels = [tokenizer.convert_ids_to_tokens(int(id)).removeprefix("##") for id in slot.original_ids[slot.masked]]
        expected = f"labels are {'1 token' if len(labels) == 1 else f'{len(labels)} tokens'}: {', '.join(labels)}"
        assert expected in re.sub(r"\s+", " ", passages[id])


def test_each_term_says_what_it_labels(data, capfd):
    said = re.sub(r"\s+", " ", show(capfd, data, "diffcse-sts-bert", "-n", "1"))
    assert said.count("- contrast: queries 'one', positives 'two', negatives the texts of the other slot") == 2
    assert re.search(r"one: passage.*?given the vector of 'one' and 'two'.* two:", said)
    assert re.search(r"difference: \d+ of \d+ tokens are labeled as changed", said)
    simlm = re.sub(r"\s+", " ", show(capfd, data, "simlm", "-n", "1"))
    assert re.search(r"decoder: labels are all \d+ original tokens", simlm)
    released = re.sub(r"\s+", " ", show(capfd, data, "qac-cotmae-released", "-n", "1"))
    # A query of 3 words and two special tokens: four tokens come after the first.
    assert "labels are all 4 tokens after the first, including the last special token" in released


def test_slots_without_text_are_marked(data, capfd):
    passages = show(capfd, data, "master", "-n", "3").split("\n\n")
    missing = "(the example has no text for this slot; objectives on this slot skip it)"
    assert [missing in passage for passage in passages[:3]] == [False, False, True]  # the last of its document


def test_documents_are_shown_where_examples_are_documents(data, capfd):
    lines = show(capfd, data, "cocondenser", "-n", "2").splitlines()
    assert [line for line in lines if line[:9] == "document "] == ["document of d0#0", "document of d1#0"]


def test_a_changed_preset_is_shown_with_tokens_of_its_generator(data, files, capfd):
    every = ["--set", "slots.encoder.rate=1.0", "--set", "slots.decoder.rate=1.0"]
    plain = show(capfd, data, "simlm", "-n", "1", *every)
    filled = show(capfd, data, "simlm", "-n", "1", *every, "--generator", str(files.generator))
    assert "→" not in plain.removesuffix(LEGEND + "\n")
    assert plain.count("[MASK]") > filled.count("[MASK]")
    assert "→" in filled.removesuffix(LEGEND + "\n")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--preset mlm", "--preset requires --model"),
        ("--model m", "--model, --generator and --set require --preset"),
        ("--set a=b", "--model, --generator and --set require --preset"),
        ("--preset mlm --model m --term-weights", "--preset cannot be combined with --term-weights or --html"),
        ("--preset quickstart --model m", "preset 'quickstart' sets options of drtk train-retriever"),
    ],
)
def test_contradictory_options_are_rejected(more, told, data, capfd):
    with pytest.raises(UsageError, match=re.escape(told)):
        run_command(capfd, "show", data / "corpus.jsonl", *more.split())


def test_tokens_that_carry_their_space_are_joined_by_it(tmp_path):
    class Spaced(Letters):
        names = ("", "<s>", "</s>", "<mask>", "Ġa", "b", "Ġc")
        mask_token = "<mask>"

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return "".join(tokens).replace("Ġ", " ")

    spell = TokenFormatter(Spaced())
    assert [spell(id) for id in (4, 5, 6)] == [("a", False), ("b", True), ("c", False)]


def test_corpus_fields_can_come_from_a_side_file(data, tmp_path, capfd):
    rows = read_rows(data / "corpus.jsonl")
    bare = [{key: value for key, value in row.items() if key != "queries"} for row in rows]
    corpus = write_rows(tmp_path / "bare.jsonl", bare)
    side = write_rows(tmp_path / "side.jsonl", [{"_id": row["_id"], "queries": ["sailored sailorish"]} for row in rows])
    call = ["show", corpus, "--preset", "qac-cotmae-released", "--model", data / "model", "-n", "1"]
    assert "sailored sailorish" in run_command(capfd, *call, "--with", side)
