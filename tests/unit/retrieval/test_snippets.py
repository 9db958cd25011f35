"""Snippets of passages in a terminal."""

from drtk.records import Passage
from drtk.retrieval.snippets import extract_snippet, format_passages, stem_query_words


def mark(word):
    return f"*{word}*"


def test_stems_are_matched_and_a_short_text_is_shown_whole_on_one_line():
    assert stem_query_words("How do I open the files?") == {"open", "file"}
    assert stem_query_words("what is it") == {"what", "is", "it"}  # stop words only
    text = "Opening a file\n  returns a stream."
    assert extract_snippet(text, stem_query_words("open files"), mark=mark) == "*Opening* a *file* returns a stream."


def test_a_snippet_contains_the_densest_matches():
    filler = " ".join(f"w{n}" for n in range(80))
    text = f"file file file. {filler}. Later one opens a file there. {filler}"
    actual = extract_snippet(text, stem_query_words("open a file"), words=20, mark=mark)
    assert "one *opens* a *file* there" in actual
    assert actual.startswith("… ")
    assert actual.endswith(" …")
    assert len(actual.replace("…", "").split()) == 20


def test_a_snippet_begins_with_the_sentence_of_its_first_match_or_with_the_text():
    text = " ".join(f"w{n}" for n in range(60)) + ". The small door opens at noon. " + "x " * 60
    assert extract_snippet(text, stem_query_words("opens"), words=20).startswith("… The small door opens at noon.")
    assert extract_snippet(text, stem_query_words("zebra"), words=5) == "w0 w1 w2 w3 w4 …"
    assert extract_snippet("", stem_query_words("zebra")) == ""


def test_snippets_are_wrapped_to_the_width_and_marks_do_not_count():
    passage = Passage("d7#2", "The engine was started by hand " * 6, "A title that is much too long for this line")
    bold = "\x1b[1m{}\x1b[0m".format
    ranking = [("d7#2", 12.34567), ("gone", 1.0)]
    lines = list(format_passages("engine", ranking, [passage, None], width=40, highlight=bold))
    plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines]
    assert plain[:3] == [
        " 1  12.3457   A title that is much too",
        "              long for this line",
        "    d7#2",
    ]
    assert max(map(len, plain)) <= 40
    assert lines[3] == "    The \x1b[1mengine\x1b[0m was started by hand The"
    assert plain[-1] == " 2  1.0000    gone"
    lines = list(format_passages("x", [("d1", 2.0)], [Passage("d1", "some text")], width=60))
    assert lines == [" 1  2.0000    d1", "    some text", ""]


def test_passages_of_imported_documents_have_file_and_page():
    places = [({"path": "notes/a.pdf", "page": 3}, ["    notes/a.pdf, page 3"]), ({"path": "b.md"}, ["    b.md"])]
    for metadata, expected in [*places, ({"path": 7, "page": 3}, []), (None, [])]:
        passage = Passage("a.pdf#1", "some text", "Title", metadata)
        lines = list(format_passages("x", [("a.pdf#1", 2.0)], [passage], width=60))
        assert lines == [" 1  2.0000    Title", "    a.pdf#1", *expected, "    some text", ""]
