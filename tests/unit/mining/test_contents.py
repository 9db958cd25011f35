"""Checks by content: overlap, vectors and cross-encoders, alone and through the command."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.mining.filters import CosineCheck, CrossEncoderCheck, Texts, VectorsById, overlap, shingles
from drtk.mining.policies import Policy
from drtk.mining.pool import Asked, Pool, Ranked
from drtk.mining.sampler import Miner
from drtk.records import Query
from tests.running import command, write
from tests.tiny import collection, tiny_crossencoder, write_collection
from tests.vectors import embeddings


def test_overlap_counts_shared_runs_of_three_words() -> None:
    # "a b c d" has abc and bcd, "b c d e" has bcd and cde: one of three
    assert overlap(shingles("a b c d"), shingles("B, c. D e!")) == pytest.approx(1 / 3)
    assert overlap(shingles("The same  words"), shingles("the SAME words.")) == 1.0
    assert overlap(shingles("short"), shingles("short")) == 1.0
    assert overlap(shingles("one two"), shingles("one three")) == 0.0
    assert overlap(shingles(""), shingles("!")) == 1.0


def pool_of(*ids: str, positives: Sequence[str] = ("p",), text: str = "what") -> Pool:
    asked = Asked("q", {"run": Ranked(ids)}, Query("q", text))
    return Miner(Policy(keep=None), 1).pool(asked, dict.fromkeys(positives, 1))


def test_the_nearest_positive_counts_and_vectors_need_not_be_of_length_one(tmp_path: Path) -> None:
    # cosines of a: 4/5 with p (the same as (.8, .6)), 0 with r (0, -.5)...: (4, 3) . (0, -1) / 5 = -.6
    vectors = [[2, 0], [0, -0.5], [4, 3], [0, -7]]
    folder = embeddings(tmp_path / "v", vectors, ["p", "r", "a", "b"], shard_size=3)
    check = CosineCheck(VectorsById(folder), 0.9)
    pool = pool_of("a", "b", positives=["p", "r"])
    check.measure([pool], [["a", "b"]])
    assert pool.marks == {"a": {"cosine": pytest.approx(0.8)}, "b": {"cosine": pytest.approx(1.0)}}
    assert [check.is_beyond(pool.marks[id]["cosine"], 0.9) for id in "ab"] == [False, True]


def test_non_finite_vectors_are_reported(tmp_path: Path) -> None:
    found = VectorsById(embeddings(tmp_path / "v", [[1, 0], [0, 1], [1, 1]], ["a", "b", "c"], shard_size=2))
    np.save(tmp_path / "v" / "00000.npy", np.float32([[1, 0], [np.nan, 1]]))
    assert found.take(["c"]).shape == (1, 2)
    with pytest.raises(DrtkError, match=r"v/00000\.npy: row 1: the vector of 'b' has NaN or infinite numbers"):
        found.take(["c", "b", "a"])


def test_vectors_that_lack_are_counted(tmp_path: Path) -> None:
    found = VectorsById(embeddings(tmp_path / "v", [[1, 0], [0, 1]], ["a", "b"]))
    assert found.take(["b", "a", "b"]).tolist() == [[0, 1], [1, 0], [0, 1]]
    with pytest.raises(MismatchError, match="v: has no vector of 'x' and 1 more"):
        found.take(["a", "x", "y"])
    with pytest.raises(MismatchError, match="holds vectors of queries"):
        VectorsById(embeddings(tmp_path / "q", [[1, 0]], ["a"], role="query"))


class Judge:
    """Scores a pair by a table of texts, and remembers what it was asked."""

    model = "judge"

    def __init__(self, scores: dict[str, float], *, low: float = -inf, high: float = inf) -> None:
        self.scores, self.asked = scores, list[tuple[str, str]]()
        self.bounds = low, high

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        self.asked += pairs
        return np.array([self.scores[text] for _, text in pairs], dtype=np.float32)


def texts_of(tmp_path: Path, **texts: str) -> Texts:
    rows = [{"_id": id, "title": "T" if id == "a" else "", "text": text} for id, text in texts.items()]
    return Texts(str(write(tmp_path / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))))


def test_a_cross_encoder_reads_title_and_text_and_the_lowest_positive_sets_the_limit(tmp_path: Path) -> None:
    judge = Judge({"T ta": 4.5, "tb": 4.25, "tp": 8.0, "tr": 7.5})
    check = CrossEncoderCheck(judge, texts_of(tmp_path, a="ta", b="tb", p="tp", r="tr"), margin=3.25)
    pool = pool_of("a", "b", positives=["p", "r"])
    check.measure([pool], [["a", "b"]])
    assert check.limit(pool) == 4.25  # 7.5 - 3.25
    assert [check.is_beyond(pool.marks[id]["ce"], 4.25) for id in "ab"] == [True, False]
    check.measure([pool], [["a", "b"]])
    assert len(judge.asked) == 4  # what was scored once is not scored again


def test_a_margin_that_no_score_of_a_model_can_have_is_refused_before_any_is_computed(tmp_path: Path) -> None:
    texts = texts_of(tmp_path, a="ta", p="tp")
    sigmoid = Judge({}, low=0, high=1)
    with pytest.raises(MismatchError, match="judge: gives scores between 0 and 1, so that nothing can lie 3 below"):
        CrossEncoderCheck(sigmoid, texts, margin=3)
    assert CrossEncoderCheck(sigmoid, texts, margin=0.5)
    with pytest.raises(MismatchError, match="judge: gives scores between -1 and 1, so that nothing can lie 2 below"):
        CrossEncoderCheck(Judge({}, low=-1, high=1), texts, margin=2)
    assert CrossEncoderCheck(Judge({}, low=-1, high=1), texts, margin=1.5)


def test_logits_that_happen_to_lie_between_0_and_1_are_taken_as_logits(tmp_path: Path) -> None:
    check = CrossEncoderCheck(Judge({"T ta": 0.2, "tp": 0.7}), texts_of(tmp_path, a="ta", p="tp"), margin=3)
    pool = pool_of("a")
    check.measure([pool], [["a"]])
    assert check.limit(pool) == pytest.approx(0.7 - 3)


def test_a_models_activation_says_what_its_scores_can_be(tmp_path: Path) -> None:
    from drtk.models.cross_encoder import Scorer

    model = str(tiny_crossencoder(tmp_path / "ce"))
    assert Scorer(model, device="cpu").bounds == (0, 1)
    assert Scorer(model, device="cpu", logits=True).bounds == (-inf, inf)
    for name, bounds in (("Identity", (-inf, inf)), ("Tanh", (-1, 1))):
        noted = {"sbert_ce_default_activation_function": f"torch.nn.modules.{name}"}
        assert Scorer(str(tiny_crossencoder(tmp_path / name, **noted)), device="cpu").bounds == bounds


def test_a_margin_of_logits_goes_by_what_was_asked_for(
    world: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    scoring = ["--queries", "queries.jsonl", "--scorer", str(tiny_crossencoder(world.folder / "ce"))]
    with pytest.raises(MismatchError, match=r"between 0 and 1, so that nothing can lie 1 below.*--scorer-logits$"):
        command(capfd, *world.call, *scoring, "--ce-margin", "1")
    command(capfd, *world.call, *scoring, "--ce-margin", "1", "--scorer-logits", "-o", "out.jsonl")
    for row in rows_of(world.folder / "out.jsonl").values():
        assert max(row["scores"]["negatives"]) <= min(row["scores"]["positives"]) - 1


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Forty passages; every query finds ten, its own third. d7 is a copy of d3 but for case and commas."""
    write_collection(tmp_path, 40)
    passages = collection(40)[0]
    passages[7]["text"] = passages[3]["text"].upper().replace(" ", ", ")
    write(tmp_path / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in passages))
    order = {q: [(q + 1) % 40, (q + 2) % 40, q, *((q + step) % 40 for step in range(3, 10))] for q in range(40)}
    lines = [
        f"q{q} Q0 d{d} {rank} {20 - rank} t\n" for q, found in order.items() for rank, d in enumerate(found, start=1)
    ]
    write(tmp_path / "bm25.run", "".join(lines))
    write(tmp_path / "qrels.tsv", "".join(f"q{q}\td{q}\t1\n" for q in range(40)))
    monkeypatch.chdir(tmp_path)
    call = ["mine-negatives", "bm25.run", "--qrels", "qrels.tsv", "--corpus", "corpus.jsonl", "--policy", "tevatron"]
    return SimpleNamespace(folder=tmp_path, call=call, passages=passages)


def rows_of(path: Path) -> dict[str, dict]:
    return {row["query_id"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_a_copy_of_a_positive_is_dropped_and_the_audit_says_why(
    world: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    command(capfd, *world.call, "--max-overlap", "1", "--audit", "audit.jsonl", "-o", "out.jsonl")
    mined, audit = rows_of(world.folder / "out.jsonl"), rows_of(world.folder / "audit.jsonl")
    assert "d7" not in mined["q3"]["negatives"]
    (drop,) = audit["q3"]["dropped"]
    assert (drop["id"], drop["by"], drop["value"], drop["limit"]) == ("d7", "overlap", 1.0, 1.0)
    counts = json.loads((world.folder / "out.jsonl.meta.json").read_text())["counts"]
    assert counts["dropped"] == {"overlap": sum(len(row["dropped"]) for row in audit.values())}


def test_near_vectors_are_dropped_by_the_command(world: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    angles = np.arange(40) * 0.1  # cos(.1) = .995, cos(.2) = .980, cos(.3) = .955, cos(.4) = .921
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    embeddings(world.folder / "vectors", vectors, [f"d{at}" for at in range(40)])
    printed = command(capfd, *world.call, "-q", "--vectors", "vectors", "--max-cosine", "0.95").splitlines()
    row = {row["query_id"]: row for row in map(json.loads, printed)}["q5"]
    assert sorted(row["negatives"]) == sorted(f"d{at}" for at in range(9, 15))  # d6, d7 and d8 are within .3


def test_random_passages_that_a_filter_refuses_and_queries_below_the_floor_are_told(
    world: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    angles = (
        np.arange(40) * 0.1
    )  # within .3, three passages to either side, the cosine is .955 and more; at .4 it is .921
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    embeddings(world.folder / "vectors", vectors, [f"d{at}" for at in range(40)])
    more = ["--vectors", "vectors", "--max-cosine", "0.95", "--floor", "38", "--audit", "audit.jsonl"]
    command(capfd, *world.call, *more, "--report", "report.txt", "-o", "out.jsonl")
    row = rows_of(world.folder / "audit.jsonl")["q5"]
    assert sorted(one["id"] for one in row["dropped"]) == ["d6", "d7", "d8"]  # which the run has
    refused = {one["id"]: (one["source"], one["by"], one["limit"]) for one in row["random_refused"]}
    assert refused == dict.fromkeys(["d2", "d3", "d4"], ("random", "cosine", 0.95))  # which it has not
    counts = json.loads((world.folder / "out.jsonl.meta.json").read_text())["counts"]
    # Before q's passage lie three, but for q0, q1 and q2: 37 * 3 + 2 + 1. At most 40 - 1 - 3 = 36 are left of the 38 wanted.
    assert counts["passages"]["random_refused"] == 114
    assert counts["below_floor"] == 40
    assert "random passages that a filter refused" in (world.folder / "report.txt").read_text()


def test_scores_of_a_cross_encoder_filter_and_go_into_the_examples(
    world: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    from drtk.models.cross_encoder import Scorer

    model = tiny_crossencoder(world.folder / "ce")
    scoring = ["--queries", "queries.jsonl", "--scorer", str(model)]
    command(capfd, *world.call, *scoring, "-o", "all.jsonl")
    whole = rows_of(world.folder / "all.jsonl")
    texts = {row["_id"]: f"{row['title']} {row['text']}" for row in world.passages}
    question = collection(40)[1][5]["text"]
    row = whole["q5"]
    ids = [*row["positives"], *row["negatives"]]
    wanted = Scorer(str(model), device="cpu")([(question, texts[id]) for id in ids])
    assert [*row["scores"]["positives"], *row["scores"]["negatives"]] == pytest.approx(wanted.tolist(), abs=5e-5)
    command(capfd, *world.call, *scoring, "--ce-margin", "0.01", "-o", "some.jsonl")
    some = rows_of(world.folder / "some.jsonl")
    for query_id, row in whole.items():
        limit = row["scores"]["positives"][0] - 0.01
        below = {id for id, score in zip(row["negatives"], row["scores"]["negatives"], strict=True) if score <= limit}
        assert set(some.get(query_id, {"negatives": []})["negatives"]) == below
    assert (
        0 < sum(len(row["negatives"]) for row in some.values()) < sum(len(row["negatives"]) for row in whole.values())
    )


@pytest.mark.parametrize("more", [[], ["--logits"]])
def test_a_scorer_reads_as_it_was_trained_and_scores_as_score_does(
    world: SimpleNamespace, capfd: pytest.CaptureFixture[str], more: list[str]
) -> None:
    model = tiny_crossencoder(world.folder / "ours")  # as train-reranker leaves it: "title: text"
    stated = {"command": "drtk train-reranker", "settings": {}, "inputs": [], "pairing": {"title": "colon"}}
    write(model / "meta.json", json.dumps(stated))
    texts = ["--queries", "queries.jsonl", "-q"]
    mine = [f"--scorer{flag.removeprefix('-')}" for flag in more]
    command(capfd, *world.call, *texts, "--scorer", str(model), *mine, "-o", "mined.jsonl")
    call = ["score", "mined.jsonl", "--corpus", "corpus.jsonl", *texts, "--model", str(model)]
    command(capfd, *call, *more, "-o", "scored.jsonl")
    mined, scored = (rows_of(world.folder / name) for name in ("mined.jsonl", "scored.jsonl"))
    assert mined.keys() == scored.keys()
    for query_id, row in scored.items():
        for side in ("positives", "negatives"):
            assert mined[query_id]["scores"][side] == pytest.approx(row["scores"][side], abs=5e-5)
    every = [score for row in mined.values() for score in row["scores"]["negatives"]]
    assert (min(every) < 0 or max(every) > 1) is bool(more)  # logits have no bounds, the folder's sigmoid has
    with pytest.raises(MismatchError, match="ours: was trained with --title colon; join contradicts it"):
        command(capfd, *world.call, *texts, "--scorer", str(model), "--scorer-title", "join", "-o", "x.jsonl")
    # another model in the folder's place: what the old one scored is not up to date
    again = [*world.call, *texts[:2], "--scorer", str(model), *mine, "-o", "mined.jsonl", "--skip-done", "--force"]
    assert not is_renewed(capfd, *again)
    write(model / "meta.json", json.dumps(stated | {"seed": 2}))
    assert is_renewed(capfd, *again)


def is_renewed(capfd: pytest.CaptureFixture[str], *arguments: str) -> bool:
    from drtk.cli.main import app

    capfd.readouterr()
    app([str(argument) for argument in arguments], standalone_mode=False)
    return "is up to date" not in capfd.readouterr().err


def test_what_a_check_needs_is_named(world: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    plain = ["mine-negatives", "bm25.run", "--qrels", "qrels.tsv"]
    for options, problem in (
        (["--max-overlap", "0.9"], "--max-overlap compares texts: name their --corpus FILE"),
        (["--max-cosine", "0.9"], "--max-cosine compares vectors: name a folder"),
        (["--scorer", "x"], "--scorer reads texts: name --queries FILE and --corpus FILE"),
        (["--ce-max", "1"], "--ce-max goes by scores of a cross-encoder"),
    ):
        with pytest.raises(UsageError, match=problem):
            command(capfd, *plain, *options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--scorer-logits", "--scorer-logits goes with --scorer MODEL"),
        ("--scorer-title join", "--scorer-title goes with --scorer MODEL"),
        ("--scorer-dtype float16", "--scorer-dtype goes with --scorer MODEL"),
        ("--scorer-batch-tokens 9", "--scorer-batch-tokens goes with --scorer MODEL"),
        ("--unretrieved keep", "--unretrieved goes with --margin or --max-share"),
        ("--unretrieved drop --max-score 3", "--unretrieved goes with --margin or --max-share"),
        ("--match regex", "--match: only where answers are looked for: --policy nq, or --report with --queries"),
        ("--match-title", "--match-title: only where answers are looked for: --policy nq, or --report with --queries"),
        ("--match regex --report r.txt", "--match: only where answers are looked for"),
        ("--model nosuch", "--model: only with an index among the sources"),
        ("--prompt x", "--prompt: only with an index among the sources"),
        ("--max-length 9", "--max-length: only with an index among the sources"),
        ("--k1 1.2", "--k1: only with an index among the sources"),
        ("--rm3", "--rm3: only with an index among the sources"),
        ("--nprobe 3", "--nprobe: only with an index among the sources"),
        ("--batch 7", "--batch: only with an index among the sources"),
    ],
)
def test_an_option_that_does_nothing_beside_the_others_is_refused(
    world: SimpleNamespace, capfd: pytest.CaptureFixture[str], options: str, problem: str
) -> None:
    with pytest.raises(UsageError, match=f"^{problem}"):
        command(capfd, *world.call, *options.split())


@pytest.mark.parametrize(
    "options",
    [
        "--no-scorer-logits --no-match-title",
        "--unretrieved keep --max-share 0.9",
        "--unretrieved drop --margin 1",
        "--match regex --match-title --report r.txt --queries queries.jsonl",
    ],
)
def test_an_option_that_does_something_is_taken(
    world: SimpleNamespace, capfd: pytest.CaptureFixture[str], options: str
) -> None:
    assert command(capfd, *world.call, "-q", *options.split(), "-o", "out.jsonl") == ""


def run_of(query: int) -> list[tuple[int, int]]:
    """(passage, score) of the nine candidates that `world` has for a query: 19, 18 and 16 to 10; its positive has 17."""
    steps = {1: 19, 2: 18} | {step: 19 - step for step in range(3, 10)}
    return [((query + step) % 40, score) for step, score in steps.items()]


def equal_texts(world: SimpleNamespace) -> int:
    """How many candidates have the words of their query's positive."""
    words = [re.findall(r"\w+", passage["text"].lower()) for passage in world.passages]
    return sum(words[query] == words[passage] for query in range(40) for passage, _ in run_of(query))


def too_near_by_cross_encoder(world: SimpleNamespace) -> int:
    """How many candidates the model in "ce" does not score at least .01 below their query's positive."""
    from drtk.models.cross_encoder import Scorer

    score = Scorer(str(tiny_crossencoder(world.folder / "ce")), device="cpu")
    texts = [f"{passage['title']} {passage['text']}" for passage in world.passages]
    found = 0
    for query, row in enumerate(collection(40)[1]):
        right, *others = score([(row["text"], texts[at]) for at in (query, *(at for at, _ in run_of(query)))])
        found += sum(other > right - 0.01 for other in others)
    return found


DROPPED: dict[str, tuple[list[str], dict[str, int | Callable[[SimpleNamespace], int]]]] = {
    "rank": (["--from-rank", "4"], {"rank": 2 * 40}),  # 1 and 2; 3 is the positive's
    "max-score": (["--max-score", "15.5"], {"max-score": 3 * 40}),  # 19, 18, 16
    "min-score": (["--min-score", "11.5"], {"min-score": 2 * 40}),  # 11, 10
    "margin": (["--margin", "2"], {"margin": 3 * 40}),  # above 15: 19, 18, 16
    "max-share": (["--max-share", "0.75"], {"max-share": 6 * 40}),  # above 12.75: 19, 18, 16, 15, 14, 13
    "unretrieved": (["--margin", "2"], {"unretrieved": 10, "margin": 3 * 39}),  # of q0, the first, all ten
    "overlap": (["--max-overlap", "1"], {"overlap": equal_texts}),
    # within .3 of the positive's angle: three of each, but for the last of the row, which have 2, 1 and none behind them
    "cosine": (["--vectors", "vectors", "--max-cosine", "0.95"], {"cosine": 3 * 37 + 2 + 1}),
    "ce": (["--queries", "queries.jsonl", "--scorer", "ce", "--ce-margin", "0.01"], {"ce": too_near_by_cross_encoder}),
}


@pytest.mark.parametrize("name", DROPPED)
def test_every_filter_says_how_many_it_dropped_in_manifest_summary_and_audit(
    world: SimpleNamespace, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    options, told = DROPPED[name]
    expected = {by: count(world) if callable(count) else count for by, count in told.items()}
    assert all(expected.values())
    if name == "cosine":
        angles = np.arange(40) * 0.1
        vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        embeddings(world.folder / "vectors", vectors, [f"d{at}" for at in range(40)])
    if name == "unretrieved":  # d20 is right for q0, and not among the ten it finds
        write(world.folder / "qrels.tsv", (world.folder / "qrels.tsv").read_text().replace("q0\td0\t", "q0\td20\t"))
    capfd.readouterr()
    app([*world.call, *options, "--audit", "audit.jsonl", "-o", "out.jsonl"], standalone_mode=False)
    summary = ", ".join(f"{count:,} by {by}" for by, count in expected.items())
    assert f"dropped: {summary}\n" in capfd.readouterr().err
    counts = json.loads((world.folder / "out.jsonl.meta.json").read_text())["counts"]
    assert counts["dropped"] == expected
    assert counts["passages"]["dropped"] == sum(expected.values())
    audit = rows_of(world.folder / "audit.jsonl")
    assert Counter(one["by"] for row in audit.values() for one in row["dropped"]) == expected
    mined = rows_of(world.folder / "out.jsonl")
    for query, row in mined.items():
        assert not {one["id"] for one in audit[query]["dropped"]} & set(row["negatives"])
    assert (
        sum(len(row["negatives"]) for row in mined.values()) + sum(expected.values())
        == counts["passages"]["candidates"]
    )
