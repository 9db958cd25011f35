"""drtk show --term-weights: the words of weighted passages, shaded in a terminal and on a page."""

import re
from typing import Any

import pytest

from drtk.errors import MismatchError, RecordError, UsageError
from drtk.expansion.term_weights.show import build_page, format_for_terminal, iter_weighted_passages
from drtk.records import Passage
from tests.run_commands import run_command, write_text
from tests.tiny_models import find_minilm

TEXT = "The perveance beam, <the> beam."
WEIGHTS = [0.1, 0.8, 0.8, 0.8, 0.4, 0.0, 0.0, 0.1, 0.0, 0.2, 0.0]  # the per ##ve ##ance beam , < the > beam .


def passage(**changes: Any) -> Passage:
    fields: dict[str, Any] = {"weights": WEIGHTS, **changes}
    return Passage("p1", TEXT, "On beams", {"weights_tokenizer": find_minilm()}, fields)


def test_segments_have_weights_and_restore_the_text():
    actual = next(iter_weighted_passages([passage()], top=3))
    assert "".join(text for text, _ in actual.text) == TEXT
    weights = [("The", 0.1), ("perveance", 0.8), ("beam", 0.4), ("the", 0.1), ("beam", 0.2)]
    assert [word for word in actual.text if word[1]] == weights
    assert actual.top == [("perveance", 0.8), ("beam", 0.4), ("the", 0.1)]
    assert actual.title == [("On beams", 0.0)]
    assert actual.largest == 0.8
    actual = next(iter_weighted_passages([passage(title_weights=[0.0, 0.9])], top=1))
    assert actual.title == [("On", 0.0), (" ", 0.0), ("beams", 0.9)]
    assert actual.top == [("beams", 0.9)]


def test_terminal_output_is_colored_and_file_output_is_not():
    plain, bright = (
        "\n".join(format_for_terminal(iter_weighted_passages([passage()], top=2), color=c)) for c in (False, True)
    )
    assert plain == f"p1  On beams\n{TEXT}\nperveance 0.800  beam 0.400"
    assert re.sub(r"\x1b\[[\d;]*m", "", bright) == plain
    assert "\x1b[30;48;5;208mperveance\x1b[0m" in bright  # the heaviest: 5 of 5 steps
    assert "\x1b[30;48;5;229mbeam\x1b[0m" in bright  # half of it: round(2.5) = 2, the second shade
    assert "\x1b" not in plain


def test_long_texts_are_broken_only_at_white_space(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = "beam, " * 40
    long = Passage("p", text.strip(), "", {"weights_tokenizer": find_minilm()}, {"weights": [0.5, 0.0] * 40})
    lines = [*format_for_terminal(iter_weighted_passages([long], top=0), color=False)][1:]
    assert " ".join(lines) == text.strip()
    assert all(30 < len(line) <= 40 for line in lines[:-1])


def test_the_page_has_each_word_with_its_weight_and_escapes_text():
    page = "\n".join(build_page(iter_weighted_passages([passage()], top=2), title="a & b"))
    assert "<h1>a &amp; b</h1>" in page
    assert re.search(r'<span style="background:rgba\(var\(--tint\),0\.75\)" title="0\.8">perveance</span>', page)
    assert "&lt;" in page
    assert "<the>" not in page
    assert "http" not in page  # nothing is fetched


def test_weights_that_do_not_match_the_text_are_rejected():
    with pytest.raises(MismatchError, match=r"passage 'p1': has 2 weights, but .* returns 11 word pieces"):
        next(iter_weighted_passages([passage(weights=[0.1, 0.2])], top=1))
    with pytest.raises(MismatchError, match="passage 'p2' has no weights or tokenizer name; run `drtk termweight`"):
        next(iter_weighted_passages([Passage("p2", "text")], top=1))


def test_the_command_shows_passages_and_writes_a_page(folder, capfd):
    write_text(folder / "c", '{"_id": "a", "text": "the cat sat"}\n{"_id": "b", "text": "the dog sat"}\n')
    run_command(capfd, "termweight", "c", "--method", "idf", "--tokenizer", find_minilm(), "--bare", "-o", "w")
    shown = run_command(capfd, "show", "c", "--with", "w", "--term-weights", "--top-words", "1")
    # ln(1 + 1.5 / 1.5); the others ln(1 + .5 / 2.5)
    assert shown == "a\nthe cat sat\ncat 0.693\n\nb\nthe dog sat\ndog 0.693\n"
    assert run_command(capfd, "show", "c", "--with", "w", "--html", "w.html") == ""
    assert (folder / "w.html").read_text().count("<h2>") == 2
    with pytest.raises(RecordError, match="w:1: 'text' is missing; if this file was written with `bare`, give"):
        run_command(capfd, "show", "--term-weights", "w")
    for wrong in ("--html c", "--with w", "--top-words 3", "--tokenizer x"):
        with pytest.raises(UsageError):
            run_command(capfd, "show", "c", *wrong.split())
