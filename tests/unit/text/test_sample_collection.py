"""The sample collection from docstrings of installed packages."""

import json
import sys

import pytest

from drtk.errors import DrtkError, MissingDependency
from drtk.runtime.folder_job import FolderJob
from drtk.text.config import SampleSettings
from drtk.text.sample_collection import (
    build_sample_collection,
    is_query,
    make_public_name,
    parse_docstrings,
    remove_markup,
    sample_pairs,
    split_summary,
)
from drtk.text.words import extract_words

SOURCE = r'''
"""A module about rivers.

It knows their sources and their mouths.
"""
import nothing_of_this_name
raise SystemExit("a file that is run would end here")

def flow(speed):
    """Return the water that passes in a second.

    The speed is in meters."""

def _hidden():
    """Not for users.

    At all."""

class River:
    """A stream of water that runs into the sea.

    It has a name."""

    def __init__(self):
        """Make a river.

        Out of nothing."""

    if True:
        async def mouth(self):
            """Where the river ends.

            Usually a sea."""

    def silent(self):
        """Only a summary."""

add_docstr(water.boil, r"""
boil(input, *, out=None) -> Tensor

Heats :attr:`input` up. Until it {boils}.

Args:
    {input}
""" + "    more {{braces}}\n\nExample::\n\n    water".format(**common))
add_docstr_all("cool", """cool() -> Tensor

Let it cool down again.

Slowly.""")
add_newdoc("numpy._core.umath", "freeze", """freeze(x, /)

Make ice of water.

Below zero.""")
add_docstr(water.fog, text)
add_docstr(f"no name {of} its own", """A summary of it.

And more.""")
'''


def test_docstrings_of_public_objects(tmp_path):
    (tmp_path / "water.py").write_text(SOURCE)
    docstrings = parse_docstrings(tmp_path / "water.py", "water")
    boil = "Until it {boils}.\n\nArgs:\n    more {braces}\n\nExample::\n\n    water"
    assert [(each.name, each.kind, each.summary, each.body) for each in docstrings] == [
        ("water", "module", "A module about rivers", "It knows their sources and their mouths."),
        ("water.flow", "function", "Return the water that passes in a second", "The speed is in meters."),
        ("water.River", "class", "A stream of water that runs into the sea", "It has a name."),
        ("water.River.mouth", "method", "Where the river ends", "Usually a sea."),
        ("water.boil", "function", "Heats input up", boil),
        ("torch.Tensor.cool", "function", "Let it cool down again", "Slowly."),
        ("numpy.umath.freeze", "function", "Make ice of water", "Below zero."),
    ]
    for content in (b"def broken(:\n", b'"""\xff"""', b"x = 1\n", b"", b'"""a\x00b"""', b"(" * 5000 + b'"""'):
        (tmp_path / "file.py").write_bytes(content)
        assert parse_docstrings(tmp_path / "file.py", "file") == []


@pytest.mark.parametrize(
    ("text", "summary", "rest"),
    [
        ("Do it. Then rest.\n\nMore.", "Do it", "Then rest.\n\nMore."),
        ("Do it\nin two lines.\n\nMore.", "Do it in two lines", "More."),
        ("solve(a, b)\n\nSolve it.\n\nMore.", "Solve it", "More."),
        ("solve(a, b) -> x\nSolve it.\n\nMore.", "Solve it", "More."),
        ("Use e.g. Rivers of it.\n\nMore.", "Use e.g. Rivers of it", "More."),
        ("Split version 3.11 strings.", "Split version 3.11 strings", ""),
        ("solve(a, b) is fast.\n\nMore.", "solve(a, b) is fast", "More."),
        ("solve(a, b)", "", ""),
    ],
)
def test_docstrings_are_split_into_summary_and_rest(text, summary, rest):
    assert split_summary(text) == (summary, rest)


def test_markup_and_names():
    marked = "A :class:`~torch.Tensor` of ``x`` and [`~a.Trainer`], *so* **bold** :py:func:`text <place>`"
    assert remove_markup(marked) == "A torch.Tensor of x and a.Trainer, *so* bold text"
    assert make_public_name("numpy.linalg._linalg.solve") == "numpy.linalg.solve"
    assert make_public_name("_pydecimal.Decimal") == "pydecimal.Decimal"


BODY = "It takes a number of things into account, among them the weather of the day and the depth of the water. "


def function(name, summary, body=BODY):
    return f'def {name}():\n    """{summary}\n\n    {body}\n    """\n\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package with copies, shared and trivial summaries, tests and private modules."""
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


def make(folder, **settings):
    build_sample_collection(SampleSettings(**settings), FolderJob("sample", "sample", str(folder)))
    return {path.name: path.read_text() for path in sorted(folder.rglob("*.jsonl")) + sorted(folder.rglob("*.tsv"))}


def test_unusable_docstrings_are_excluded(package, tmp_path):
    files = make(tmp_path / "out", packages=("rivers",), num_workers=1)
    documents = {row["_id"]: row for row in map(json.loads, files["documents.jsonl"].splitlines())}
    assert documents["rivers.flow.speed"] == {
        "_id": "rivers.flow.speed",
        "title": "rivers.flow",  # of its module
        "text": BODY.strip(),
        "metadata": {"package": "rivers", "kind": "function"},
    }
    queries = {row["_id"]: row["text"] for row in map(json.loads, files["queries.jsonl"].splitlines())}
    assert queries == {
        "q-rivers.flow.speed": "Measure how quickly the water moves",
        "q-rivers.flow.depth": "Sound the depth of a lake",
    }
    assert "rivers" not in sys.modules


def test_a_sample_of_installed_packages(package, tmp_path):
    names = ("hypothesis", "rich", "rivers")
    whole = make(tmp_path / "a", packages=names, num_workers=2)
    files = make(tmp_path / "b", packages=names, num_workers=1, limit=200)
    assert len(whole["documents.jsonl"].splitlines()) > 250
    for name in ("documents.jsonl", "queries.jsonl"):
        assert files[name].splitlines() == whole[name].splitlines()[:200]
    assert set(files["test.tsv"].splitlines()) <= set(whole["test.tsv"].splitlines())
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
    texts = [json.loads(line)["text"] for line in files["queries.jsonl"].splitlines()]
    assert len({text.lower() for text in texts}) == len(texts)
    for text, document in zip(texts, files["documents.jsonl"].splitlines(), strict=True):
        assert " ".join(extract_words(text)) not in " ".join(extract_words(json.loads(document)["text"]))
    manifest = json.loads((tmp_path / "b" / "meta.json").read_text())
    assert set(manifest["packages"]) == set(names)
    num_train, num_test = len(split["train.tsv"]), len(split["test.tsv"])
    assert manifest["counts"] == {"documents": 200, "train queries": num_train, "test queries": num_test}
    assert [entry["digest"] is not None for entry in manifest["inputs"]] == [True] * 3


def test_packages_without_documentation(tmp_path, monkeypatch):
    for name, content in (("empty_package", "x = 1\n"), ("name_space", None)):
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / "__init__.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    for name, error, problem in (
        ("no_such_package", MissingDependency, "pip install no_such_package"),
        ("../etc", MissingDependency, "pip install"),
        ("name_space", DrtkError, "name_space: no Python sources in"),
        ("empty_package", DrtkError, "no documentation in"),
    ):
        with pytest.raises(error, match=problem):
            make(tmp_path / "out", packages=(name,))
        assert not (tmp_path / "out").exists()
    assert sample_pairs([], SampleSettings()) == []


def test_usable_queries():
    assert is_query("Return the largest element of an array")
    for summary in (
        "Do it all at once",  # no content words
        "Return a list",  # three words
        " ".join(["word"] * 31),
        "input_ids (LongTensor of shape (batch, length)): indices of the tokens",
        "Exceptions and Warnings ========",
        ">>> print the largest element",
    ):
        assert not is_query(summary), summary
