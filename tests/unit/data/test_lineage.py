"""From an output back to its corpus, by manifests."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from drtk.data.checks import Origin, check_origin, origin_of, origins_of
from drtk.errors import DrtkError, MismatchError
from drtk.runtime.streams import digest_file
from tests.running import command, piped, write
from tests.tiny import tiny_crossencoder, tiny_model


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Origin:
    """A corpus with an index, a run and examples made of it."""
    monkeypatch.chdir(tmp_path)
    rows = [{"_id": f"d{at}", "text": f"wing lift {at}"} for at in range(9)]
    write(tmp_path / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(tmp_path / "queries.jsonl", '{"_id": "q1", "text": "wing 3"}\n')
    write(tmp_path / "qrels.tsv", "q1\td3\t1\n")
    (tmp_path / "empty").mkdir()  # no model, but a folder: where a model should be there, it is looked at last
    for call in (
        "index corpus.jsonl --type bm25s -o index",
        "search index queries.jsonl -k 5 -o a.run",
        "mine-negatives a.run --qrels qrels.tsv --corpus corpus.jsonl -o examples.jsonl",
        "mine-negatives a.run --qrels qrels.tsv -o others.jsonl",
    ):
        command(capfd, *call.split())
    return Origin("corpus.jsonl", digest_file("corpus.jsonl"))


def test_an_index_a_run_and_examples_lead_to_their_corpus(corpus: Origin) -> None:
    for name in ("index", "a.run", "examples.jsonl"):
        assert origin_of(name) == corpus, name


def test_what_cannot_be_known_is_not_guessed(corpus: Origin, tmp_path: Path) -> None:
    assert origin_of("corpus.jsonl") is None
    (tmp_path / "a.run.meta.json").write_text("torn")
    assert origin_of("a.run") is None
    assert origin_of("others.jsonl") is None


def test_examples_that_were_mined_without_a_corpus_lead_to_that_of_their_runs(
    corpus: Origin, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("new.jsonl").write_text(Path("corpus.jsonl").read_text() + '{"_id": "d10", "text": "more"}\n')
    new = Origin("new.jsonl", digest_file("new.jsonl"))
    assert origins_of("others.jsonl") == [corpus]
    for call in (
        "index new.jsonl --type bm25s -o new-index",
        "search new-index queries.jsonl -k 5 -o b.run",
        "mine-negatives one=a.run b.run --qrels qrels.tsv -o mixed.jsonl",
        "fuse a.run b.run -o fused.run",
        "mine-negatives a.run --qrels qrels.tsv --corpus new.jsonl --another-corpus --floor 0 -o looked-up.jsonl",
    ):
        command(capfd, *call.split())
    assert origins_of("mixed.jsonl") == origins_of("fused.run") == [corpus, new]
    assert origins_of("looked-up.jsonl") == [new]  # where all its ids were looked up
    words = ["--queries", "queries.jsonl", "--model", "empty", "-o", "out"]
    with pytest.raises(MismatchError, match=r"others\.jsonl: was made from another corpus \(corpus\.jsonl, "):
        command(capfd, "train-retriever", "others.jsonl", "--corpus", "new.jsonl", *words)


def test_what_was_searched_for_is_no_corpus(corpus: Origin, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny_model(tmp_path / "model")
    for call in (
        "encode corpus.jsonl --model model -o vectors",
        "encode queries.jsonl --role query --model model -o asked",
        "index vectors --type exact -o dense",
        "search dense asked -k 5 -o dense.run",
    ):
        command(capfd, *call.split())
    assert origin_of("asked") is None
    assert origins_of("dense.run") == [corpus]
    Path("dense/meta.json").write_text("torn")
    assert origin_of("dense.run") is None


def test_where_no_source_tells_the_corpus_that_texts_were_looked_up_in_does(
    corpus: Origin, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny_crossencoder(tmp_path / "scorer")
    texts = "--corpus corpus.jsonl --queries queries.jsonl --model scorer -q"
    command(capfd, *f"score examples.jsonl {texts} -o scored.jsonl".split())
    with piped(Path("examples.jsonl").read_bytes()) as stdin:
        command(capfd, *f"score {stdin} {texts} -o of-a-pipe.jsonl".split())
    with open("examples.jsonl", "a") as file:
        file.write("\n")
    for name in ("scored.jsonl", "of-a-pipe.jsonl"):
        assert origins_of(name) == [corpus], name
    os.utime("corpus.jsonl", ns=(1, 1))  # of the same content, as its size and digest say: but nobody noted a digest
    assert origins_of("scored.jsonl") == []


def test_an_index_that_was_made_again_no_longer_tells(corpus: Origin, capfd: pytest.CaptureFixture[str]) -> None:
    Path("corpus.jsonl").write_text('{"_id": "d3", "text": "other"}\n')
    command(capfd, "index", "corpus.jsonl", "--type", "bm25s", "-o", "index", "--force")
    assert origin_of("a.run") is None


def test_copies_tell_what_their_sources_tell(corpus: Origin, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny_crossencoder(tmp_path / "model")
    # Where the model comes from says nothing of what it scores.
    learnt = {"command": "drtk train-reranker", "kind": "model", "settings": {"corpus": "theirs"}}
    entry = {"path": "theirs", "digest": "0" * 32}
    write(tmp_path / "model" / "meta.json", json.dumps(learnt | {"inputs": [entry]}))
    texts = "--corpus corpus.jsonl --queries queries.jsonl --model model -q"
    for call in (
        f"score examples.jsonl {texts} -o scored.jsonl",
        f"rerank a.run {texts} -o b.run",
        "convert examples.jsonl scored.jsonl --as examples -o both.jsonl",
    ):
        command(capfd, *call.split())
        assert origin_of(call.split()[-1]) == corpus, call
    assert origins_of("both.jsonl") == [corpus, corpus]
    assert origin_of("model") is None
    with open("scored.jsonl", "a") as file:
        file.write("\n")
    assert origins_of("both.jsonl") == [corpus]  # the other part is no longer what it was


def test_each_part_of_several_is_looked_at(corpus: Origin, capfd: pytest.CaptureFixture[str]) -> None:
    Path("new.jsonl").write_text(Path("corpus.jsonl").read_text() + '{"_id": "d10", "text": "more"}\n')
    for call in (
        "index new.jsonl --type bm25s -o other",
        "mine-negatives other --queries queries.jsonl --qrels qrels.tsv --corpus new.jsonl --depth 5 -o new-examples.jsonl",
        "convert examples.jsonl new-examples.jsonl --as examples -o both.jsonl",
    ):
        command(capfd, *call.split())
    texts = ["--queries", "queries.jsonl", "--model", "empty", "-o", "out"]
    for name, other in (("corpus.jsonl", r"new\.jsonl"), ("new.jsonl", r"corpus\.jsonl")):
        with pytest.raises(MismatchError, match=rf"both\.jsonl: was made from another corpus \({other}, "):
            command(capfd, "train-retriever", "both.jsonl", "--corpus", name, *texts)


def test_another_corpus_is_refused(corpus: Origin) -> None:
    check_origin("index", corpus, override="--x")
    problem = (
        r"index: was made from another corpus \(corpus\.jsonl, digest [0-9a-f]{8}\) than new \(digest 0000\); .*: --x$"
    )
    with pytest.raises(MismatchError, match=problem):
        check_origin("index", Origin("new", "0000"), override="--x")


@pytest.mark.parametrize("call", ["score", "rerank", "train-retriever", "train-reranker"])
def test_examples_of_another_corpus_are_refused_where_their_texts_are_looked_up(
    call: str, corpus: Origin, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("new.jsonl").write_text(Path("corpus.jsonl").read_text() + '{"_id": "d10", "text": "more"}\n')
    made = "a.run" if call == "rerank" else "examples.jsonl"
    words = [
        call,
        made,
        "--corpus",
        "new.jsonl",
        "--queries",
        "queries.jsonl",
        "--model",
        "empty",
        "-o",
        "out",
    ]
    problem = rf"{made}: was made from another corpus \(corpus\.jsonl, .* than new\.jsonl .*--another-corpus$"
    with pytest.raises(MismatchError, match=problem):
        command(capfd, *words)
    with pytest.raises(DrtkError) as caught:  # what is wrong with it then is something else
        command(capfd, *words, "--another-corpus")
    assert "another corpus" not in str(caught.value)
    assert not Path("out").exists()
