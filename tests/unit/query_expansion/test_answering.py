"""One question through the whole chain: what it prints is what the commands make of the same question in a file."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.errors import MismatchError, UsageError
from drtk.indexing.bm25s import Bm25sIndex
from drtk.models import generation as text_writer
from drtk.query_expansion import query_reranker
from drtk.query_expansion.answer import Chain, Chosen, Writer
from drtk.query_expansion.rerank import QueryReranker
from drtk.records import Query
from tests.running import command, write
from tests.tiny import collection, tiny_model, tiny_writer

QUESTION = "which river flows?"
SHORT = ("planets", "market castles")


class Writes:
    """As much of a generator as the chain needs: texts that were thought of beforehand."""

    def __init__(self, kind: str, *texts: str) -> None:
        self.kind, self.texts = kind, texts

    def prepare(self, records: list[Any]) -> list[Any]:
        return records

    def __call__(self, records: list[Any]) -> Any:
        from drtk.query_expansion.candidates import Gathered

        gathered = Gathered()
        for each in records:
            gathered.add(each.id, each.text, self.kind, self.texts)
        return gathered.done()


class Longest:
    """A query re-ranker that likes long expansions: the estimate is minus the length."""

    def estimates(self, groups: Any) -> list[np.ndarray]:
        return [np.array([-len(each.text) for each in group.expansions], dtype=np.float32) for group in groups]


LISTS = {  # methods, section 7.8
    "s": [("p1", 9.0), ("p2", 8.0), ("p3", 7.0), ("p4", 6.0)],
    "a": [("p2", 5.0), ("p5", 4.0), ("p1", 3.0), ("p6", 2.0)],
    "t": [("p7", 1.9), ("p1", 1.8), ("p8", 1.7), ("p9", 1.6)],
}


def searched(texts: Any, k: int) -> Any:
    return [LISTS[text.split()[-1]][:k] for text in texts]


def test_the_best_of_each_kind_is_searched_with_and_lists_are_taken_in_turn() -> None:
    expanders: Any = {
        "sentence": Writer(Writes("sentence", "t", "a longer s")),
        "answer": Writer(Writes("answer", "even longer a", "s", "s")),
        "title": Writer(Writes("title", "t")),
    }
    reranker: Any = Longest()
    chosen, ranking = Chain(expanders, reranker, searched)("who?", 6)
    assert [id for id, _ in ranking] == ["p1", "p2", "p7", "p5", "p3", "p8"]
    assert [score for _, score in ranking] == sorted((score for _, score in ranking), reverse=True)
    assert chosen == [
        Chosen("sentence", "who ? a longer s", 2, -10.0),
        Chosen("answer", "who ? even longer a", 2, -13.0),  # three were written, two of them alike
        Chosen("title", "who ? t", 1, -1.0),
    ]


def test_without_a_re_ranker_the_first_is_taken_and_one_list_stays_as_it_is() -> None:
    expanders: Any = {"sentence": Writer(Writes("sentence", "s", "a longer t"))}
    chosen, ranking = Chain(expanders, None, searched)("who?", 3)
    assert chosen == [Chosen("sentence", "who ? s", 2, None)]
    assert ranking == LISTS["s"][:3]  # scores and all


def test_where_nothing_is_written_the_question_is_asked_alone() -> None:
    asked = []

    def search(texts: Any, k: int) -> Any:
        asked.extend(texts)
        return [[] for _ in texts]

    expanders: Any = {"sentence": Writer(Writes("sentence", "", "  ")), "title": Writer(Writes("title", "t"))}
    chosen, ranking = Chain(expanders, None, search)("who?", 3)
    assert asked == ["who ?", "who ? t"]
    assert (chosen[0], ranking) == (Chosen("sentence", "who ?", 0), [])


def test_a_question_that_the_generator_was_trained_with_is_told(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call = ["train-generator", "question.jsonl", "--task", "gar-answer", "--model", models / "one", "--steps", "1"]
    command(capfd, *call, "--batch", "1", "--device", "cpu", "-o", "learnt", "-q")
    ask = ["search", "bm25", "--expand", "learnt", "--device", "cpu", "--quiet", "--query"]
    told = "the generator was trained with this question"
    assert told in command(capfd, *ask, QUESTION).splitlines()[0]
    assert told not in command(capfd, *ask, "which castle stands?")


def test_of_a_generator_for_each_fold_one_is_to_be_named(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(here / "two.jsonl", "".join(f'{{"_id": "{n}", "text": "who {n}?", "answers": ["x"]}}\n' for n in range(9)))
    call = ["train-generator", "two.jsonl", "--task", "gar-answer", "--model", models / "one", "--steps", "1"]
    command(capfd, *call, "--folds", "2", "--batch", "1", "--device", "cpu", "-o", "folds", "-q")
    with pytest.raises(
        MismatchError, match="holds 2 generators, one a fold; name one of them: folds/fold-0 is the first"
    ):
        command(capfd, "search", "bm25", "--query", "who?", "--expand", "folds", "--device", "cpu")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generators and two scorers (ri and rd), untrained: what they choose is arbitrary, but always the same."""
    folder = tmp_path_factory.mktemp("models")
    tiny_writer(folder / "one", "t5", seed=1)
    tiny_writer(folder / "other", "t5", seed=2)
    tiny_writer(folder / "gpt2", "gpt2", max_length=160)  # room for 100 written ones
    tiny_model(folder / "encoder")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = collection(40)[0]
    write(tmp_path / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    command(capfd, "index", "corpus.jsonl", "--type", "bm25s", "-o", "bm25")
    question = Query("", QUESTION)
    write(tmp_path / "question.jsonl", json.dumps({"question": question.text, "answers": ["rivers"]}) + "\n")
    return tmp_path


def scorer(here: Path, models: Path, capfd: pytest.CaptureFixture[str], kind: str) -> Path:
    """A scorer after two steps on candidates of the question with ranks that were thought of."""
    folder = here / kind
    if not folder.exists():
        (row,) = [
            json.loads(line) for line in command(capfd, "convert", "question.jsonl", "--as", "queries").splitlines()
        ]
        top1 = {"title": "rivers", "text": "rivers rivering"}
        labelled = [
            {"_id": f"{row['_id']}#title#{n:02}", "query_id": row["_id"], "kind": "title", "text": f"rivers {n}", "rank": n, "top1": top1}
            for n in (1, 5, 60)
        ]  # fmt: skip
        write(here / "labelled", "".join(json.dumps(each) + "\n" for each in labelled))
        call = [
            "rerank-queries",
            "train",
            "labelled",
            "--queries",
            "question.jsonl",
            "--model",
            models / "encoder",
            "-o",
            folder,
        ]
        command(
            capfd,
            *call,
            "--scorer",
            kind,
            "--steps",
            "2",
            "--batch",
            "1",
            "--max-length",
            "48",
            "--device",
            "cpu",
            "-q",
        )
    return folder


@pytest.mark.parametrize("kind", ["ri", "rd"])
def test_what_is_shown_is_what_the_commands_make_of_the_question_in_a_file(
    kind: str, here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = scorer(here, models, capfd, kind)
    runs, queries = [], {}
    with open("candidates.jsonl", "w") as together:
        for name, model in (("sentence", "one"), ("title", "other")):
            call = ["expand-queries", "question.jsonl", "--model", models / model, "--kind", name, "--n", "6"]
            together.write(command(capfd, *call, "--device", "cpu", "-q"))
    apply = ["rerank-queries", "apply", "candidates.jsonl", "--queries", "question.jsonl", "--model", chooser]
    command(capfd, *apply, "--index", "bm25", "-o", "chosen", "-q")
    for name in ("sentence", "title"):
        queries[name] = json.loads((here / "chosen" / f"{name}.jsonl").read_text())["text"]
        runs.append(here / f"{name}.run")
        command(capfd, "search", "bm25", here / "chosen" / f"{name}.jsonl", "-k", "100", "-o", runs[-1], "--quiet")
    fused = command(capfd, "fuse", *runs, "--method", "round-robin", "--top", "4", "-q")
    ids = [line.split()[2] for line in fused.splitlines()]

    loaded = []
    load = query_reranker.QueryScorer.__init__
    monkeypatch.setattr(
        query_reranker.QueryScorer, "__init__", lambda self, *a, **b: (loaded.append(a), load(self, *a, **b))[1]
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{QUESTION}\nanything else\n{QUESTION}\n".encode())))
    expand = ["--expand", f"title={models / 'other'}", "--expand", f"sentence={models / 'one'}"]  # in another order
    call = [
        "search",
        "bm25",
        "--query",
        "-",
        "-k",
        "4",
        "--candidates",
        "6",
        "--device",
        "cpu",
        "--query-reranker",
        chooser,
    ]
    page = command(capfd, *call, *expand, "--quiet").splitlines()
    assert len(loaded) == 1  # once for three questions
    first, again = (page[at:] for at in (place for place, line in enumerate(page) if line == QUESTION))
    assert again == first[: len(again)]
    assert first[1].startswith(f"sentence: {queries['sentence']}  (estimate ")
    assert first[2].startswith(f"title: {queries['title']}  (estimate ")
    assert [line.strip() for line in first[: page.index("anything else")] if line.startswith("    d")][:4] == ids


PROMPT = "… To answer this question, we need to know"


def test_a_model_that_is_prompted_expands_as_expand_queries_does(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[str]] = []
    answers = text_writer.answers

    def seen(writer: Any, ids: Any, *more: Any, **named: Any) -> Any:
        read.append(writer.tokenizer.batch_decode(ids, skip_special_tokens=True))
        return answers(writer, ids, *more, **named)

    monkeypatch.setattr(text_writer, "answers", seen)

    def best(model: str, prompt: str) -> str:
        """The query of a file's question with what is written first, as BM25 is asked with it."""
        call = ["expand-queries", "question.jsonl", "--model", models / model, "--kind", "x", "--prompt", prompt]
        lines = command(capfd, *call, "--decode", "greedy", "--n", "1", "--device", "cpu", "-q").splitlines()
        return " ".join(["which river flows ?", *(json.loads(line)["text"] for line in lines)])

    def shown(*more: str) -> dict[str, str]:
        expand = ["--expand", f"answer={models / 'gpt2'}", "--expand", f"title={models / 'one'}"]
        page = command(capfd, "search", "bm25", "--query", QUESTION, "--device", "cpu", "--quiet", *expand, *more)
        told = [line.removesuffix("  (nothing was written)").split(": ", 1) for line in page.splitlines()[:2]]
        return dict(told)

    rivers = "rivers rivers … castles"
    by_file = {(model, prompt): best(model, prompt) for model in ("gpt2", "one") for prompt in (PROMPT, rivers)}
    assert by_file["gpt2", PROMPT] != by_file["gpt2", rivers]  # what is written depends on what is asked
    of_gpt2, other_of_gpt2, of_t5, other_of_t5 = read
    assert of_gpt2 != other_of_gpt2
    assert of_t5 != other_of_t5
    # One prompt for both, the last of which is a T5; then each its own; then one for all but the kind that has its own.
    for prompts, asked in (
        ([PROMPT], (PROMPT, PROMPT)),
        ([f"answer={PROMPT}", f"title={rivers}"], (PROMPT, rivers)),
        ([f"answer={rivers}", PROMPT], (rivers, PROMPT)),
    ):
        read.clear()
        found = shown(*(part for prompt in prompts for part in ("--expand-prompt", prompt)))
        assert found == {"answer": by_file["gpt2", asked[0]], "title": by_file["one", asked[1]]}
        wanted = of_gpt2 if asked[0] == PROMPT else other_of_gpt2, of_t5 if asked[1] == PROMPT else other_of_t5
        assert read == list(wanted)
    # A trained generator beside a prompted one reads the question as it stands.
    read.clear()
    shown("--expand-prompt", f"answer={PROMPT}")
    assert read == [of_gpt2, ["which river"]]  # "flows?" is no word of its vocabulary


def test_first_passages_are_those_of_the_searchs_own_settings(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = scorer(here, models, capfd, "rd")
    # For "river": with b = 0 the passage that has it three times is first, with b = 1 the short one.
    rows = [
        {"_id": "short", "title": "winters", "text": "river"},
        {"_id": "long", "title": "gardens", "text": "river river river " + "nothing " * 90},
        *({"_id": f"d{n}", "title": "", "text": f"other{n} things{n}"} for n in range(9)),
    ]
    write(here / "rivers.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    command(capfd, "index", "rivers.jsonl", "--type", "bm25s", "-o", "rivers", "-q")

    def written(given: Any, ids: Any, mask: Any, keys: Sequence[str], *_: Any, **__: Any) -> list[list[list[int]]]:
        return [[given.tokenizer(text, add_special_tokens=False)["input_ids"] for text in SHORT] for _ in keys]

    monkeypatch.setattr(text_writer, "answers", written)  # so that 48 tokens have room for passages
    call = ["expand-queries", "question.jsonl", "--model", models / "one", "--kind", "title", "--n", "2"]
    command(capfd, *call, "--device", "cpu", "-o", "candidates.jsonl", "-q")
    opened = []
    opening = Bm25sIndex.open
    monkeypatch.setattr(Bm25sIndex, "open", lambda *given: opened.append(given) or opening(*given))
    told, shown = {}, {}
    for b in ("0", "1"):
        apply = ["rerank-queries", "apply", "candidates.jsonl", "--queries", "question.jsonl", "--model", chooser]
        command(capfd, *apply, "--index", "rivers", "--b", b, "-o", f"chosen{b}", "--device", "cpu", "-q")
        (row,) = map(json.loads, (here / f"chosen{b}" / "choices.jsonl").read_text().splitlines())
        told[b] = f"title: {row['queries'][0]}  (estimate {row['estimates'][0]:.4f}"
        opened.clear()
        ask = ["search", "rivers", "--query", QUESTION, "--b", b, "-k", "2", "--expand", f"title={models / 'one'}"]
        ask += ["--candidates", "2", "--query-reranker", chooser, "--device", "cpu", "--quiet"]
        shown[b] = command(capfd, *ask).splitlines()
        assert len(opened) == 1  # the index is there once, for the search and for what is read
    assert told["0"] != told["1"]
    assert [shown[b][0].startswith(told[b]) for b in ("0", "1")] == [True, True]
    # The texts may be gone since the index was made: told once, however many questions come.
    write(here / "blank.jsonl", "".join(json.dumps(row | {"text": ""}) + "\n" for row in rows))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{QUESTION}\n{QUESTION}\n".encode())))
    ask[ask.index(QUESTION)] = "-"
    capfd.readouterr()
    app([*map(str, ask), "--corpus", "blank.jsonl"], standalone_mode=False)
    said = capfd.readouterr().err
    assert said.count("blank.jsonl: none of the 2 passages looked up there has a text: is it the right file?") == 1


def test_what_does_not_go_together_is_refused(here: Path, models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    generator = f"answer={models / 'one'}"
    for arguments, complaint in (
        (["question.jsonl", "--expand", generator], "--expand needs --query"),
        (["--query", "who?", "--query-reranker", "x"], "chooses among what --expand"),
        (["--query", "who?", "--expand", generator, "--candidates", "3"], "--candidates: without --query-reranker"),
        (["--query", "who?", "--expand", generator, "--expand", generator], "two generators write 'answer'"),
        (["--query", "who?", "--expand", models / "one"], "does not say what it writes"),
        (["--query", "who?", "--expand-prompt", "a"], "--expand-prompt says what the model of --expand MODEL reads"),
        (["--query", "who?", "--expand", f"answer={models / 'gpt2'}"], "goes on with a text; --expand-prompt says how"),
        (
            ["--query", "who?", "--expand", generator, "--expand-prompt", "a", "--expand-prompt", "b"],
            "two are for all kinds",
        ),
        (
            ["--query", "who?", "--expand", generator, "--expand-prompt", "title=a"],
            "no generator writes 'title', but answer",
        ),
        (["--query", "who?", "--expand", generator, "--expand-prompt", "a " * 600], "leaves nothing of the 64 tokens"),
        (
            ["--query", "who?", "--expand", generator, "--query-reranker", "a=x", "--query-reranker", "a=y"],
            "two are for kind a",
        ),
    ):
        with pytest.raises(UsageError, match=complaint):
            command(capfd, "search", "bm25", *arguments, "--device", "cpu")
    with pytest.raises(MismatchError, match="is no query re-ranker"):
        command(
            capfd, "search", "bm25", "--query", "who?", "--expand", generator, "--query-reranker", models / "encoder"
        )


def test_a_reranker_for_another_kind_is_no_reranker_for_this_one(
    here: Path, models: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chooser = scorer(here, models, capfd, "ri")
    assert QueryReranker({"title": str(chooser)}).scorer("title").reading.scorer == "ri"
    call = ["search", "bm25", "--query", "who?", "--expand", f"sentence={models / 'one'}", "--device", "cpu"]
    with pytest.raises(MismatchError, match="no model is for candidates of kind 'sentence'"):
        command(capfd, *call, "--query-reranker", f"title={chooser}", "--candidates", "2")
