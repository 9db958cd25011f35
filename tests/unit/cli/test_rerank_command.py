"""drtk rerank, score and HLATR: order, vectors, resuming, warnings, and rejected inputs."""

import contextlib
import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertForSequenceClassification

from drtk.cli.main import app
from drtk.data.embeddings import PairVectors
from drtk.errors import DrtkError, MismatchError, RecordError, UsageError
from drtk.models.config import CrossEncoderSettings
from drtk.models.cross_encoder import CrossEncoderScorer, identify_scorer
from drtk.models.list_reranker import ListReranker, ListRerankerConfig, load_list_reranker, save_list_reranker
from drtk.retrieval.rerank import check_same_scorer, reorder_ranking
from drtk.runtime.integrity import read_json
from tests.expansion_collection import read_rows, write_rows
from tests.run_commands import kill_at, read_files, read_log, run_command
from tests.tiny_models import make_collection, save_tiny_cross_encoder, write_collection

TEXTS = "--corpus corpus.jsonl --queries queries.jsonl --model model".split()
HLATR = "train-reranker run --vectors pairs --qrels qrels.tsv --preset hlatr --device cpu --batch-size 20".split()
PASSAGES, QUERIES, _ = make_collection(60)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_collection(folder, 60)
    save_tiny_cross_encoder(folder / "model")
    save_tiny_cross_encoder(folder / "other", seed=2)
    lines = [
        f"q{query} Q0 d{(query * 7 + at * 11) % 60} {at + 1} {30 - at} bm25\n"
        for query in range(60)
        for at in range(12)
    ]
    (folder / "run").write_text("".join(lines))
    judged = "".join(f"q{query}\td{(query * 7 + (query % 5) * 11) % 60}\t1\n" for query in range(60))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    with contextlib.chdir(folder):
        run("rerank", "run", *TEXTS, "--save-vectors", "pairs", "-o", "reranked")
    return folder


@pytest.fixture
def cwd(data: Path, folder: Path) -> Path:
    for path in data.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def rankings(path: str) -> dict[str, list[tuple[str, float]]]:
    results: dict[str, list[tuple[str, float]]] = {}
    for query, _, id, _, score, _ in map(str.split, Path(path).read_text().splitlines()):
        results.setdefault(query, []).append((id, float(score)))
    return results


def warnings_of(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command and return its stderr."""
    capfd.readouterr()
    app([*arguments], standalone_mode=False)
    return capfd.readouterr().err


def make_pair(query: int, passage: int) -> tuple[str, str]:
    """Return the texts of a query and a passage with its title."""
    return QUERIES[query]["text"], f"{PASSAGES[passage]['title']} {PASSAGES[passage]['text']}"


def run(*arguments: str) -> None:
    app([*arguments, "-q"], standalone_mode=False)


def rerank_lists(output: str, *more: str, source: str = "run", vectors: str = "pairs") -> None:
    """Rerank a run with the HLATR model h."""
    run("rerank", source, "--vectors", vectors, "--model", "h", "-o", output, *more)


def test_reranked_documents_come_first_and_the_rest_follows(cwd):
    run("rerank", "run", *TEXTS, "--depth", "5", "-o", "out")
    before, after = rankings("run"), rankings("out")
    assert list(after) == list(before)
    for query in ("q0", "q17", "q59"):
        head = [id for id, _ in before[query][:5]]
        pairs = [make_pair(int(query[1:]), int(id[1:])) for id in head]
        scores = dict(zip(head, CrossEncoderScorer("model")(pairs).tolist(), strict=True))
        assert [id for id, _ in after[query][:5]] == sorted(head, key=scores.__getitem__, reverse=True)
        for id, score in after[query][:5]:
            assert score == pytest.approx(scores[id], abs=5e-5)
        assert [id for id, _ in after[query][5:]] == [id for id, _ in before[query][5:]]
        single = np.array([score for _, score in after[query]], dtype=np.float32)
        assert (np.diff(single) < 0).all()


def test_documents_beyond_the_depth_stay_below_in_their_order():
    # ties go by descending id; the least of the head is -7, so the rest begins at -8
    ranking = [("a", 9.0), ("b", 8.0), ("c", 7.0), ("d", 6.0), ("e", 5.0)]
    assert reorder_ranking(ranking, [-7.0, 3.0, 3.0])[2:] == [("a", -7.0), ("d", -8.0), ("e", -9.0)]
    (first, one), (second, two) = reorder_ranking(ranking, [-7.0, 3.0, 3.0])[:2]
    assert (first, second) == ("c", "b")
    assert one == 3.0 > two
    assert reorder_ranking(ranking[:2], [1.0, 2.0]) == [("b", 2.0), ("a", 1.0)]


def test_scores_are_added_to_examples_and_other_fields_are_kept(cwd):
    rows = [
        {"query_id": "q3", "positives": ["d3", "d4"], "negatives": ["d7", "d9"], "sources": {"negatives": ["x", "y"]}},
        {"query_id": "q5", "positives": ["d5"], "negatives": [], "scores": {"positives": [9.0], "negatives": []}},
    ]
    rows[1]["a"] = 1
    write_rows("e.jsonl", rows)
    run("score", "e.jsonl", *TEXTS, "--set", "title=none", "-o", "scored.jsonl")
    actual = read_rows("scored.jsonl")
    assert [{**row, "scores": None} for row in actual] == [{**row, "scores": None} for row in rows]
    pairs = [(QUERIES[3]["text"], PASSAGES[at]["text"]) for at in (3, 4, 7, 9)]
    expected = CrossEncoderScorer("model", settings=CrossEncoderSettings())(pairs)
    assert [*actual[0]["scores"]["positives"], *actual[0]["scores"]["negatives"]] == pytest.approx(
        expected.tolist(), abs=1e-5
    )
    assert actual[1]["scores"]["negatives"] == []
    assert actual[1]["scores"]["positives"] != [9.0]
    run("score", "e.jsonl", *TEXTS, "--set", "title=none", "--set", "logits=true", "-o", "logits.jsonl")
    logit = read_rows("logits.jsonl")[0]["scores"]["positives"][0]
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(expected[0], abs=1e-5)


def test_a_sample_of_the_examples_is_scored_evenly_spread(cwd):
    rows = [{"query_id": f"q{at}", "positives": [f"d{at}"], "negatives": [f"d{59 - at}"]} for at in range(10)]
    write_rows("e.jsonl", rows)
    run("score", "e.jsonl", *TEXTS, "-o", "all.jsonl")
    run("score", "e.jsonl", *TEXTS, "--sample", "4", "-o", "some.jsonl")
    every, some = read_rows("all.jsonl"), read_rows("some.jsonl")
    # 4 of 10: at 2, 4, 7 and 9, where 4(n + 1)/10 passes a whole number
    assert [row["query_id"] for row in some] == ["q2", "q4", "q7", "q9"]
    for row in some:
        expected = every[int(row["query_id"][1:])]["scores"]
        for side in ("positives", "negatives"):
            assert row["scores"][side] == pytest.approx(expected[side], abs=1e-5)
    # What is left out counts for nothing, and a fault is told with the line it has in the file.
    rows[4]["negatives"] = ["d999"]
    (cwd / "e.jsonl").write_text("torn\n" + "".join(json.dumps(row) + "\n" for row in rows))
    run("score", "e.jsonl", *TEXTS, "--sample", "4", "--skip-bad", "2", "-o", "fewer.jsonl")
    assert [row["query_id"] for row in read_rows("fewer.jsonl")] == ["q2", "q7", "q9"]
    with pytest.raises(RecordError, match=r"^e\.jsonl:6: the corpus has no 'd999'"):
        run("score", "e.jsonl", *TEXTS, "--sample", "4", "--skip-bad", "1", "-o", "x.jsonl")


def test_unknown_ids_are_reported_with_file_and_line(cwd):
    lines = (cwd / "run").read_text().splitlines(keepends=True)[:24]
    bad = [*lines[:3], "q0 Q0 nowhere 4 26.5 t\n", *lines[3:], "q99 Q0 d1 1 1.0 t\n", "q98 Q0 d1 1 1.0 t\n"]
    (cwd / "bad").write_text("".join(bad))
    with pytest.raises(RecordError, match=r"^bad:4: the corpus has no 'nowhere'$"):
        run("rerank", "bad", *TEXTS, "-o", "out")
    assert not (cwd / "out").exists()
    run("rerank", "bad", *TEXTS, "--depth", "3", "-o", "shallow", "--skip-bad", "2")  # not among the first three
    assert list(rankings("shallow")) == ["q0", "q1"]
    run("rerank", "bad", *TEXTS, "-o", "out", "--skip-bad", "3")
    (cwd / "good").write_text("".join(lines))
    run("rerank", "good", *TEXTS, "-o", "expected")
    assert (cwd / "out").read_bytes() == (cwd / "expected").read_bytes()
    examples = [
        {"query_id": "q1", "positives": ["d1"], "negatives": ["d2"]},
        {"query_id": "q99", "positives": ["d1"], "negatives": ["d98", "d97"]},
    ]
    write_rows("e.jsonl", examples)
    with pytest.raises(RecordError, match=r"^e\.jsonl:2: the queries have no 'q99'$"):
        run("score", "e.jsonl", *TEXTS, "-o", "scored")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("rerank run --queries queries.jsonl --model model", UsageError, "--corpus is required by a cross-encoder"),
        ("rerank run --corpus corpus.jsonl --model model", UsageError, "--queries is required by a cross-encoder"),
        ("rerank run TEXTS --set tag=a\tb", UsageError, "--set tag: .* must be one word"),
        ("rerank run TEXTS --max-length 65", MismatchError, "model: cannot read 65 tokens; use at most 64"),
        ("score run TEXTS", MismatchError, "run: looks like hits of a TREC run; expected training examples, such as"),
        ("score - TEXTS --sample 4", UsageError, "--sample requires a file, because the examples are counted first"),
        ("rerank examples.jsonl TEXTS", MismatchError, "examples.jsonl: looks like training examples; expected a TREC"),
    ],
)
def test_contradictory_options_and_swapped_inputs_are_rejected(cwd, call, error, message):
    with pytest.raises(error, match=message):
        run(*call.replace("TEXTS", " ".join(TEXTS)).split(" "), "-o", "out")


def test_a_hint_at_swapped_queries_and_corpus(cwd, capfd):
    write_rows("bare.jsonl", ({"_id": row["_id"], "text": row["text"]} for row in read_rows("queries.jsonl")))
    run("rerank", "run", *TEXTS, "--depth", "2", "-o", "known.run")  # its manifest names the corpus
    for call in (["score", "examples.jsonl"], ["rerank", "run"], ["rerank", "known.run"]):
        with pytest.raises(DrtkError):
            run(*call, "--corpus", "bare.jsonl", "--queries", "corpus.jsonl", *TEXTS[4:], "-o", "x")
        assert "corpus.jsonl: looks like passages; expected queries" in capfd.readouterr().err


def test_a_non_finite_score_of_a_list_reranker_is_reported_with_the_query(cwd):
    model = ListReranker(ListRerankerConfig(width=32))
    torch.nn.init.constant_(model.head.bias, float("nan"))
    save_list_reranker(model, cwd / "h")
    with pytest.raises(DrtkError, match=r"^h: the score of query '\w+' is NaN or infinite; check the model's weights$"):
        rerank_lists("x")


def test_pair_vectors_are_written_in_addition_to_the_run(cwd):
    run("rerank", "run", *TEXTS, "--depth", "4", "--save-vectors", "v", "--set", "vector_dtype=float32", "-o", "out")
    run("rerank", "run", *TEXTS, "--depth", "4", "-o", "plain")
    assert rankings("out").keys() == rankings("plain").keys()
    assert (cwd / "v" / "00000.ids").read_text().splitlines()[:2] == ["q0\td0", "q0\td11"]
    meta = read_json(cwd / "v" / "meta.json")
    assert (meta["role"], meta["dimension"], meta["counts"]["pairs"]) == ("pair", 32, 240)
    found = PairVectors("v")
    scorer = CrossEncoderScorer("model")
    # 20 * 7 + 11 = 151 = 31 of 60
    [expected] = scorer.compute_scores_and_vectors(scorer.tokenize([make_pair(20, 31)]))[1]
    np.testing.assert_allclose(found.load_vectors(found.find_rows("q20", ["d31"]))[0], expected, atol=5e-5)
    with pytest.raises(MismatchError, match="v: contains vectors of pairs; give passage embeddings"):
        run("index", "v", "--type", "exact", "-o", "index")


def test_a_killed_run_with_vectors_resumes_to_the_same_bytes(cwd, capfd):
    # 180 queries are three batches of 64
    lines = (cwd / "run").read_text().splitlines()
    Path("long").write_text("".join(line.replace("q", f"r{copy}q", 1) + "\n" for copy in range(3) for line in lines))
    write_rows("many.jsonl", (r | {"_id": f"r{n}{r['_id']}"} for n in range(3) for r in read_rows("queries.jsonl")))
    call = "rerank long --corpus corpus.jsonl --queries many.jsonl --model model --depth 2 --max-length 16".split()
    actual = ["-o", "out", "--save-vectors", "v"]
    kill_at(cwd / "v.part" / "00001.npy", *call, *actual)
    assert not (cwd / "out").exists()
    with pytest.raises(DrtkError, match="use `resume` to continue"):
        run(*call, *actual)
    assert "resuming out after" in warnings_of(capfd, *call, *actual, "--resume")
    run(*call, "-o", "whole", "--save-vectors", "w")
    assert (cwd / "out").read_bytes() == (cwd / "whole").read_bytes()
    files = [read_files(cwd / name) for name in "vw"]
    assert {"00002.npy", "00002.ids"} < files[0].keys() == files[1].keys()
    manifests = [content.pop("meta.json") for content in files]
    assert files[0] == files[1]
    for fact in ("scorer", "dimension", "shards", "role"):
        assert manifests[0][fact] == manifests[1][fact]
    assert "is up to date" in warnings_of(capfd, *call, *actual, "--skip-done")


def test_a_list_re_ranker_is_trained_and_used_from_vectors_alone(cwd, capfd):
    (cwd / "dev" / "qrels").mkdir(parents=True)
    (cwd / "dev" / "qrels" / "dev.tsv").symlink_to(cwd / "qrels.tsv")
    call = [*HLATR, *"--set depth=10 --max-steps 60 --set layers=1 --set eval_steps=20 --set log_steps=10".split()]
    call += "--dev dev --dev-run run".split()
    run(*call, "-o", "h")
    log = read_log(cwd / "h")
    losses = [entry["loss"] for entry in log if "loss" in entry]
    assert [entry["step"] for entry in log if "RR@10" in entry] == [0, 20, 40, 60]
    # The judged document stands at rank 1 to 5 of 10: log 10 = 2.30 where nothing is known, log 5 = 1.61 where that is.
    assert losses[0] > losses[-1]
    assert losses[-1] < 1.75
    rerank_lists("listed")
    before, after = rankings("run"), rankings("listed")
    for query, hits in before.items():
        assert {id for id, _ in after[query][:10]} == {id for id, _ in hits[:10]}
        assert [id for id, _ in after[query][10:]] == [id for id, _ in hits[10:]]
    best = read_json(cwd / "h" / "meta.json")["best"]
    assert f"{best['RR@10']:.4f}" in run_command(capfd, "eval", "listed", "--qrels", "qrels.tsv", "--measures", "RR@10")
    for more, message in {
        "--depth 11": r"--depth 11: .*h was trained on 10 candidates",
        "--corpus corpus.jsonl": "h: HLATR models rerank by vectors",
        "--save-vectors w": "h: HLATR models rerank by vectors",
        "--set title=colon": r"^`title` requires a cross-encoder; h",
        "--max-length 30": r"^`max_length` requires a cross-encoder; h",
        "--skip-corpus-check": r"^`skip_corpus_check` requires a cross-encoder; h",
    }.items():
        with pytest.raises(UsageError, match=message):
            rerank_lists("x", *more.split())
    with pytest.raises(UsageError, match="--vectors requires an HLATR model; use --save-vectors"):
        run("rerank", "run", *TEXTS, "--vectors", "w", "-o", "x")
    capfd.readouterr()
    other = "60 of 60 queries rank their documents differently from run, from which pairs was made; a list reranker"
    rerank_lists("twice", source="listed")
    assert f"drtk: listed: {other} requires the retrieval ranks\n" in capfd.readouterr().err
    run(*[*call[:1], "listed", *call[2:-1], "listed"], "--force", "-o", "h2")
    said = capfd.readouterr().err
    assert f"drtk: listed: {other}" in said
    assert "drtk: the dev run: " in said
    lines = Path("run").read_bytes().splitlines(keepends=True)
    Path("half.gz").write_bytes(gzip.compress(b"".join(lines[: len(lines) // 2])))  # the same lists, some of them
    rerank_lists("some", source="half.gz")
    assert capfd.readouterr().err == ""
    assert Path("listed").read_bytes().startswith(Path("some").read_bytes())
    (cwd / "deeper").write_text("q0 Q0 d0 1 3.0 t\nq0 Q0 d59 2 2.0 t\n")
    with pytest.raises(RecordError, match="deeper:2: pairs has no vector of document 'd59' for query 'q0'"):
        rerank_lists("x", source="deeper")
    run("rerank", "run", *TEXTS[:4], "--model", "other", "--depth", "10", "--save-vectors", "w", "-o", "second")
    with pytest.raises(MismatchError, match=r"w: contains vectors of .*other, but .*h requires vectors of .*model"):
        rerank_lists("x", vectors="w")


@pytest.mark.parametrize(("file", "named"), [("config.json", "config"), ("tokenizer_config.json", "tokenizer")])
def test_pair_vectors_of_a_model_with_another_config_or_tokenizer_are_rejected(data, tmp_path, file, named):
    path = Path(shutil.copytree(data / "model", tmp_path / "m"), file)
    trained = identify_scorer(str(tmp_path / "m"))
    path.write_text(json.dumps(read_json(path) | {"note": 1}))
    with pytest.raises(MismatchError, match=rf"v: contains vectors of .*m \(different {named}\)"):
        check_same_scorer("h", trained, "v", identify_scorer(str(tmp_path / "m")))


def test_logits_of_the_list_reranker_preset_depend_on_the_ranks(cwd):
    """The check of docs/methods/hlatr.md with the commands, the sizes of the preset and 12 candidates per query."""
    run(*HLATR, "--max-steps", "2", "-o", "h")
    model, vectors = load_list_reranker(cwd / "h"), PairVectors("pairs")
    assert model.settings == ListRerankerConfig(
        width=32, depth=100, hidden=128, layers=4, heads=2, feedforward=768, dropout=0.1
    )
    order = [7, 0, 11, 4, 2, 9, 1, 10, 3, 8, 6, 5]
    before, permuted = rankings("run"), ""
    for query, hits in before.items():
        permuted += "".join(f"{query} Q0 {hits[at][0]} {rank + 1} {30 - rank} t\n" for rank, at in enumerate(order))
    (cwd / "permuted").write_text(permuted)
    rerank_lists("listed")
    rerank_lists("alone", source="permuted")
    listed, alone = rankings("listed"), rankings("alone")
    ranks, present = torch.tensor([order]), torch.ones(1, 12, dtype=torch.bool)
    for query, hits in before.items():
        names = [hits[at][0] for at in order]
        items = torch.from_numpy(vectors.load_vectors(vectors.find_rows(query, names))).float()[None]
        told, changed = (dict(scored[query]) for scored in (listed, alone))
        with torch.no_grad():
            together, apart = model(items, ranks, present)[0], model(items, torch.arange(12)[None], present)[0]
        # with its rank an item keeps its logit wherever it stands; with another rank it has another
        assert [told[id] for id in names] == pytest.approx(together.tolist(), abs=1e-4)
        assert [changed[id] for id in names] == pytest.approx(apart.tolist(), abs=1e-4)
        assert max(abs(told[id] - changed[id]) for id in names) > 1e-2


def test_queries_without_a_positive_are_counted_and_an_error_if_all_lack_one(cwd, capfd):
    call = "train-reranker run --vectors pairs --set kind=hlatr --set depth=3 --device cpu --max-steps 1 --batch-size 8".split()
    # the judged one stands at rank 1 + query % 5: for 24 of 60 queries that is rank 4 or 5
    assert "excluded 24 queries that have no positive among their first 3 documents" in warnings_of(
        capfd, *call, "--qrels", "qrels.tsv", "-o", "h"
    )
    assert read_json(cwd / "h" / "meta.json")["counts"]["lists"] == 36
    judged = (cwd / "qrels.tsv").read_text().splitlines(keepends=True)
    (cwd / "some.tsv").write_text("".join(judged[:41]))  # a header, and 40 of 60 queries, of which 16 rank 4 or 5
    assert "excluded 20 of 60 queries, because they have no judgments" in warnings_of(
        capfd, *call, "--qrels", "some.tsv", "-o", "s"
    )
    counts = read_json(cwd / "s" / "meta.json")["counts"]
    assert [counts[name] for name in ("lists", "without a positive", "without a judgment")] == [24, 16, 20]
    # measured are all 60, of which 36 are learned from
    (cwd / "dev" / "qrels").mkdir(parents=True)
    (cwd / "dev" / "qrels" / "dev.tsv").symlink_to(cwd / "qrels.tsv")
    measured = ["--dev", "dev", "--dev-run", "run", "--set", "dev_queries=60", "-o", "measured"]
    said = warnings_of(capfd, *call, "--qrels", "qrels.tsv", *measured)
    assert "dev: 36 of its 60 evaluation queries are also in run and favor overfitting; remove them" in said
    (cwd / "none.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tz\t1\n")
    with pytest.raises(
        DrtkError, match="run: there are no lists with a positive among the first 3 documents to train on"
    ):
        run(*call, "--qrels", "none.tsv", "-o", "g")


MINE = "mine-negatives run --qrels qrels.tsv --scorer model --set ce_max=0.9 --set min_negatives=0"


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (["score", "examples.jsonl", *TEXTS], "batch_tokens"),
        (["rerank", "run", *TEXTS, "--save-vectors", "v"], "batch_tokens"),
        ([*MINE.split(), *TEXTS[:4]], "scorer_batch_tokens"),
    ],
    ids=lambda call: call[0] if isinstance(call, list) else "",
)
def test_out_of_memory_names_the_option_that_scores_less_at_once(cwd, monkeypatch, call, field):
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has a total capacity")

    monkeypatch.setattr(BertForSequenceClassification, "forward", full)
    with pytest.raises(DrtkError, match=rf"^cpu: out of memory at [0-9,]+ tokens; lower `{field}`$"):
        run(*call, "--device", "cpu", "-o", "out")


def test_an_ensemble_uses_the_scores_of_reranked_documents_only(cwd, capfd):
    for model, depth in (("model", "5"), ("other", "4")):
        run("rerank", "run", *TEXTS[:4], "--model", model, "--depth", depth, "--max-length", "24", "-o", f"by-{model}")
    assert read_json(cwd / "by-other.meta.json")["counts"]["scored"] == {"depth": 4}
    call = ("fuse", "by-model", "by-other", "--method", "zscore", "-o")
    said = warnings_of(capfd, *call, "both")
    assert "by-other: reranked to depth 4; only the scores of the top 4 are normalized" in said
    assert read_json(cwd / "both.meta.json")["counts"]["scored_depths"] == [5, 4]
    for query, hits in rankings("both").items():
        assert [id for id, _ in hits[5:]] == [id for id, _ in rankings("run")[query][5:]]
    # RRF uses ranks, and the depth of a run that was changed since is unknown.
    assert ": reranked to depth" not in warnings_of(capfd, "fuse", "by-model", "by-other", "-o", "ranks")
    (cwd / "by-other").write_text((cwd / "by-other").read_text() + "q0 Q0 x 13 -99 t\n")
    assert warnings_of(capfd, *call, "changed").count(": reranked to depth") == 1


@pytest.mark.parametrize(("call", "pairs"), [("rerank run --depth 5", 60 * 5), ("score examples.jsonl", 60 * 4)])
def test_passages_without_text_are_reported(cwd, capfd, call, pairs):
    model = "--queries queries.jsonl --model model -o out --corpus"
    empty = [{"_id": row["_id"], "title": "", "text": " "} for row in PASSAGES]
    for name, rows in (("bare", empty), ("titles", [row | {"text": ""} for row in PASSAGES])):
        write_rows(name, rows)
        with pytest.raises(DrtkError) as fault:
            run(*call.split(), "--set", "title=none", *model.split(), name)
        message = f"none of the {pairs} passages that were read has a text; check that it is the right file"
        assert str(fault.value) == f"{name}: {message}"
        assert not Path("out").exists()
    capfd.readouterr()
    run(*call.split(), "--set", "title=join", *model.split(), "titles")  # a title is a text
    assert capfd.readouterr().err == ""
    write_rows("one", [*PASSAGES[:3], empty[3], *PASSAGES[4:]])
    run(*call.split(), *model.split(), "one", "--force")
    assert re.search(rf"drtk: one: \d+ of the {pairs} passages that were read have no text\n", capfd.readouterr().err)
