"""drtk chunk on real documents: 745 PEPs and 490 Wikipedia articles."""

import gzip
import json
import subprocess
import sys

import pytest

from tests.shared_data import find_shared_data
from tests.tiny_models import find_minilm

pytestmark = pytest.mark.slow
FILES = {"peps": 745, "squad": 490}


def find_documents(name):
    return find_shared_data(name) / "documents.jsonl.gz"


def read_documents(name):
    with gzip.open(find_documents(name), "rt", encoding="utf-8") as lines:
        return {row["id"]: row for row in map(json.loads, lines)}


def chunk(name, *options):
    done = subprocess.run(
        [sys.executable, "-m", "drtk", "chunk", str(find_documents(name)), *map(str, options)],
        capture_output=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("policy", ["greedy", "condenser", "cotmae", "words"])
def test_every_policy_keeps_every_word_of_every_document(name, policy):
    texts = {}
    for row in chunk(name, "--policy", policy, "--max-words", 100):
        source = row["metadata"]["source_id"]
        assert row["_id"] == f"{source}#{len(texts.setdefault(source, []))}"
        texts[source].append(row["text"])
        if policy in ("greedy", "words"):
            assert len(row["text"].split()) <= 100
    documents = read_documents(name)
    assert len(documents) == FILES[name]
    # Compare without white space, because sentences may end without it, as in `Really?)they`.
    assert {id: "".join("".join(parts).split()) for id, parts in texts.items()} == {
        id: "".join(row["text"].split()) for id, row in documents.items()
    }


@pytest.mark.parametrize("name", FILES)
def test_no_passage_exceeds_the_models_maximum_length(name):
    from transformers import AutoTokenizer

    tokenizer = find_minilm()
    rows = chunk(name, "--tokenizer", tokenizer, "--max-tokens", 128, "--set", "reserve_special=true")
    encoded = AutoTokenizer.from_pretrained(tokenizer)([row["text"] for row in rows], truncation=False)["input_ids"]
    assert max(map(len, encoded)) <= 128
    num_long = sum(len(ids) > 64 for ids in encoded)
    assert num_long > 0.8 * len(encoded)  # most passages have more than half of the maximum length
    documents = read_documents(name)
    joined = {}
    for row in rows:
        joined.setdefault(row["metadata"]["source_id"], []).append(row["text"])
    for id, parts in joined.items():
        assert "".join("".join(parts).split()) == "".join(documents[id]["text"].split())


@pytest.mark.parametrize("keep", [False, True])
def test_sentences_do_not_cross_paragraphs(keep):
    rows = chunk("peps", "--paragraphs", *(["--set", "keep_whitespace=true"] if keep else []))
    for row in rows:
        sentences = [row["text"][begin:end] for begin, end in row["metadata"]["sentences"]]
        assert all(sentence == sentence.strip() and "\n\n" not in sentence for sentence in sentences)
