"""Damage folders of every kind 500 times: the results are unchanged, or there is a one-line error."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from drtk.data.corpus_store import CorpusStore
from drtk.runtime.integrity import compute_content_digest
from drtk.text.token_dataset import TokenCorpus
from drtk.text.word_pieces import WordPieceTokenizer
from tests.bm25_data import skip_without_lucene
from tests.damage import INDEXES, MODELS, Subjects, check_cache_damages, check_damages

pytestmark = pytest.mark.slow
COUNT, UNRECORDED = 500, 150


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Subjects:
    return Subjects(tmp_path_factory.mktemp("subjects"))


@pytest.mark.parametrize("name", [*INDEXES, "embeddings", *MODELS])
def test_a_damaged_folder_gives_the_same_results_or_a_one_line_error(
    name: str, folders: Subjects, tmp_path: Path
) -> None:
    if name in ("bm25", "impact"):
        skip_without_lucene()
    assert check_damages(folders[name], COUNT, tmp_path, seed=name) > COUNT * 0.6


@pytest.mark.parametrize("name", [*INDEXES, "embeddings", *MODELS])
def test_a_damaged_folder_without_digests_causes_no_traceback(name: str, folders: Subjects, tmp_path: Path) -> None:
    if name in ("bm25", "impact"):
        skip_without_lucene()
    check_damages(folders[name], UNRECORDED, tmp_path, seed=name, unrecorded=True)


@pytest.mark.parametrize("name", ["exact", "bm25s", "embeddings", "encoder", "list_reranker"])
def test_validate_finds_every_change(name: str, folders: Subjects, tmp_path: Path) -> None:
    from tests.damage import check_validate

    check_validate(folders[name], COUNT, tmp_path, seed=name)


def test_a_damaged_token_cache_is_rebuilt(folders: Subjects, tmp_path: Path) -> None:
    corpus, model = folders.collection["queried.jsonl"], WordPieceTokenizer(str(folders.collection["model"]))

    def use() -> list[list[int]]:
        tokens = TokenCorpus.open(str(corpus), model, fields=["queries"])
        rows = range(len(tokens))
        return [
            [*tokens.get_text(row).ids, *tokens.get_title(row).ids, *map(len, tokens.get_queries(row))] for row in rows
        ]

    check_cache_damages("tokens", use, COUNT, tmp_path, seed="tokens")


def test_a_damaged_corpus_cache_is_rebuilt(folders: Subjects, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl.gz"
    corpus.write_bytes(gzip.compress(folders.collection["documents.jsonl"].read_bytes()))
    check_cache_damages("corpora", lambda: [*CorpusStore.open(corpus)], COUNT, tmp_path, seed="corpora")


def test_a_damaged_digest_cache_is_rebuilt(folders: Subjects, tmp_path: Path) -> None:
    corpus = folders.collection["documents.jsonl"]
    check_cache_damages("digests", lambda: compute_content_digest(corpus), COUNT, tmp_path, seed="digests")
