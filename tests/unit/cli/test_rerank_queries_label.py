"""drtk rerank-queries label: known ranks and first passages, and rejected input."""

from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.runtime.integrity import read_json
from tests.bm25_data import skip_without_lucene
from tests.expansion_collection import RANKS, label_expansions, make_collection, read_rows, write_collection, write_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collection(tmp_path_factory.mktemp("label"))


def label(data: Path, output: Path, more: str = "", *, source: Path | list[dict] | None = None) -> list[dict]:
    """Run drtk rerank-queries label on expansions.jsonl, another file, or rows; return the labeled rows."""
    if isinstance(source, list):
        source = write_rows(output.parent / "in", source)
    files = f"{source or data / 'expansions.jsonl'} --queries {data}/queries.jsonl --index {data}/bm25s -o {output}"
    app(f"rerank-queries label {files} {more} -q".split(), standalone_mode=False)
    return read_rows(output)


KEY0 = {"_id": "e", "query_id": "q0", "kind": "answer", "text": "key0"}


def write_question(folder: Path, *answers: str) -> str:
    """Write question q0 with these answers; return the option that names the file."""
    return f"--queries {write_rows(folder / 'questions', [{'_id': 'q0', 'text': 'which?', 'answers': answers}])}"


def test_the_rank_is_that_of_the_first_passage_with_an_answer(data, tmp_path):
    rows = label(data, tmp_path / "out")
    assert [row["rank"] for row in rows] == [RANKS[row["made"]] for row in make_collection()[2]]
    labels = {"rank": 0, "top1": 0, "depth": 100}
    assert [{**row, "rank": 0, "top1": 0} for row in rows] == [{**row, **labels} for row in make_collection()[2]]
    first = {row["_id"]: row for row in rows}
    assert first["q0#sentence#01"]["top1"] == {"title": "About0", "text": "key0 ans0 of a long story told here"}
    assert first["q0#sentence#03"]["top1"] == {"title": "Also0", "text": "key0 told"}  # middling: the answer is second
    assert first["q0#sentence#02"]["top1"] == {"title": "", "text": ""}  # nothing is found
    # 24 questions, 3 kinds of 4; equal queries of a batch are searched once: each quality has one of two words
    counts = read_json(tmp_path / "out.meta.json")["counts"]
    assert counts["in"] == counts["out"] == 288
    assert counts["searched"] == len({(row["query_id"], row["text"]) for row in make_collection()[2]}) < 288
    assert counts["find an answer"] == 144


def test_depth_and_max_rank_determine_the_rank_of_missing_answers(data, tmp_path):
    rows = label(data, tmp_path / "out", "--depth 1 --set max_rank=250 --set top1=false")
    ranks = {"good": 1, "middling": 250, "bad": 250, "nothing": 250}
    assert [row["rank"] for row in rows] == [ranks[row["made"]] for row in make_collection()[2]]
    assert {row["depth"] for row in rows} == {1}
    assert not any("top1" in row for row in rows)
    with pytest.raises(UsageError, match="`max_rank` 100: must be above `depth`, 100"):
        label(data, tmp_path / "other", "--set max_rank=100")
    again = label(data, tmp_path / "again", "--set top1=false", source=tmp_path / "out")  # replaces the labels
    assert {(row["depth"], row["made"], row["rank"]) for row in again} == {(100, *item) for item in RANKS.items()}


def test_titles_are_searched_for_answers_with_match_title(data, tmp_path):
    question = write_question(tmp_path, "also0")
    assert label(data, tmp_path / "text", question, source=[KEY0])[0]["rank"] == 101
    assert label(data, tmp_path / "title", f"{question} --set match_title=true", source=[KEY0])[0]["rank"] == 1


def test_answers_may_be_patterns(data, tmp_path, capfd):
    question = write_question(tmp_path, "ANS[0-9]$", "a[", "ans0 of")
    rows = label(data, tmp_path / "out", f"{question} --match regex", source=[KEY0])
    assert rows[0]["rank"] == 2
    assert "query 'q0': 'a[' is not a valid regular expression and matches nothing" in capfd.readouterr().err
    with pytest.raises(RecordError, match="in:1: none of the answers of query 'q0' can be matched"):
        label(data, tmp_path / "no", f"{write_question(tmp_path, 'a[')} --match regex", source=[KEY0])


@pytest.fixture(scope="module")
def lucene(data: Path) -> Path:
    """Build a Lucene index of the collection."""
    skip_without_lucene()
    folder = data / "lucene"
    app(f"index {data}/corpus.jsonl --type bm25 -o {folder} -q".split(), standalone_mode=False)
    return folder


def test_lucene_gives_the_labels_that_bm25s_gives(lucene, data, tmp_path):
    actual = label(data, tmp_path / "out", f"--index {lucene}")
    assert actual == read_rows(label_expansions(data))


REJECTED: list[tuple[dict, dict, str]] = [  # changes of question q0 and of its candidate, and the message
    ({}, {}, "query 'q0' has no answers to label candidates with; add"),
    ({"answers": []}, {}, "query 'q0' has no answers to label candidates with; add"),
    ({"answers": ["", " "]}, {}, "none of the answers of query 'q0' can be matched"),
    ({"answers": ["b"]}, {"query_id": "q99"}, "the queries have no 'q99'"),
    ({"answers": ["b"]}, {"text": " "}, "'text' is empty"),
    ({"answers": ["b"]}, {"kind": "a/b"}, "'kind' 'a/b' must be one word, usable as a file name"),
]


@pytest.mark.parametrize(("question", "change", "message"), REJECTED)
def test_bad_candidates_and_questions_are_rejected(data, tmp_path, question, change, message):
    questions = [{"_id": "q1", "text": "a", "answers": ["b"]}, {"_id": "q0", "text": "which?"} | question]
    named = f"--queries {write_rows(tmp_path / 'questions', questions)}"
    rows = [KEY0 | {"_id": "e1", "query_id": "q1"}, KEY0 | change]
    with pytest.raises(RecordError, match=f"in:2: {message}"):
        label(data, tmp_path / "out", named, source=rows)
    assert not (tmp_path / "out").exists()
    assert len(label(data, tmp_path / "out", f"{named} --skip-bad 1 --force", source=rows)) == 1


def test_an_index_without_its_passages_is_rejected(data, tmp_path):
    corpus = tmp_path / "moved.jsonl"
    corpus.write_bytes((data / "corpus.jsonl").read_bytes())
    app(f"index {corpus} --type bm25s -o {tmp_path}/index -q".split(), standalone_mode=False)
    corpus.unlink()
    index = f"--index {tmp_path}/index"
    with pytest.raises(MismatchError, match=r"index: corpus .*moved\.jsonl does not exist; give `corpus`"):
        label(data, tmp_path / "out", index)
    other = write_rows(tmp_path / "other.jsonl", [{"_id": "d0", "text": "a"}])
    with pytest.raises(MismatchError, match=r"other\.jsonl: has no passage 'd?x?\d+' of index"):
        label(data, tmp_path / "out", f"{index} --corpus {other}")
    assert len(label(data, tmp_path / "out", f"{index} --corpus {data}/corpus.jsonl --force")) == 288


def test_missing_passage_texts_are_reported(data, tmp_path, capfd):
    passages = read_rows(data / "corpus.jsonl")
    blank = write_rows(tmp_path / "blank.jsonl", [row | {"text": " "} for row in passages])
    message = r"blank\.jsonl: none of the \d+ passages that were read has a text; check that it is the right file"
    with pytest.raises(DrtkError, match=message):
        label(data, tmp_path / "out", f"--corpus {blank}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blank.jsonl"]
    assert len(label(data, tmp_path / "out", f"--corpus {blank} --set match_title=true")) == 288
    some = write_rows(tmp_path / "some.jsonl", [row | {"text": row["text"] * (row["_id"] != "x0")} for row in passages])
    assert label(data, tmp_path / "other", f"--corpus {some}", source=[KEY0])[0]["rank"] == 2  # after x0
    assert "some.jsonl: 1 of the 2 passages that were read have no text" in capfd.readouterr().err
