"""Sentence splitting with Punkt."""

from itertools import pairwise

import pytest

from drtk.errors import DrtkError
from drtk.text import sentences
from drtk.text.sentences import SentenceSplitter, normalize_whitespace, parse_model, save_model, train_model, trim_span

TEXT = "Mr. Brown went to the U.S. in May. He said: 'It is 3.5 miles.' Was it? No! (It was four.) The end"


@pytest.fixture(scope="module")
def model():
    return train_model([TEXT], "english")


def cut(model, text):
    return [text[begin:end] for begin, end in SentenceSplitter(model).find_spans(text)]


def test_abbreviations_numbers_and_closing_marks_stay_with_their_sentence(model):
    assert cut(model, TEXT) == [
        "Mr. Brown went to the U.S. in May.",
        "He said: 'It is 3.5 miles.'",
        "Was it?",
        "No!",
        "(It was four.)",
        "The end",
    ]
    assert cut(model, "") == cut(model, " \n\t ") == []
    assert trim_span("  ab ", 0, 5) == (2, 4)


def test_blocks_give_the_sentences_that_the_whole_text_gives(model, monkeypatch):
    text = " ".join(f"Sentence {number} cost 3.5 dollars, said Mr. Brown. Was it so? It was." for number in range(300))
    whole = cut(model, text)
    assert len(whole) == 900
    for size in (83, 100, 1000):
        monkeypatch.setattr(sentences, "BLOCK", size)
        assert cut(model, text) == whole


def test_a_megabyte_without_a_space_is_kept(model):
    text = "x" * 1_000_000
    spans = SentenceSplitter(model).find_spans(text)
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    assert all(end == begin for (_, end), (begin, _) in pairwise(spans))


def test_looking_up_words_does_not_grow_the_model(model):
    splitter = SentenceSplitter(model)
    before = len(splitter._punkt._params.ortho_context)
    splitter.find_spans("Zyx. Wvu. Tsr. Qpo. J. Nml etc. kji.")
    assert len(splitter._punkt._params.ortho_context) == before


def test_training_finds_an_abbreviation_of_the_text():
    # "abk." stands before lower case again and again and never without its full stop
    text = "The abk. is here and the abk. is there. " * 50 + "It has an end. " * 50
    model = train_model([text], "german")
    assert "abk" in model.abbreviations
    assert "etc" not in model.abbreviations  # known beforehand for English only
    assert cut(model, "See the abk. is good.") == ["See the abk. is good."]


def test_training_is_deterministic_and_a_saved_model_reads_back_equal(model, tmp_path):
    assert train_model([TEXT], "english") == model
    for _ in range(2):  # an equal file is no error
        save_model(model, tmp_path / "punkt.json")
        assert parse_model((tmp_path / "punkt.json").read_bytes(), "punkt.json") == model


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"kind":"index"}', b'{"kind":"drtk punkt model"}', b"\x80\x04."]
)
def test_other_files_are_rejected_as_sentence_models(content):
    with pytest.raises(DrtkError, match=r"punkt\.json: not a sentence splitter"):
        parse_model(content, "punkt.json")


def test_white_space_is_normalized_or_kept():
    text = " Head \n \n One\ttwo\n three. \n"
    for paragraphs, spans in ((False, [(0, 19)]), (True, [(0, 4), (5, 19)])):
        normalized = normalize_whitespace(text, paragraphs=paragraphs, keep_whitespace=False)
        assert normalized == ("Head One two three.", spans)
    kept, spans = normalize_whitespace(text, paragraphs=True, keep_whitespace=True)
    assert kept == text
    assert [text[begin:end] for begin, end in spans] == ["Head", "One\ttwo\n three."]
    assert normalize_whitespace(" \n\n ", paragraphs=True, keep_whitespace=True)[1] == []
