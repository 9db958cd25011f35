"""Collections as inputs: BEIR folders, ir_datasets, and datasets in the layout of the Hugging Face hub."""

import gzip
from pathlib import Path

import pytest

from drtk.cli.collections import resolve_collections
from drtk.data.beir import choose_dev_split, find_file, find_qrels, require_file
from drtk.data.collection import copy_dev_set, iter_collection_files, resolve_collection_file
from drtk.data.readers import load_qrels, read_passages, read_queries
from drtk.errors import DrtkError, MissingDependency, UsageError
from drtk.evaluation.dev_evaluation import RetrievalEvaluator
from drtk.records import Passage, Query
from drtk.runtime.inputs import InputTracker
from drtk.training.config import RerankerConfig
from tests.run_commands import Capture, run_command, run_rows, write_text
from tests.shared_data import find_shared_data
from tests.unit.evaluation.test_dev_evaluation import encode, write_collection

QRELS = "query-id\tcorpus-id\tscore\nq1\tab\t1\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_collection(tmp_path / "c")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pack(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def test_compressed_files_are_found(folder: Path) -> None:
    assert find_file(folder, "corpus.jsonl") == folder / "corpus.jsonl"
    pack(folder / "corpus.jsonl")
    assert find_file(folder, "corpus.jsonl") == folder / "corpus.jsonl.gz"
    assert find_file(folder, "passages.jsonl") is None
    with pytest.raises(DrtkError, match=r"c: has no passages\.jsonl; expected a BEIR folder"):
        require_file(folder, "passages.jsonl")


def test_the_only_split_is_used_and_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    pack(folder / "qrels" / "dev.tsv")
    caplog.set_level("INFO", logger="drtk")
    assert find_qrels(folder, "test") == folder / "qrels" / "dev.tsv.gz"
    assert caplog.messages == [f"{folder}: has no split 'test'; using its only split, 'dev'"]
    write_text(folder / "qrels" / "train.tsv", QRELS)
    problem = r"has no qrels/test\.tsv, only dev, train; give a file of judgments, or another split"
    with pytest.raises(DrtkError, match=problem):
        find_qrels(folder, "test")


def test_dev_split_is_dev_or_else_train_and_never_test(folder: Path) -> None:
    for split in ("train", "test"):
        write_text(folder / "qrels" / f"{split}.tsv", QRELS)
    assert choose_dev_split(folder) == "dev"
    (folder / "qrels" / "dev.tsv").unlink()
    assert choose_dev_split(folder) == "train"
    (folder / "qrels" / "train.tsv").unlink()
    with pytest.raises(DrtkError, match=r"has neither qrels/dev\.tsv nor qrels/train\.tsv \(found: test\); add one"):
        choose_dev_split(folder)
    with pytest.raises(DrtkError, match=r"has neither qrels/dev\.tsv nor qrels/train\.tsv; add one of them$"):
        choose_dev_split(folder.parent)
    with pytest.raises(DrtkError, match=r"has no qrels/train\.tsv, only test; give"):
        find_qrels(folder, "train")


def test_parts_of_a_beir_folder(folder: Path) -> None:
    assert resolve_collection_file(str(folder), "corpus") == str(folder / "corpus.jsonl")
    for source in (folder / "corpus.jsonl", folder.parent):  # no BEIR folder
        assert resolve_collection_file(str(source), "queries") == str(source)
    train = write_text(folder / "qrels" / "train.tsv", QRELS)
    assert resolve_collection_file(str(folder), "qrels", split="train") == str(train)
    names = [Path(file).name for _, file in iter_collection_files(str(folder))]
    assert names == ["corpus.jsonl", "queries.jsonl", "dev.tsv", "train.tsv"]
    with pytest.raises(DrtkError, match=r"c: has no qrels/test\.tsv, only dev, train"):
        resolve_collection_file(str(folder), "qrels")


def test_commands_read_a_beir_folder(capfd: Capture, folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "bm25"
    run_command(capfd, "index", folder, "--type", "bm25s", "-o", index)
    run = run_command(capfd, "search", index, folder)
    assert run == run_command(capfd, "search", index, folder / "queries.jsonl")
    (tmp_path / "run").write_text(run)
    evaluate = ("eval", tmp_path / "run", "--qrels")
    assert run_command(capfd, *evaluate, folder) == run_command(capfd, *evaluate, folder / "qrels" / "dev.tsv")
    mined = run_rows(capfd, "mine-negatives", index, "--data", folder, "--set", "min_negatives=1")
    assert [(row["query_id"], row["positives"]) for row in mined] == [("q1", ["ab"]), ("q2", ["b"])]
    queries = run_rows(capfd, "convert --as queries", folder / "queries.jsonl")
    assert run_rows(capfd, "convert --as queries", folder) == queries
    assert run_command(capfd, "convert", folder, "--as", "qrels") == (folder / "qrels" / "dev.tsv").read_text()


def test_data_fills_only_options_that_are_not_given(capfd: Capture, folder: Path, tmp_path: Path) -> None:
    qrels = write_text(tmp_path / "qrels.tsv", QRELS)
    run = write_text(tmp_path / "run", "q1 Q0 aa 1 2 x\nq1 Q0 ab 2 1 x\nq2 Q0 aa 1 1 x\n")
    (row,) = run_rows(capfd, "mine-negatives --set min_negatives=0", run, "--data", folder, "--qrels", qrels)
    assert (row["query_id"], row["positives"], row["negatives"]) == ("q1", ["ab"], ["aa"])
    with pytest.raises(UsageError, match="not a collection; give a BEIR folder, irds:ID or hf:NAME"):
        run_command(capfd, "mine-negatives", run, "--data", qrels)
    with pytest.raises(UsageError, match="--corpus FILE or --data DIR is required"):
        run_command(capfd, "train-retriever", run, "--model", "m", "-o", tmp_path / "o")


def test_validate_compares_the_judgments_of_a_folder_with_its_texts(capfd: Capture, folder: Path) -> None:
    findings = run_rows(capfd, "validate --json", folder)
    assert [(row["kind"], row["records"]) for row in findings] == [("passages", 4), ("queries", 3), ("qrels", 2)]
    write_text(folder / "qrels" / "dev.tsv", QRELS + "q9\tzz\t1\n")
    with pytest.raises(DrtkError, match=r"c: 2 errors$"):
        run_command(capfd, "validate", folder)
    with (folder / "corpus.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(DrtkError, match=r"c: 2 errors$"):  # the line of the corpus, and the query
        run_command(capfd, "validate", folder)
    assert "dev.tsv: ids are not compared with the corpus, which has errors\n" in capfd.readouterr().err
    with pytest.raises(UsageError, match=r"`corpus` applies to files of records only; .* is a collection"):
        run_command(capfd, "validate", folder, "--corpus", folder)


def test_bm25_of_the_cranfield_folder_is_the_reference_figure(capfd: Capture, tmp_path: Path) -> None:
    folder = find_shared_data("cranfield")
    run_command(capfd, "index", folder, "--type", "bm25s", "-o", tmp_path / "bm25")
    run_command(capfd, "search", tmp_path / "bm25", folder, "-k", "100", "-o", tmp_path / "run")
    (row,) = run_rows(capfd, "eval --format jsonl", tmp_path / "run", "--qrels", folder)
    assert row["nDCG@10"] == pytest.approx(0.3163, abs=2e-4)


def test_a_data_set_of_ir_datasets(capfd: Capture, tmp_path: Path, cache: Path) -> None:
    library = pytest.importorskip("ir_datasets")
    write_text(tmp_path / "docs.tsv", "d1\twind power\nd2\tsolar power\n")
    write_text(tmp_path / "queries.tsv", "q1\twind\n")
    write_text(tmp_path / "qrels", "q1 0 d1 2\n")
    files = {"docs_tsv": "docs.tsv", "queries_tsv": "queries.tsv", "qrels_trec": "qrels"}
    dataset = library.create_dataset(**{name: str(tmp_path / file) for name, file in files.items()})
    if "drtk-test/test" not in library.registry:
        library.registry.register("drtk-test/test", dataset)
    source = "irds:drtk-test/test"
    passages = [Passage("d1", "wind power"), Passage("d2", "solar power")]
    assert list(read_passages(resolve_collection_file(source, "corpus"))) == passages
    assert list(read_queries(resolve_collection_file(source, "queries"))) == [Query("q1", "wind")]
    assert load_qrels(resolve_collection_file(source, "qrels")) == {"q1": {"d1": 2}}
    assert sorted(path.name for path in cache.glob("collections/*/*")) == ["corpus.jsonl", "qrels.tsv", "queries.jsonl"]
    run_command(capfd, "index", source, "--type", "bm25s", "-o", tmp_path / "bm25")
    run_command(capfd, "search", tmp_path / "bm25", source, "-o", tmp_path / "run")
    (row,) = run_rows(capfd, "eval --format jsonl", tmp_path / "run", "--qrels", source)
    assert row["nDCG@10"] == 1
    assert run_command(capfd, "validate", source).count("no problems found") == 3
    with pytest.raises(DrtkError, match="irds:nothing: ir_datasets has no dataset 'nothing'"):
        resolve_collection_file("irds:nothing", "corpus")
    with pytest.raises(DrtkError, match="irds:beir/scifact: has no judgments"):
        resolve_collection_file("irds:beir/scifact", "qrels")
    files = sorted(cache.glob("collections/*/*"))
    if "drtk-test/missing" not in library.registry:  # a download that fails
        library.registry.register("drtk-test/missing", library.create_dataset(docs_tsv=str(tmp_path / "missing.tsv")))
    with pytest.raises(DrtkError, match=r"missing: ir_datasets cannot load it \(.*missing\.tsv.*\); check the network"):
        resolve_collection_file("irds:drtk-test/missing", "corpus")
    assert sorted(cache.glob("collections/*/*")) == files


def test_a_development_set_of_ir_datasets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    library = pytest.importorskip("ir_datasets")
    files = {"docs_tsv": "d1\twind\nd2\tsun\n", "queries_tsv": "q1\twind\n", "qrels_trec": "q1 0 d1 2\n"}
    for name, text in files.items():
        write_text(tmp_path / name, text)
    for name in ("drtk-dev/dev", "drtk-dev/trec-dl-2019", "drtk-dev/trec-tot/dev"):
        if name not in library.registry:
            library.registry.register(name, library.create_dataset(**{n: str(tmp_path / n) for n in files}))
    folder = Path(copy_dev_set("irds:drtk-dev/dev"))
    assert copy_dev_set("irds:drtk-dev/dev") == str(folder)
    probe = RetrievalEvaluator(folder, split=choose_dev_split(folder), tracker=InputTracker())
    assert probe(encode) == 1
    assert copy_dev_set(str(tmp_path)) == str(tmp_path)
    for id in ("drtk-dev/test", "drtk-dev/test/small", "drtk-dev/test-a", "test200"):
        with pytest.raises(DrtkError, match="a checkpoint must not be selected on test queries"):
            copy_dev_set(f"irds:{id}")
    copy_dev_set("irds:drtk-dev/trec-tot/dev")
    assert "most papers report" not in caplog.text
    copy_dev_set("irds:drtk-dev/trec-dl-2019")
    assert "irds:drtk-dev/trec-dl-2019: most papers report results on these judgments" in caplog.text


def test_collections_fill_the_arguments_of_train_reranker(folder: Path) -> None:
    write_text(folder / "qrels" / "train.tsv", QRELS)
    given = {"source": "examples", "corpus": None, "queries": None, "qrels": None, "dev": str(folder)}
    pairs = resolve_collections("train-reranker", given | {"settings": RerankerConfig()}, str(folder))
    expected = (str(folder / "corpus.jsonl"), str(folder / "queries.jsonl"), None, str(folder))
    assert tuple(pairs[name] for name in ("corpus", "queries", "qrels", "dev")) == expected
    lists = resolve_collections("train-reranker", given | {"settings": RerankerConfig(kind="hlatr")}, str(folder))
    assert [lists[name] for name in ("corpus", "queries", "qrels")] == [None, None, str(folder / "qrels" / "train.tsv")]


def test_without_ir_datasets_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ir_datasets", None)
    with pytest.raises(MissingDependency, match="pip install ir_datasets"):
        resolve_collection_file("irds:x", "corpus")


CARD = """---
configs:
- config_name: default
  data_files: [{split: test, path: test.jsonl}, {split: train, path: train.jsonl}]
- config_name: corpus
  data_files: [{split: corpus, path: corpus.jsonl}]
- config_name: queries
  data_files: [{split: queries, path: queries.jsonl}]
---
"""


def test_a_data_set_of_the_hub(capfd: Capture, tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    folder = tmp_path / "hub"
    folder.mkdir()
    write_text(folder / "README.md", CARD)
    write_text(folder / "corpus.jsonl", '{"_id": "d1", "title": "Wind", "text": "power"}\n')
    write_text(folder / "queries.jsonl", '{"_id": "q1", "text": "wind"}\n')
    write_text(folder / "test.jsonl", '{"query-id": "q1", "corpus-id": "d1", "score": 2}\n')
    write_text(folder / "train.jsonl", '{"query-id": "q1", "corpus-id": "d1", "score": 1.0}\n')
    source = f"hf:{folder}"
    assert list(read_passages(resolve_collection_file(source, "corpus"))) == [Passage("d1", "power", "Wind")]
    assert list(read_queries(resolve_collection_file(source, "queries"))) == [Query("q1", "wind")]
    for split, grade in (("test", 2), ("train", 1), ("dev", 1)):
        assert load_qrels(resolve_collection_file(source, "qrels", split=split)) == {"q1": {"d1": grade}}
    with pytest.raises(DrtkError, match="has no judgments of x, only of test, train"):
        resolve_collection_file(source, "qrels", split="x")
    assert load_qrels(f"{copy_dev_set(source)}/qrels/dev.tsv") == {"q1": {"d1": 1}}
    # A configuration and split is read as a table.
    assert run_command(capfd, "convert", f"{source}:default:test", "--as", "qrels").endswith("q1\td1\t2\n")
    assert load_qrels(f"{source}:default:test") == {"q1": {"d1": 2}}
    assert run_command(capfd, "validate", f"{source}:corpus:corpus").startswith(f"{source}:corpus:corpus: 1 passages")
    with pytest.raises(DrtkError, match="is not a dataset with the configurations corpus and queries"):
        copy_dev_set(f"{source}:corpus:corpus")
    (folder / "train.jsonl").unlink()
    write_text(folder / "README.md", CARD.replace(", {split: train, path: train.jsonl}", ""))
    with pytest.raises(DrtkError, match="has no judgments of dev or validation or train, only of test"):
        copy_dev_set(source)
