"""drtk show --weights: the words of weighted passages, shaded in a terminal and on a page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from drtk.enrichment.termweights.pages import as_page, in_terminal
from drtk.enrichment.termweights.shown import weighted
from drtk.errors import MismatchError, RecordError, UsageError
from drtk.records import Passage
from tests.running import command, write
from tests.tiny import minilm

TEXT = "The perveance beam, <the> beam."
WEIGHTS = [0.1, 0.8, 0.8, 0.8, 0.4, 0.0, 0.0, 0.1, 0.0, 0.2, 0.0]  # the per ##ve ##ance beam , < the > beam .


def passage(**changes: Any) -> Passage:
    fields: dict[str, Any] = {"weights": WEIGHTS, **changes}
    return Passage("p1", TEXT, "On beams", {"weights_tokenizer": minilm()}, fields)


def test_a_text_comes_in_words_with_their_weights_and_nothing_is_lost() -> None:
    found = next(weighted([passage()], top=3))
    assert "".join(text for text, _ in found.text) == TEXT
    assert [(text, weight) for text, weight in found.text if weight] == [
        ("The", 0.1),
        ("perveance", 0.8),
        ("beam", 0.4),
        ("the", 0.1),
        ("beam", 0.2),
    ]
    assert found.top == [("perveance", 0.8), ("beam", 0.4), ("the", 0.1)]
    assert found.title == [("On beams", 0.0)]
    assert found.heaviest == 0.8


def test_titles_with_weights_have_words_too() -> None:
    found = next(weighted([passage(title_weights=[0.0, 0.9])], top=1))
    assert found.title == [("On", 0.0), (" ", 0.0), ("beams", 0.9)]
    assert found.top == [("beams", 0.9)]


def test_a_terminal_gets_colours_by_weight_and_a_file_none() -> None:
    plain, bright = ("\n".join(in_terminal(weighted([passage()], top=2), colour=c)) for c in (False, True))
    assert plain == f"p1  On beams\n{TEXT}\nperveance 0.8  beam 0.4"
    assert re.sub(r"\x1b\[[\d;]*m", "", bright) == plain
    assert "\x1b[30;48;5;208mperveance\x1b[0m" in bright  # the heaviest: 5 of 5 steps
    assert "\x1b[30;48;5;229mbeam\x1b[0m" in bright  # half of it: round(2.5) = 2, the second shade
    assert "\x1b" not in plain


def test_long_texts_break_at_white_space_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = "beam, " * 40
    long = Passage("p", text.strip(), "", {"weights_tokenizer": minilm()}, {"weights": [0.5, 0.0] * 40})
    lines = [*in_terminal(weighted([long], top=0), colour=False)][1:]
    assert " ".join(lines) == text.strip()
    assert all(30 < len(line) <= 40 for line in lines[:-1])


def test_the_page_holds_each_word_with_its_weight_and_escapes_the_rest() -> None:
    page = "\n".join(as_page(weighted([passage()], top=2), title="a & b"))
    assert "<h1>a &amp; b</h1>" in page
    assert re.search(r'<b style="background:rgba\(var\(--mark\),0\.75\)" title="0\.8">perveance</b>', page)
    assert "&lt;" in page
    assert "<the>" not in page
    assert "http" not in page  # nothing is fetched


def test_weights_that_do_not_fit_the_text_are_a_fault() -> None:
    with pytest.raises(MismatchError, match=r"passage 'p1': 2 weights, but .* makes 11 word pieces of it"):
        next(weighted([passage(weights=[0.1, 0.2])], top=1))
    with pytest.raises(MismatchError, match="passage 'p2' has no weights; drtk termweight makes them"):
        next(weighted([Passage("p2", "text")], top=1))


def test_the_command_shows_passages_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "c", '{"_id": "a", "text": "the cat sat"}\n{"_id": "b", "text": "the dog sat"}\n')
    command(capfd, "termweight", "c", "--method", "idf", "--tokenizer", minilm(), "--bare", "-o", "w")
    shown = command(capfd, "show", "c", "--with", "w", "--weights", "--top", "1")
    assert (
        shown == "a\nthe cat sat\ncat 0.693\n\nb\nthe dog sat\ndog 0.693\n"
    )  # ln(1 + 1.5 / 1.5); the others ln(1 + .5 / 2.5)
    assert command(capfd, "show", "c", "--with", "w", "--html", "w.html") == ""
    assert (tmp_path / "w.html").read_text().count("<section>") == 2
    for more in ([], ["-n", "1"]):
        with pytest.raises(RecordError, match=r"w:1: 'text' is missing; .* joined to their corpus: CORPUS --with FILE"):
            command(capfd, "show", "--weights", "w", *more)
    for wrong in (["--html", "c"], ["--with", "w"], ["--top", "3"], ["--tokenizer", "x"], ["--json", "--weights"]):
        with pytest.raises(UsageError):
            command(capfd, "show", "c", *wrong)
    assert len(json.loads((tmp_path / "w").read_text().splitlines()[0])["weights"]) == 3
