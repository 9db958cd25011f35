"""Damaged folders, caches and files of other programs: commands report or rebuild them."""

import gzip
import os
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest
from safetensors.numpy import save_file

from drtk.data.corpus_store import CorpusStore
from drtk.records import Passage
from drtk.runtime.integrity import compute_content_digest
from drtk.text.token_dataset import TokenCorpus
from drtk.text.word_pieces import WordPieceTokenizer
from tests.contract.collection import Collection
from tests.contract.run_drtk import Outcome, run_in_process, run_successfully
from tests.run_commands import read_files

CALLS = {  # commands that use a folder
    "exact": "search FOLDER queries.jsonl",
    "bm25s": "search FOLDER queries.jsonl",
    "vectors": "index FOLDER --type exact -o OUTPUT",
    "model": "encode queries.jsonl --role query --model FOLDER -o OUTPUT",
    "crossencoder": "rerank first.run --corpus documents.jsonl --queries queries.jsonl --depth 1 --max-length 16 --model FOLDER",
    "writer": "doc2query documents.jsonl --n 1 --max-new-tokens 2 --model FOLDER",
}


def use(name: str, folder: Path, collection: Collection) -> Outcome:
    """Run a command that uses the folder."""
    places = {"FOLDER": str(folder), "OUTPUT": str(folder.parent / "output")}
    words = [places.get(word) or (str(collection[word]) if "." in word else word) for word in CALLS[name].split()]
    shutil.rmtree(places["OUTPUT"], ignore_errors=True)
    return run_in_process(*words, "--quiet")


@pytest.mark.parametrize("name", ["exact", "bm25s", "vectors", "model"])
def test_a_truncated_or_missing_file_is_reported_in_one_line(name, collection, tmp_path):
    folder = Path(shutil.copytree(collection[name], tmp_path / name))
    pattern = "*.safetensors" if name == "model" else "*"
    files = [path for path in folder.rglob(pattern) if path.name != "meta.json" and path.stat().st_size]
    assert files
    for path in files:
        data = path.read_bytes()
        for problem in ("has ", "is missing"):
            path.unlink() if problem == "is missing" else path.write_bytes(data[:-1])
            outcome = use(name, folder, collection)
            assert (outcome.status, outcome.err.count("\n")) == (1, 1)
            assert outcome.err.startswith(f"drtk: {path}: {problem}")
        path.write_bytes(data)
    assert use(name, folder, collection).status == 0


@pytest.mark.parametrize("name", CALLS)
def test_a_truncated_json_file_causes_no_traceback(name, collection, tmp_path):
    folder = Path(shutil.copytree(collection[name], tmp_path / name))
    for path in folder.rglob("*.json"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
        outcome = use(name, folder, collection)
        assert outcome.status in (0, 1), path
        assert outcome.err.count("\n") == outcome.status, (path, outcome.err)
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["v.npy", "v.safetensors", "v.parquet", "c.parquet"])
def test_a_truncated_file_of_another_program_is_reported_in_one_line(name, folder):
    vectors, ids = np.ones((40, 8), dtype=np.float32), [f"d{at}" for at in range(40)]
    if name.endswith(".parquet"):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {"id": ids, "vector": list(vectors)} if name[0] == "v" else {"_id": ids, "title": ids, "text": ids}
        parquet.write_table(pa.table(columns), name)
    elif name == "v.npy":
        np.save(name, vectors)
    else:
        save_file({"vectors": vectors}, name)
    Path("the.ids").write_text("\n".join(ids))
    call = ["convert", name, "--as", "embeddings" if name[0] == "v" else "passages", "-o", "out"]
    call += ["--ids", "the.ids"] * (name in ("v.npy", "v.safetensors"))
    run_successfully(*call)
    before = read_files(Path("out")) if Path("out").is_dir() else Path("out").read_bytes()
    Path(name).write_bytes(Path(name).read_bytes()[: Path(name).stat().st_size * 2 // 3])
    outcome = run_in_process(*call, "--force", "-q")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1), outcome.err
    assert outcome.err.startswith(f"drtk: {name}")
    assert (read_files(Path("out")) if Path("out").is_dir() else Path("out").read_bytes()) == before


def test_damaged_caches_are_rebuilt(collection, tmp_path, monkeypatch):
    monkeypatch.setenv("DRTK_CACHE", str(tmp_path / "cache"))
    tokenizer = WordPieceTokenizer(str(collection["model"]))
    corpus = tmp_path / "corpus.jsonl.gz"
    corpus.write_bytes(gzip.compress(collection["queried.jsonl"].read_bytes()))

    def read() -> tuple[list[list[int]], list[Passage], str]:
        tokens = TokenCorpus.open(str(corpus), tokenizer)
        ids = [[*tokens.get_text(row).ids] for row in range(len(tokens))]
        return ids, [*CorpusStore.open(corpus)], compute_content_digest(corpus)

    expected = read()
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]
    assert {path.relative_to(tmp_path / "cache").parts[0] for path in files} == {"tokens", "corpora", "digests"}
    for path in files:
        path.write_bytes(path.read_bytes()[:-1])
        assert read() == expected
        path.unlink()
        assert read() == expected


@pytest.fixture
def index(collection: Collection, tmp_path: Path) -> Path:
    return Path(shutil.copytree(collection["exact"], tmp_path / "index"))


def test_validate_lists_changed_files(index):
    assert b"no problems found" in run_successfully("validate", str(index)).out
    status = (index / "vectors.npy").stat()
    vectors = bytearray((index / "vectors.npy").read_bytes())
    vectors[-1] ^= 1
    (index / "vectors.npy").write_bytes(vectors)
    os.utime(index / "vectors.npy", ns=(status.st_atime_ns, status.st_mtime_ns))
    (index / "ids.txt").write_bytes(b"x")
    manifest = orjson.loads((index / "meta.json").read_bytes())
    (index / "meta.json").write_bytes(orjson.dumps(manifest | {"dimension": 7}))
    outcome = run_in_process("validate", str(index))
    assert (outcome.status, outcome.err) == (1, f"drtk: {index}: 3 errors\n")
    for problem in ("meta.json: its content changed", "vectors.npy: its content changed", "ids.txt: has 1 bytes"):
        assert f"{index}: {problem}" in outcome.out.decode()
    assert run_in_process("validate", str(index), "--as", "run").status == 2


def test_skip_done_rebuilds_a_damaged_folder(collection, index):
    call = ["index", str(collection["vectors"]), "--type", "exact", "-o", str(index), "--skip-done", "--force", "-q"]
    whole = (index / "ids.txt").read_bytes()
    for damaged in (b"d0\n", whole.replace(b"d1\n", b"dX\n")):
        (index / "ids.txt").write_bytes(damaged)
        run_successfully(*call)
        assert (index / "ids.txt").read_bytes() == whole


def test_files_of_a_model_may_be_edited(collection, tmp_path):
    model = Path(shutil.copytree(collection["model"], tmp_path / "m"))
    (model / "README.md").write_text("A model.\n")
    assert run_in_process("validate", str(model)).status == 0
    for name in ("config.json", "sentence_bert_config.json", "meta.json"):
        content = orjson.loads((model / name).read_bytes())
        (model / name).write_bytes(orjson.dumps(content | {"note": "edited"}))
    assert use("model", model, collection) == Outcome(0, b"", "")
    assert run_in_process("validate", str(model)).status == 1
