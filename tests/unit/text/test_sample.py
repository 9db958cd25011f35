"""The collection made of installed documentation."""

from __future__ import annotations

import json
import sys

import pytest

from drtk.errors import DrtkError, MissingDependency
from drtk.runtime.folder_job import FolderJob
from drtk.text.config import SampleSettings
from drtk.text.sample_collection import is_question, make_sample, sample_pairs
from drtk.text.words import words

BODY = "It takes a number of things into account, among them the weather of the day and the depth of the water. "


def function(name, summary, body=BODY):
    return f'def {name}():\n    """{summary}\n\n    {body}\n    """\n\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with copies, twins, trivial summaries and private corners."""
    root = tmp_path / "rivers"
    (root / "tests").mkdir(parents=True)
    (root / "_inner").mkdir()
    (root / "__init__.py").write_text("raise SystemExit('imported')\n")
    (root / "flow.py").write_text(
        function("speed", "Measure how quickly the water moves.")
        + function("copy", "Measure how quickly the water moves.")
        + function("one", "Count boats at the bridge.", BODY + "One.")
        + function("two", "Count boats at the bridge.", BODY + "Two.")
        + function("short", "Find the shortest way home.", "Too short.")
        + function("brief", "Do it.")
        + function("echo", "Repeat what the river says.", BODY + "Repeat what the river says!")
        + function("depth", "Sound the depth of a lake.", BODY + "Deep.")
    )
    (root / "tests" / "test_flow.py").write_text(function("test_it", "Test that water moves downhill quickly."))
    (root / "_inner" / "pump.py").write_text(function("pump", "Lift water from below ground level."))
    monkeypatch.syspath_prepend(tmp_path)
    return root


def made(folder, **settings):
    job = FolderJob("sample", "sample", str(folder))
    make_sample(SampleSettings(**settings), job)
    return {path.name: path.read_text() for path in sorted(folder.rglob("*.jsonl")) + sorted(folder.rglob("*.tsv"))}


def test_copies_twins_and_trivial_summaries_are_left_out(package, tmp_path):
    files = made(tmp_path / "out", packages=("rivers",), workers=1)
    documents = {row["_id"]: row for row in map(json.loads, files["documents.jsonl"].splitlines())}
    assert set(documents) == {"rivers.flow.speed", "rivers.flow.depth"}
    assert documents["rivers.flow.speed"] == {
        "_id": "rivers.flow.speed",
        "title": "rivers.flow",  # what it is part of, not its own name
        "text": BODY.strip(),
        "metadata": {"package": "rivers", "kind": "function"},
    }
    queries = {row["_id"]: row["text"] for row in map(json.loads, files["queries.jsonl"].splitlines())}
    assert queries == {
        "q-rivers.flow.speed": "Measure how quickly the water moves",
        "q-rivers.flow.depth": "Sound the depth of a lake",
    }
    assert "rivers" not in sys.modules


def test_judgements_are_beir_tables_that_share_out_the_queries(package, tmp_path):
    files = made(tmp_path / "out", packages=("rivers", "numpy"), limit=200)
    split = {}
    for name in ("train.tsv", "test.tsv"):
        header, *lines = files[name].splitlines()
        assert header == "query-id\tcorpus-id\tscore"
        split[name] = {tuple(line.split("\t")) for line in lines}
    assert not split["train.tsv"] & split["test.tsv"]
    assert len(split["train.tsv"] | split["test.tsv"]) == 200
    assert all(query == f"q-{document}" and score == "1" for query, document, score in split["train.tsv"])
    # 200 * 20 % = 40 expected; five standard deviations: 5 * sqrt(200 * .2 * .8) = 28
    assert 12 <= len(split["test.tsv"]) <= 68


def test_the_same_installation_gives_the_same_files_and_a_limit_their_beginning(tmp_path):
    whole = made(tmp_path / "a", packages=("numpy",), workers=2)
    again = made(tmp_path / "b", packages=("numpy",), workers=1, limit=100)
    for name in ("documents.jsonl", "queries.jsonl"):
        assert again[name].splitlines() == whole[name].splitlines()[:100]
    assert set(again["test.tsv"].splitlines()) <= set(whole["test.tsv"].splitlines())
    assert len(whole["documents.jsonl"].splitlines()) > 500


def test_a_query_is_not_in_its_document(tmp_path):
    files = made(tmp_path / "a", packages=("numpy", "nltk"), limit=600)
    for document, query in zip(files["documents.jsonl"].splitlines(), files["queries.jsonl"].splitlines(), strict=True):
        assert " ".join(words(json.loads(query)["text"])) not in " ".join(words(json.loads(document)["text"]))
    texts = [json.loads(line)["text"].lower() for line in files["queries.jsonl"].splitlines()]
    assert len(set(texts)) == len(texts)


def test_the_manifest_names_versions_and_notices_another_one(package, tmp_path):
    made(tmp_path / "out", packages=("rivers", "nltk"), workers=1)
    manifest = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert set(manifest["packages"]) == {"rivers", "nltk"}
    assert manifest["counts"]["documents"] == manifest["counts"]["train queries"] + manifest["counts"]["test queries"]
    assert [entry["digest"] is not None for entry in manifest["inputs"]] == [True, True]


def test_a_package_that_is_not_there_is_told(tmp_path):
    with pytest.raises(MissingDependency, match="pip install no_such_package"):
        made(tmp_path / "a", packages=("no_such_package",))
    with pytest.raises(MissingDependency):
        made(tmp_path / "b", packages=("../etc",))


def test_a_package_without_documentation_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "empty_package").mkdir()
    (tmp_path / "empty_package" / "__init__.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DrtkError, match="no documentation found"):
        made(tmp_path / "out", packages=("empty_package",))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("summary", "usable"),
    [
        ("Return the largest element of an array", True),
        ("Do it all at once", False),  # no content words to find it by
        ("Return a list", False),  # three words
        (" ".join(["word"] * 31), False),
        ("input_ids (LongTensor of shape (batch, length)): indices of the tokens", False),
        ("Exceptions and Warnings ========", False),
        (">>> print the largest element", False),
    ],
)
def test_a_query_is_a_sentence_with_content(summary, usable):
    assert is_question(summary) is usable


def test_no_sources_give_no_pairs():
    assert sample_pairs([], SampleSettings()) == []
