"""Detection of swapped files and of outputs made from another corpus."""

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.data import checks
from drtk.data.checks import CorpusOrigin, check_same_corpus, find_origins
from drtk.data.sniff import CANDIDATES, EITHER, EXAMPLES, JUDGMENTS, PASSAGES, QUERIES, RANKED, RUN, sniff_kind
from drtk.errors import DrtkError, MismatchError
from drtk.mining.config import MineSettings, MiningInputs
from drtk.mining.mine import mine_negatives
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.streams import digest_file
from tests.run_commands import open_pipe, write_text
from tests.tiny_models import save_tiny_cross_encoder, save_tiny_encoder


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"q1 Q0 d1 1 2.5 tag\nq1 Q0 d2 2 1.5 tag\n", RUN),
        (b"q1 Q0 d1 1 2.5 tag\nq1 Q0 d2", RUN),  # an incomplete last line is ignored
        (b"query-id\tcorpus-id\tscore\nq1\td1\t1\n", JUDGMENTS),
        (b'"query-id"\t"corpus-id"\t"score"\n"q1"\t"d1"\t"1"\n', JUDGMENTS),
        (b"# a comment\nq1 0 d1 1\n", JUDGMENTS),
        (b"q1\td1\t1\n", RANKED),
        (b"7\t15\twhat is it\tIt is this.\n7\t16\twhat is it\tOr 2 of these.\n", CANDIDATES),
        (b"7\t0\t15\t1\n", JUDGMENTS),
        (b'{"query_id": "q1", "positives": ["d1"], "negatives": []}\n', EXAMPLES),
        (b'[{"question": "why?", "answers": ["so"], "positive_ctxs": []}, {"questi', EXAMPLES),
        (b'\xef\xbb\xbf{"question": "why?", "answer": ["so"]}\n', QUERIES),
        (b'{"docid": "d1", "text": "x"}\n', PASSAGES),
        (b"d1\ta text\ta title\n", EITHER),
        (b"", None),
        (b"\n\n", None),
        (b"hello world\n", None),
        (b"q1 Q0 d1 1 2.5 tag\nq1 0 d2 2\n", None),
        (b'{"query_id": "q1", "positives": ["d1"]}\n{"_id": "q1", "text": "x"}\n', None),
        (b'{"broken\n', None),
        (b"\xff\xfe\x00\n", None),
    ],
)
def test_sniff_kind_returns_the_kind_of_the_first_lines(head: bytes, kind: str | None) -> None:
    assert sniff_kind(head) == kind


FILES = {
    "run": "q1 Q0 d1 1 3.5 t\nq1 Q0 d2 2 3.0 t\n",
    "judgments": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
    "passages": '{"_id": "d1", "title": "T", "text": "a"}\n',
    "queries": '{"_id": "q1", "text": "a"}\n',
    "examples": '{"query_id": "q1", "positives": ["d1"], "negatives": ["d2"]}\n',
    "triples": "q1\td1\td2\n",
    "integer triples": "7\t1500\t2500\n",
    "damaged": '{"query_id": \n',
}


@pytest.mark.parametrize(
    ("check", "accepted", "rejected"),
    [
        (checks.check_examples, "examples,triples,integer triples,damaged", "run,judgments,passages"),
        (checks.check_run, "run,damaged", "examples,integer triples,judgments,passages,queries"),
    ],
)
def test_files_of_another_kind_are_rejected(check, accepted, rejected, tmp_path: Path) -> None:
    files = {name: str(write_text(tmp_path / name, text)) for name, text in FILES.items()}
    for name in accepted.split(","):
        check(files[name])
    for name in rejected.split(","):
        with pytest.raises(MismatchError, match=f"{name}: looks like .*; expected "):
            check(files[name])


def test_compressed_files_are_checked_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "run.gz").write_bytes(gzip.compress(FILES["run"].encode()))
    with pytest.raises(MismatchError, match=r"run\.gz: looks like hits of a TREC run"):
        checks.check_examples(str(tmp_path / "run.gz"))
    with open_pipe(FILES["run"].encode()) as name:
        checks.check_examples(name)
        with open(name, "rb") as pipe:
            assert pipe.read() == FILES["run"].encode()


def test_swapped_corpus_and_queries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = FILES | {
        "questions": '{"_id": "q1", "text": "which?", "answers": ["one"]}\n',
        "faq": '{"_id": "d1", "question": "which?", "title": "one", "text": "two"}\n',
    }
    files = {name: str(write_text(tmp_path / name, text)) for name, text in texts.items()}
    passages, queries, questions = (files[name] for name in ("passages", "queries", "questions"))
    checks.warn_of_other_kind(passages=passages, queries=queries)
    checks.warn_of_other_kind(passages=queries, queries=queries)  # passages may lack titles
    checks.warn_of_other_kind(passages=passages)
    checks.warn_of_other_kind(queries=questions)
    checks.warn_of_other_kind(passages=files["faq"])
    assert caplog.messages == []
    checks.warn_of_other_kind(passages=questions)
    swapped = f"{passages}: looks like passages; expected queries"
    assert caplog.messages == [f"{questions}: looks like queries; expected passages"]
    caplog.clear()
    for command in ("compare", "mine-negatives"):
        call = [command, files["run"], "--qrels", "none", "--corpus", queries, "--queries", passages]
        with pytest.raises(DrtkError):
            app(call, standalone_mode=False)
    assert [line for line in caplog.messages if "index" not in line] == [swapped] * 2


def drtk(*lines: str) -> None:
    for line in lines:
        app(line.split(), standalone_mode=False)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two corpora, and indexes, runs and examples made from them."""
    folder = tmp_path_factory.mktemp("origins")
    rows = [{"_id": f"d{at}", "text": f"wing lift {at}"} for at in range(9)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write_text(folder / "corpus.jsonl", text)
    write_text(folder / "new.jsonl", text + '{"_id": "d10", "text": "more"}\n')
    write_text(folder / "queries.jsonl", '{"_id": "q1", "text": "wing 3"}\n')
    write_text(folder / "qrels.tsv", "q1\td3\t1\n")
    (folder / "empty").mkdir()  # in place of a model: models are loaded after all checks
    save_tiny_encoder(folder / "model")
    save_tiny_cross_encoder(folder / "scorer")
    # The corpus that a model was trained with says nothing about its scores.
    trained = {"command": "drtk train-reranker", "kind": "model", "settings": {"corpus": "theirs"}}
    trained |= {"inputs": [{"path": "theirs", "digest": "0" * 32}]}
    write_text(folder / "scorer" / "meta.json", json.dumps(trained))
    texts = "--corpus corpus.jsonl --queries queries.jsonl --model scorer"
    mine = "mine-negatives a.run --qrels qrels.tsv"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        drtk(
            "index corpus.jsonl --type bm25s -o index",
            "index new.jsonl --type bm25s -o new-index",
            "search index queries.jsonl -k 5 -o a.run",
            "search new-index queries.jsonl -k 5 -o b.run",
            f"{mine} --corpus corpus.jsonl -o examples.jsonl",
            f"{mine} -o others.jsonl",
            "mine-negatives one=a.run b.run --qrels qrels.tsv -o mixed.jsonl",
            f"{mine} --corpus new.jsonl --skip-corpus-check --set min_negatives=0 -o looked-up.jsonl",
            "fuse a.run b.run -o fused.run",
            "encode corpus.jsonl --model model -o vectors",
            "encode queries.jsonl --role query --model model -o query-vectors",
            "index vectors --type exact -o dense",
            "search dense query-vectors -k 5 -o dense.run",
            f"score examples.jsonl {texts} -o scored.jsonl",
            f"rerank a.run {texts} -o reranked.run",
            "convert examples.jsonl scored.jsonl --as examples -o both.jsonl",
        )
        with open_pipe(Path("examples.jsonl").read_bytes()) as pipe:
            drtk(f"score {pipe} {texts} -o from-pipe.jsonl")
    return folder


@pytest.fixture
def cwd(outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the outputs, which the test may change."""
    shutil.copytree(outputs, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    return tmp_path / "world"


def test_origins_are_read_from_manifests(cwd: Path) -> None:
    old, new = (CorpusOrigin(name, digest_file(name)) for name in ("corpus.jsonl", "new.jsonl"))
    of_one = "index a.run examples.jsonl others.jsonl vectors scored.jsonl reranked.run from-pipe.jsonl"
    for name in of_one.split():
        assert find_origins(name) == [old], name
    (origin,) = find_origins("dense.run")  # with the absolute path that the index records
    assert (Path(origin.path).name, origin.digest) == old
    assert find_origins("mixed.jsonl") == find_origins("fused.run") == [old, new]
    assert find_origins("both.jsonl") == [old, old]
    assert find_origins("looked-up.jsonl") == [new]  # all its ids were looked up there
    inputs = MiningInputs(("one=a.run", "b.run"), qrels="qrels.tsv")
    mine_negatives(inputs, MineSettings(), FilterJob("mine-negatives", "examples", "library.jsonl"))
    assert find_origins("library.jsonl") == [old, new]
    shutil.copy("corpus.jsonl", "moved.jsonl")
    check_same_corpus("index", "moved.jsonl", skip=False)  # the same content
    for name in ("corpus.jsonl", "query-vectors", "scorer"):
        assert find_origins(name) == [], name


def test_a_dense_index_knows_its_corpus_without_its_vectors(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = digest_file("corpus.jsonl")
    monkeypatch.chdir("empty")  # the path of the vectors is relative
    assert [origin.digest for origin in find_origins("../dense")] == [digest]
    monkeypatch.chdir("..")
    shutil.rmtree("vectors")
    assert [origin.digest for origin in find_origins("dense")] == [digest]
    with open_pipe(Path("corpus.jsonl").read_bytes()) as pipe:
        drtk(f"encode {pipe} --model model -o piped", "index piped --type exact -o piped-index")
    assert find_origins("piped-index") == [CorpusOrigin("-", digest)]


def test_damaged_and_changed_files_have_no_origins(cwd: Path) -> None:
    old = CorpusOrigin("corpus.jsonl", digest_file("corpus.jsonl"))
    write_text(cwd / "dense" / "meta.json", "torn")
    assert find_origins("dense.run") == []
    with open("scored.jsonl", "a") as file:
        file.write("\n")
    assert find_origins("both.jsonl") == [old]  # only the unchanged part
    with open("examples.jsonl", "a") as file:
        file.write("\n")
    assert find_origins("from-pipe.jsonl") == [old]  # texts were looked up in the corpus
    os.utime("corpus.jsonl", ns=(1, 1))  # no digest was recorded of a corpus that was only looked up
    assert find_origins("from-pipe.jsonl") == []
    drtk("index new.jsonl --type bm25s -o index --force")
    assert find_origins("a.run") == []
    write_text(cwd / "a.run.meta.json", "torn")
    assert find_origins("a.run") == []


@pytest.mark.parametrize(
    "call", ["score examples.jsonl", "rerank a.run", "train-retriever mixed.jsonl", "train-reranker examples.jsonl"]
)
def test_texts_of_another_corpus_are_rejected(call: str, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(outputs)
    line, source = f"{call} --corpus new.jsonl --queries queries.jsonl --model empty -o out", call.split()[1]
    with pytest.raises(MismatchError, match=rf"{source}: was made from another corpus \(corpus.* than new\.jsonl "):
        drtk(line)
    with pytest.raises(DrtkError) as caught:  # the model is missing
        drtk(f"{line} --skip-corpus-check")
    assert "another corpus" not in str(caught.value)
    assert not Path("out").exists()
