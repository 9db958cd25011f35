"""Damaged folders and caches: a sample of the cases in tests/slow/test_damaged_folders.py."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import orjson
import pytest

from drtk.data.corpus_store import CorpusStore
from drtk.records import Passage
from drtk.runtime.integrity import SMALL_FILE_BYTES, compute_content_digest
from drtk.text.token_dataset import TokenCorpus
from drtk.text.word_pieces import WordPieceTokenizer
from tests.contract.collection import Collection
from tests.contract.run_drtk import run_in_process, run_successfully
from tests.damage import Subjects, check_cache_damages, check_damages, remove_records, use_cache
from tests.embedding_folders import write_embeddings


@pytest.mark.parametrize("name", ["exact", "bm25s", "embeddings", "encoder"])
def test_a_damaged_folder_gives_the_same_results_or_a_one_line_error(name, collection, tmp_path):
    (tmp_path / "made").mkdir()
    subject = Subjects(tmp_path / "made", collection)[name]
    assert check_damages(subject, 12, tmp_path, seed=f"quick {name}") > 4


def test_damaged_caches_are_rebuilt(collection, tmp_path):
    tokenizer = WordPieceTokenizer(str(collection["model"]))
    corpus = tmp_path / "corpus.jsonl.gz"
    corpus.write_bytes(gzip.compress(collection["queried.jsonl"].read_bytes()))

    def tokens() -> list[list[int]]:
        token_corpus = TokenCorpus.open(str(corpus), tokenizer)
        return [[*token_corpus.get_text(row).ids] for row in range(len(token_corpus))]

    def passages() -> list[Passage]:
        return [*CorpusStore.open(corpus)]

    for kind, use in {"tokens": tokens, "corpora": passages, "digests": lambda: compute_content_digest(corpus)}.items():
        (tmp_path / kind).mkdir()
        check_cache_damages(kind, use, 8, tmp_path / kind, seed=f"quick {kind}")


def test_a_large_file_of_a_cache_is_compared_when_its_time_changed(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    text = "x" * 2000
    corpus.write_text("".join(f'{{"_id": "d{number}", "title": "t", "text": "{text}"}}\n' for number in range(700)))
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    with use_cache(tmp_path / "cache"):
        whole = [*CorpusStore.open(tmp_path / "corpus.jsonl.gz")]
        (kept,) = (tmp_path / "cache" / "corpora").glob("*/corpus.jsonl")
        assert kept.stat().st_size > SMALL_FILE_BYTES
        kept.write_bytes(bytes(kept.stat().st_size))
        assert [*CorpusStore.open(tmp_path / "corpus.jsonl.gz")] == whole


@pytest.fixture
def index(collection: Collection, tmp_path: Path) -> Path:
    return Path(shutil.copytree(collection["exact"], tmp_path / "index"))


def test_validate_lists_changed_files(index):
    assert b"no problems found" in run_successfully("validate", str(index)).out
    (index / "ranks.npy").unlink()
    (index / "ids.txt").write_bytes(b"x")
    outcome = run_in_process("validate", str(index))
    assert (outcome.status, outcome.err) == (1, f"drtk: {index}: 2 errors\n")
    assert f"{index}: ranks.npy: is missing" in outcome.out.decode()
    assert "ids.txt: has 1 bytes, expected " in outcome.out.decode()
    assert run_in_process("validate", str(index), "--as", "run").status == 2


def test_validate_compares_large_files_that_loading_skips(tmp_path):
    vectors = Path(write_embeddings(tmp_path / "v", np.ones((4, 100_000))))
    array = bytearray((vectors / "00000.npy").read_bytes())
    array[len(array) // 2] ^= 1
    (vectors / "00000.npy").write_bytes(array)
    run_successfully("index", str(vectors), "--type", "exact", "-o", str(tmp_path / "i"), "-q")
    outcome = run_in_process("validate", str(vectors))
    assert outcome.status == 1
    assert b"00000.npy: its content changed after it was written" in outcome.out


def test_a_folder_without_digests_is_opened_without_a_check(index):
    remove_records(index)
    outcome = run_successfully("validate", str(index))
    assert b"warning  not-compared" in outcome.out
    (index / "ids.txt").write_bytes((index / "ids.txt").read_bytes().replace(b"d1\n", b"dX\n"))
    assert run_in_process("show", str(index)).status == 0


@pytest.mark.parametrize(("id", "value", "problem"), [("", 1, "the id is blank"), ("d2", np.nan, "NaN or infinity")])
def test_validate_reads_vectors_without_digests(tmp_path, id, value, problem):
    vectors = Path(write_embeddings(tmp_path / "v", np.full((4, 3), 1.0)))
    ids = (vectors / "00000.ids").read_text().splitlines()
    (vectors / "00000.ids").write_text("\n".join([*ids[:2], id or " ", *ids[3:]]) + "\n")
    array = np.load(vectors / "00000.npy")
    array[2, 1] = value
    np.save(vectors / "00000.npy", array)
    remove_records(vectors)
    outcome = run_in_process("validate", str(vectors))
    assert outcome.status == 1
    assert problem.encode() in outcome.out


def test_skip_done_rebuilds_a_damaged_folder(collection, index):
    call = ["index", str(collection["vectors"]), "--type", "exact", "-o", str(index), "--skip-done", "--force", "-q"]
    (index / "ids.txt").write_bytes(b"d0\n")
    run_successfully(*call)
    assert b"no problems found" in run_successfully("validate", str(index)).out


def test_a_faiss_index_without_its_factory_or_exact_vectors_is_rejected(collection, tmp_path):
    index = tmp_path / "i"
    run_successfully("index", str(collection["vectors"]), "--type", "SQ8", "-o", str(index), "-q")
    call = ["search", str(index), str(collection["queries.jsonl"]), "--quiet"]
    assert (index / "full.npy").exists()
    shutil.copytree(index, tmp_path / "without")
    (tmp_path / "without" / "full.npy").unlink()
    outcome = run_in_process("search", str(tmp_path / "without"), *call[2:])
    assert outcome.status == 1
    assert outcome.err.startswith(f"drtk: {tmp_path}/without/full.npy: is missing; rebuild the folder with drtk index")
    remove_records(index)
    (index / "faiss.json").write_text("{}")
    outcome = run_in_process(*call)
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert "faiss.json: expected 'factory' to be a string, but it is missing" in outcome.err


@pytest.mark.parametrize(
    ("name", "file", "keys", "value"),
    [("vectors", "meta.json", ("encoder", "recipe"), "x"), ("bm25s", "params.index.json", ("dtype",), {})],
)
def test_a_wrong_type_in_a_manifest_without_digests_is_a_one_line_error(name, file, keys, value, collection, tmp_path):
    index = tmp_path / "i"
    if name == "vectors":
        run_successfully("index", str(collection["vectors"]), "--type", "exact", "-o", str(index), "-q")
    else:
        shutil.copytree(collection[name], index)
    remove_records(index)
    content = orjson.loads((index / file).read_bytes())
    entry = content
    for key in keys[:-1]:
        entry = entry[key]
    entry[keys[-1]] = value
    (index / file).write_bytes(orjson.dumps(content))
    outcome = run_in_process("search", str(index), str(collection["queries.jsonl"]), "--quiet")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)


def test_a_models_other_files_may_be_edited(collection, tmp_path):
    model = Path(shutil.copytree(collection["model"], tmp_path / "m"))
    (model / "README.md").write_text("A model.\n")
    settings = orjson.loads((model / "sentence_bert_config.json").read_bytes())
    (model / "sentence_bert_config.json").write_bytes(orjson.dumps(settings | {"max_seq_length": 32}))
    call = ["encode", str(collection["queries.jsonl"]), "--role", "query", "--model", str(model), "-q"]
    outcome = run_successfully(*call, "-o", str(tmp_path / "v"))
    assert outcome.err.count("sentence_bert_config.json: has ") == 1
    assert run_in_process("validate", str(model)).status == 1
    weights = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(weights[:-4] + bytes(4))
    outcome = run_in_process(*call, "-o", str(tmp_path / "w"))
    assert outcome.status == 1
    assert "model.safetensors: its content changed" in outcome.err.splitlines()[-1]
