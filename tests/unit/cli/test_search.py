"""drtk index and drtk search, on texts and synthetic vectors."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.indexing import build
from drtk.runtime.integrity import read_json
from tests.embedding_folders import ENCODER, write_embeddings
from tests.expansion_collection import write_rows
from tests.run_commands import run_command, write_text

TEXT = "A wing of an aircraft lifts more, and under a load that grows with speed the wing of any craft may bend."
CORPUS = [
    {"_id": "wing#0", "title": "Wings", "text": "The wing of a bird lifts it."},
    {"_id": "wing#1", "title": "Wings", "text": TEXT},
    {"_id": "tail#0", "title": "Tails", "text": "The tail steers the bird in flight."},
    {"_id": "sea#0", "title": "The sea", "text": "Salt water and waves."},
]
QUERIES = [{"_id": "q1", "text": "wing"}, {"_id": "q2", "text": "bird tail"}, {"_id": "q3", "text": ""}]


@pytest.fixture
def cwd(folder):
    write_rows(folder / "corpus.jsonl", CORPUS)
    write_rows(folder / "queries.jsonl", QUERIES)
    return folder


@pytest.fixture
def bm25(cwd, capfd):
    run_command(capfd, "index", "corpus.jsonl", "--type", "bm25s", "-o", "bm25")
    return cwd / "bm25"


def columns(run):
    return [(line.split()[0], line.split()[2]) for line in run.splitlines()]


def set_stdin(monkeypatch, content):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def write_judgment(passage, name="qrels.tsv"):
    """Write a judgment of query q1."""
    write_text(Path(name), f"query-id\tcorpus-id\tscore\nq1\t{passage}\t1\n")


def test_a_run_lists_each_querys_passages_best_first(bm25, capfd):
    run = run_command(capfd, "search", "bm25", "queries.jsonl", "--set", "tag=mine")
    assert columns(run)[:2] == [("q1", "wing#1"), ("q1", "wing#0")]  # wing#1 has the word twice
    assert ("q2", "tail#0") in columns(run)
    assert not any(query == "q3" for query, _ in columns(run))
    assert [line.split()[3] for line in run.splitlines()[:2]] == ["1", "2"]
    assert {line.split()[1] + line.split()[5] for line in run.splitlines()} == {"Q0mine"}


def test_queries_without_hits_and_passages_as_queries_are_reported(bm25, capfd):
    write_rows("more.jsonl", [*QUERIES, {"_id": "q4", "text": "xyzzy"}])
    for queries, counts, has_warning in (
        ("more.jsonl", "4 out, 1 without a word, 1 without hits, ", False),
        ("corpus.jsonl", " out, ", True),
    ):
        app(["search", "bm25", queries, "-o", "run", "--force", "--batch-size", "2"], standalone_mode=False)
        error = capfd.readouterr().err
        assert counts in error
        assert (f"{queries}: looks like passages; expected queries" in error) == has_warning


def test_empty_queries_are_counted_in_the_manifest(bm25, capfd):
    run_command(capfd, "search", "queries.jsonl", "bm25", "--batch-size", "1", "-o", "run")
    assert Path("run").read_text() == run_command(capfd, "search", "bm25", "queries.jsonl")
    manifest = read_json(Path("run.meta.json"))
    assert (manifest["counts"]["in"], manifest["counts"]["without a word"]) == (3, 1)
    assert [entry["path"] for entry in manifest["inputs"]] == ["bm25", "queries.jsonl"]


def test_by_source_ranks_documents_by_the_names_in_the_corpus_if_given(bm25, cwd, capfd):
    by_source = columns(run_command(capfd, "search", "bm25", "queries.jsonl", "--by", "source"))
    assert by_source[0] == ("q1", "wing")
    assert by_source.count(("q1", "wing")) == 1
    named = write_rows("named.jsonl", [row | {"metadata": {"source_id": f"of-{row['title'][:3]}"}} for row in CORPUS])
    run = run_command(capfd, "search", "bm25", "queries.jsonl", "--by", "source", "--corpus", named)
    assert columns(run)[0] == ("q1", "of-Win")


def test_a_question_is_answered_with_titles_ids_and_snippets_or_without_a_corpus_with_ids(bm25, capfd):
    call = ("search", "bm25", "--query", "Which tails steer?", "-k", "1")
    page = run_command(capfd, *call).splitlines()
    assert page[0].split()[0] == "1"
    assert page[0].endswith("Tails")
    assert page[1:3] == ["    tail#0", "    The tail steers the bird in flight."]
    Path("corpus.jsonl").rename("moved.jsonl")
    short = run_command(capfd, *call)
    assert short.split()[-1] == "tail#0"
    assert "Tails" not in short
    assert run_command(capfd, *call, "--corpus", "moved.jsonl").splitlines() == page


def test_an_index_of_a_stream_says_that_it_has_no_texts(cwd, capfd, monkeypatch):
    for source, expected in (("corpus.jsonl", False), ("-", True)):
        set_stdin(monkeypatch, (cwd / "corpus.jsonl").read_bytes())
        app(["index", source, "--type", "bm25s", "-o", f"of-{expected}"], standalone_mode=False)
        assert ("to show passages, give search and serve --corpus FILE\n" in capfd.readouterr().err) == expected
    assert "Tails" in run_command(capfd, "search", "of-True", "--query", "tail", "--corpus", "corpus.jsonl")


def test_q_is_quiet_and_a_query_in_place_of_a_path_gets_a_hint(bm25, capfd, monkeypatch):
    told = r": No such file or directory; for a typed query use --query TEXT \(-q is --quiet\)"
    for typed in (["how do I fly?"], ["-q", "how do I fly?"], ["-q", "fly"]):
        with pytest.raises(DrtkError, match=re.escape(typed[-1]) + told):
            run_command(capfd, "search", "bm25", *typed)
    with pytest.raises(DrtkError, match=r"^bm26: No such file or directory$"):
        run_command(capfd, "search", "bm26", "queries.jsonl")
    for more, hint in (
        ("how do I fly?\n", "for one query per line use --query -"),
        ('{"_id": "q", "text": "t"}\nfly', ""),
    ):
        set_stdin(monkeypatch, more.encode())
        place = f"<stdin>:{1 if hint else 2}: expected a JSON object, got other text"
        with pytest.raises(RecordError, match=rf"^{place}{f'; {hint} .-q is --quiet.' if hint else ''}$"):
            run_command(capfd, "search", "bm25", "-q", "-")


def test_a_corpus_changed_after_indexing_causes_a_warning(bm25, cwd, capfd):
    app(["search", "bm25", "--query", "tail", "-q"], standalone_mode=False)
    assert capfd.readouterr().err == ""
    write_rows(cwd / "corpus.jsonl", [row | {"text": "Other words."} for row in CORPUS])
    told = "corpus.jsonl: differs from the corpus of bm25, so texts may differ from those ranked; index it again"
    for more in ([], ["--corpus", "corpus.jsonl"]):
        app(["search", "bm25", "--query", "tail", "-q", *more], standalone_mode=False)
        actual = capfd.readouterr()
        assert told in actual.err
        assert "Other words." in actual.out
    write_rows(cwd / "copy.jsonl", CORPUS)
    app(["search", "bm25", "--query", "tail", "-q", "--corpus", "copy.jsonl"], standalone_mode=False)
    assert capfd.readouterr().err == ""


def test_queries_from_stdin_are_searched_line_by_line(bm25, capfd, monkeypatch):
    one = run_command(capfd, "search", "bm25", "--query", "tail", "-k", "1")
    two = run_command(capfd, "search", "bm25", "--query", "wing load", "-k", "1")
    asked = "\ufefftail\n\n  wing   load\nzebra\n".encode()
    set_stdin(monkeypatch, asked)
    assert run_command(capfd, "search", "bm25", "--query", "-", "-k", "1") == f"tail\n{one}wing load\n{two}zebra\n"
    set_stdin(monkeypatch, b"tail\nth\xe9\n")
    with pytest.raises(RecordError, match="<stdin>:2: not UTF-8"):
        run_command(capfd, "search", "bm25", "--query", "-")


def test_each_query_line_is_answered_before_the_next_is_read(bm25):
    # A conversation over pipes: if answers waited for the end of input, the first read would never return.
    call = [sys.executable, "-m", "drtk", "search", str(bm25), "--query", "-", "-k", "1", "--quiet"]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as running:
        for question, actual in (("tail", "Tails"), ("salt", "The sea")):
            running.stdin.write(f"{question}\n")
            running.stdin.flush()
            assert running.stdout.readline() == f"{question}\n"
            assert running.stdout.readline().endswith(f"{actual}\n")
            while running.stdout.readline() != "\n":
                pass
        running.stdin.close()
        assert running.wait() == 0


REJECTED = {
    "search bm25 queries.jsonl --query tail": "omit query files",
    "search bm25 --query tail -o x": "and -o",
    "search bm25 --query tail --by source": "--by source",
    "search bm25 --query tail --drop-same-id": "--drop-same-id",
    "search bm25 queries.jsonl --tune --qrels x --model y": "--model has no effect with --tune",
    "search bm25 queries.jsonl --set tag=a\x1bb": r"--set tag: 'a\\x1bb' must be one word",
    "search bm25 --query tail --qrels x": "--tune and --qrels require query files; omit --query",
    "search bm25 queries.jsonl --tune": "--tune requires --qrels",
    "search bm25 queries.jsonl --corpus x": "--corpus has no effect without --query or --by source",
    "search bm25 queries.jsonl --model x": "`model` has no effect on bm25, which needs no query encoder",
    "search bm25 queries.jsonl --nprobe 3": "--nprobe is only valid for indexes of type ivf",
    "search bm25 queries.jsonl --set block=64": "--set block is only valid for indexes of type exact",
    "index corpus.jsonl --type bm25s --hnsw-m 8 -o x": "--hnsw-m is only valid for indexes of type hnsw",
    "index vectors --type exact --language de -o x": "--language is only valid for indexes of type bm25, bm25s, impact",
}


def test_options_that_contradict_each_other_are_rejected(bm25, capfd):
    for call, problem in REJECTED.items():
        with pytest.raises(UsageError, match=problem):
            run_command(capfd, *call.split())
    with pytest.raises(UsageError, match="the query is empty"):
        run_command(capfd, "search", "bm25", "--query", "  ")


def test_tuning_writes_every_point_of_the_grid_the_best_first(bm25, cwd, capfd):
    # q1 "wing", judged wing#0 of 8 words, the word once; wing#1 has it twice among 23; on average 11.25 words.
    # b = 1: 1/(1 + .1 * 8/11.25) = .934 leads 2/(2 + .1 * 23/11.25) = .907; b = 0: 2/2.1 = .952 leads 1/1.1 = .909.
    write_judgment("wing#0")
    arguments = ("search", "bm25", "queries.jsonl", "--tune", "--qrels", "qrels.tsv", "--set", "grid=k1=0.1 b=0,1")
    assert run_command(capfd, *arguments) == "k1\tb\tRR@10\n0.1\t1\t1.0000\n0.1\t0\t0.5000\n"
    write_judgment("wing", "docs.tsv")
    page = run_command(capfd, *arguments[:5], "docs.tsv", *arguments[6:], "--by", "source", "-o", "table.tsv")
    assert page == ""
    assert (cwd / "table.tsv").read_text() == "k1\tb\tRR@10\n0.1\t0\t1.0000\n0.1\t1\t1.0000\n"


def test_tuning_by_judgments_of_another_collection_warns_once(bm25, cwd, capfd):
    write_judgment("29")
    capfd.readouterr()
    tune = ["search", "bm25", "queries.jsonl", "--tune", "--qrels", "qrels.tsv", "--set", "grid=k1=0.1,0.2 b=0"]
    app([*tune, "-q"], standalone_mode=False)
    out, err = capfd.readouterr()
    assert out == "k1\tb\tRR@10\n0.1\t0\t0.0000\n0.2\t0\t0.0000\n"
    assert err.count("\n") == 1
    assert err.startswith("drtk: bm25: no judged document was retrieved (query 'q1': retrieved 'wing#1', judged '29')")
    write_judgment("wing", "docs.tsv")
    with pytest.raises(UsageError, match="judgments are of source documents, not of passages; use `by=source`"):
        app([*tune[:5], "docs.tsv", *tune[6:], "-q"], standalone_mode=False)


def test_with_judgments_only_judged_queries_are_searched(bm25, cwd, capfd):
    write_judgment("wing#0")
    everything = run_command(capfd, "search", "bm25", "queries.jsonl")
    assert len({line.split()[0] for line in everything.splitlines()}) > 1
    of_q1 = "".join(line for line in everything.splitlines(keepends=True) if line.startswith("q1 "))
    assert run_command(capfd, "search", "bm25", "queries.jsonl", "--qrels", "qrels.tsv") == of_q1
    write_text(cwd / "others.tsv", "query-id\tcorpus-id\tscore\nq77\twing#0\t1\n")
    with pytest.raises(MismatchError, match=r"queries\.jsonl: contains no judged query"):
        run_command(capfd, "search", "bm25", "queries.jsonl", "--qrels", "others.tsv")


def test_exact_index_of_embeddings_records_its_encoder_and_is_searched(cwd, capfd):
    write_embeddings(cwd / "v", [[1, 0], [0, 1], [1, 1]], ["a", "b", "c"], source="corpus.jsonl")
    write_embeddings(cwd / "q", [[1, 0.5]], ["q1"], role="query")
    run_command(capfd, "index", "v", "--type", "exact", "-o", "dense")
    meta = read_json(cwd / "dense" / "meta.json")
    assert (meta["kind"], meta["type"], meta["encoder"], meta["dimension"]) == ("index", "exact", ENCODER, 2)
    assert meta["corpus"] == str(cwd / "corpus.jsonl")
    assert meta["counts"] == {"passages": 3}
    run = run_command(capfd, "search", "dense", "q")
    assert run == "q1 Q0 c 1 1.5 drtk\nq1 Q0 a 2 1.0 drtk\nq1 Q0 b 3 0.5 drtk\n"


def test_a_failed_build_does_not_replace_the_old_index(cwd, bm25, capfd):
    pytest.importorskip("faiss")
    write_embeddings(cwd / "v", [[1, 0], [0, 1]])
    write_text(cwd / "empty.jsonl", "")
    before = run_command(capfd, "search", "bm25", "queries.jsonl")
    for arguments, error, problem in (
        ("v --type bm26", UsageError, "unknown index type 'bm26'"),
        ("v --type PQ3", UsageError, "multiple of the number"),
        ("- --type exact", UsageError, "cannot be built from a stream"),
        ("v --type exact --with corpus.jsonl", UsageError, "which contains vectors only"),
        ("corpus.jsonl --type exact", UsageError, "corpus.jsonl: an index of type exact is built from vectors"),
        ("corpus.jsonl queries.jsonl --type bm25s", UsageError, "one corpus"),
        ("v --type bm25s", UsageError, "v: contains vectors, but an index of type bm25s is built from passages"),
        ("empty.jsonl --type bm25s", DrtkError, "contains no passages"),
        ("nowhere.jsonl --type bm25s", DrtkError, "nowhere.jsonl"),
    ):
        with pytest.raises(error, match=problem):
            run_command(capfd, "index", *arguments.split(), "-o", "bm25", "--force")
    assert run_command(capfd, "search", "bm25", "queries.jsonl") == before


def test_missing_faiss_names_the_extra_to_install(cwd, capfd, monkeypatch):
    write_embeddings(cwd / "v", [[1, 0]])
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "drtk.indexing.faiss_index", raising=False)
    with pytest.raises(DrtkError, match=r"faiss, which is not installed; install it with: .* -m pip install faiss-cpu"):
        run_command(capfd, "index", "v", "--type", "flat", "-o", "i")


def test_the_default_index_type_follows_the_source(cwd, capfd, monkeypatch):
    write_embeddings(cwd / "v", [[1.0, 0.0], [0.0, 1.0]])
    monkeypatch.setattr(build, "is_lucene_installed", lambda: False)
    for source, kind in (("v", "exact"), ("corpus.jsonl", "bm25s")):
        run_command(capfd, "index", source, "-o", f"{kind}.index")
        assert read_json(cwd / f"{kind}.index" / "meta.json")["type"] == kind
    monkeypatch.setattr(build, "is_lucene_installed", lambda: True)
    assert build.choose_type(["corpus.jsonl"]) == "bm25"
