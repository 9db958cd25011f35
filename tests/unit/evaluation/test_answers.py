"""drtk eval --answers and --exact-match, and ROUGE: known answers, agreement with references, rejected input."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.data.corpus_store import CorpusStore
from drtk.errors import DrtkError, MismatchError, MissingDependency, RecordError, UsageError
from drtk.evaluation.answers import compute_rouge
from drtk.query_expansion.read import iter_reader_questions
from drtk.runtime.inputs import InputTracker
from tests.expansion_collection import write_rows
from tests.reference import answers as slow
from tests.reference import queries
from tests.run_commands import run_command, write_text
from tests.shared_data import find_shared_data
from tests.unit.text.test_answers import BEYONCE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def to_jsonl(*objects: object) -> str:
    return "".join(json.dumps(item) + "\n" for item in objects)


def run_eval(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    printed = run_command(capfd, "eval", "-q", *arguments, "--format", "jsonl")
    result: dict[str, float] = json.loads(printed.splitlines()[-1])
    return result


def test_top_k_accuracy_of_four_questions(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # the first passage with the answer stands at ranks 1, 15, 101, 3: top-1 1/4, top-5 2/4, top-20 3/4, top-100 3/4
    firsts = {"q1": 1, "q2": 15, "q3": 101, "q4": 3}
    write_text(
        folder / "c.jsonl",
        to_jsonl({"_id": "yes", "text": "It is Paris."}, *({"_id": f"d{n}", "text": "no"} for n in range(120))),
    )
    write_text(
        folder / "q.jsonl", to_jsonl(*({"id": id, "question": "where?", "answers": ["paris", ""]} for id in firsts))
    )
    lines = []
    for id, first in firsts.items():
        docs = [f"d{n}" for n in range(105)]
        docs.insert(first - 1, "yes")
        lines += [f"{id} Q0 {doc} {rank} {200 - rank} t\n" for rank, doc in enumerate(docs, start=1)]
    write_text(folder / "a.run", "".join(lines))
    arguments = ["a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl"]
    for workers in ("1", "2"):
        result = run_eval(capfd, *arguments, "--num-workers", workers)
        assert [result[f"Answer@{k}"] for k in (1, 5, 20, 100)] == [0.25, 0.5, 0.75, 0.75]
    # RR looks at everything: (1 + 1/15 + 1/101 + 1/3) / 4
    assert run_eval(capfd, *arguments, "--measures", "RR Hit@20")["RR"] == pytest.approx(
        (1 + 1 / 15 + 1 / 101 + 1 / 3) / 4
    )
    assert run_eval(capfd, *arguments, "--depth", "2")["Answer@5"] == 0.25


def test_questions_without_ranking_or_answer_are_logged(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # q1 is right, q2 is not in the run, q3 has no answer: 1/2, or 1/1 of those in the run
    write_text(folder / "c.jsonl", to_jsonl({"_id": "d", "text": "Paris"}))
    questions = [("q1", ["Paris"]), ("q2", ["Rome"]), ("q3", [""])]
    write_text(folder / "q.jsonl", to_jsonl(*({"id": id, "question": "?", "answers": a} for id, a in questions)))
    write_text(folder / "a.run", "q1 Q0 d 1 1 t\nq9 Q0 d 1 1 t\n")
    arguments = ["a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "Answer@1"]
    assert run_command(capfd, "eval", "-q", *arguments).split()[-1] == "0.5000"
    assert run_command(capfd, "eval", "-q", *arguments, "--set", "retrieved_only=true").split()[-1] == "1.0000"
    capfd.readouterr()
    app(["eval", *arguments, "-v"], standalone_mode=False)
    messages = capfd.readouterr().err
    assert "q.jsonl: 1 of 3 questions have no answer and are ignored" in messages
    assert "a: 1 of 2 queries with answers are not in the run, counted as 0" in messages
    assert "a: ignored 1 query without answers" in messages
    assert "judge" not in messages


def test_messages_of_compare_mention_answers_not_judgments(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # both runs lack q3; a run whose first right passage another one has not is no reason to speak of judged documents
    write_text(folder / "c.jsonl", to_jsonl({"_id": "d#1", "text": "Paris"}, {"_id": "d#2", "text": "none"}))
    write_text(
        folder / "q.jsonl", to_jsonl(*({"id": f"q{n}", "question": "?", "answers": ["Paris"]} for n in (1, 2, 3)))
    )
    write_text(folder / "a.run", "q1 Q0 d#1 1 1 t\nq2 Q0 d#1 1 1 t\n")
    write_text(folder / "b.run", "q1 Q0 d#2 1 1 t\nq2 Q0 d#2 1 1 t\n")
    arguments = ["--answers", "q.jsonl", "--corpus", "c.jsonl"]
    app(["compare", "a.run", "b.run", *arguments, "-v"], standalone_mode=False)
    messages = capfd.readouterr().err
    assert "a: 1 of 3 queries with answers are not in the run, counted as 0" in messages
    assert "judge" not in messages
    write_text(folder / "b.run", "q1 Q0 d#2 1 1 t\n")
    with pytest.raises(MismatchError, match="b: lacks 1 queries with answers that other runs have"):
        run_command(capfd, "compare", "a.run", "b.run", *arguments)


EXACT = [("U.S.", "US", 1), ("1,000", "1000", 1), ("rock-n-roll", "rocknroll", 1), ("rock n roll", "rock-n-roll", 0),
         (BEYONCE, "Beyonce", 0), ("the", "a", 0)]  # fmt: skip


def test_eval_computes_exact_match_and_f1(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # 3 of 6 are equal; the answer "a" normalizes to nothing and so equals "the", which makes it 4
    write_text(
        folder / "q.jsonl",
        to_jsonl(*({"id": f"q{n}", "question": "?", "answers": [a]} for n, (_, a, _) in enumerate(EXACT))),
    )
    write_text(folder / "p.jsonl", to_jsonl(*({"query_id": f"q{n}", "answer": p} for n, (p, _, _) in enumerate(EXACT))))
    result = run_eval(capfd, "p.jsonl", "--exact-match", "--answers", "q.jsonl")
    assert result["EM"] == pytest.approx(4 / 6)
    # F1: 1, 1, 1, 0, 0, 1
    assert result["F1"] == pytest.approx(4 / 6)
    table = run_command(
        capfd, "eval", "-q", "p.jsonl", "--exact-match", "--answers", "q.jsonl", "--per-query", "--measures", "EM"
    )
    assert table.splitlines()[1].split() == ["p", "q0", "1.0000"]


def test_prediction_with_the_highest_score_is_evaluated(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_text(
        folder / "q.jsonl",
        to_jsonl({"id": "q", "question": "?", "answers": ["Paris"]}, {"id": "r", "question": "?", "answers": ["x"]}),
    )
    several = [{"query_id": "q", "answer": "Rome", "score": 1}, {"query_id": "q", "answer": "Paris", "score": 2}]
    write_text(folder / "p.jsonl", to_jsonl(*several))
    assert run_eval(capfd, "p.jsonl", "--exact-match", "--answers", "q.jsonl")["EM"] == 0.5  # r has no prediction
    write_text(folder / "p.jsonl", to_jsonl(several[1], several[0] | {"score": 2}))  # of equal scores, the first counts
    assert run_eval(capfd, "p.jsonl", "--exact-match", "--answers", "q.jsonl")["EM"] == 0.5
    write_text(folder / "p.jsonl", to_jsonl(*several, {"query_id": "q", "answer": "Oslo"}))
    with pytest.raises(RecordError, match=r"p\.jsonl:3: question 'q' has several predictions"):
        run_command(capfd, "eval", "p.jsonl", "--exact-match", "--answers", "q.jsonl")


@pytest.mark.slow
def test_the_paragraph_of_a_squad_question_contains_its_answer(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # every answer of SQuAD stands literally in its paragraph; a run of just these paragraphs is right almost everywhere:
    # where an answer begins or ends within a word, tokens do not match
    folder = find_shared_data("squad")
    judged = (folder / "qrels" / "dev.tsv").read_text().splitlines()[1:201]
    write_text(folder / "a.run", "".join(f"{q} Q0 {d} 1 1 t\n" for q, d, _ in (line.split("\t") for line in judged)))
    arguments = ["--answers", str(folder / "queries.jsonl.gz"), "--corpus", str(folder / "corpus.jsonl.gz")]
    result = run_eval(capfd, "a.run", *arguments, "--measures", "Answer@1", "--set", "retrieved_only=true")
    assert result["queries"] == 200
    assert 0.98 < result["Answer@1"] <= 1


def test_empty_passages_warn_and_a_corpus_without_texts_is_rejected(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_text(
        folder / "q.jsonl", to_jsonl(*({"id": f"q{n}", "question": "?", "answers": ["paris"]} for n in range(40)))
    )
    write_text(folder / "a.run", "".join(f"q{n} Q0 d{at} {at} {9 - at} t\n" for n in range(40) for at in (1, 2)))
    write_text(folder / "bare.jsonl", to_jsonl(*({"_id": f"d{at}", "title": "Paris", "text": " "} for at in (1, 2))))
    call = ["a.run", "--answers", "q.jsonl", "--corpus", "bare.jsonl", "--measures", "Answer@5"]
    with pytest.raises(
        DrtkError, match=r"^bare.jsonl: none of the 80 passages that were read has a text; check that it is the"
    ):
        run_eval(capfd, *call, "--num-workers", "2")  # 40 questions of 2 passages each
    assert run_eval(capfd, *call, "--set", "match_title=true")["Answer@5"] == 1  # titles are looked into
    assert "text" not in capfd.readouterr().err
    with pytest.raises(DrtkError, match=r"^bare.jsonl: none of the 160 passages that were read has a text"):
        run_command(capfd, "compare", "a.run", write_text(folder / "b.run", (folder / "a.run").read_text()), *call[1:])
    write_text(folder / "some.jsonl", to_jsonl({"_id": "d1", "text": ""}, {"_id": "d2", "text": "It is Paris."}))
    assert run_eval(capfd, *call[:3], "--corpus", "some.jsonl", "--measures", "Answer@1 Answer@5")["Answer@5"] == 1
    app(["eval", *call[:3], "--corpus", "some.jsonl", "-q"], standalone_mode=False)
    assert capfd.readouterr().err == "drtk: some.jsonl: 40 of the 80 passages that were read have no text\n"


def test_titles_and_regular_expressions_match_if_enabled(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_text(folder / "c.jsonl", to_jsonl({"_id": "d", "title": "Paris", "text": "born in 1984"}))
    write_text(folder / "a.run", "q Q0 d 1 1 t\n")
    call = ["a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", "--measures", "Answer@1"]
    for answers, option in ((["Paris"], ["--set", "match_title=true"]), ([r"19\d\d", "("], ["--match", "regex"])):
        write_text(folder / "q.jsonl", to_jsonl({"id": "q", "question": "?", "answers": answers}))
        assert run_eval(capfd, *call)["Answer@1"] == 0
        assert run_eval(capfd, *call, *option)["Answer@1"] == 1
    app(["eval", *call, "--match", "regex"], standalone_mode=False)
    assert "q.jsonl:1: '(' is not a valid regular expression and matches nothing" in capfd.readouterr().err


def test_wrong_usage_and_files_are_rejected(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_text(folder / "c.jsonl", to_jsonl({"_id": "d", "text": "no"}))
    write_text(folder / "q.jsonl", to_jsonl({"id": "q", "question": "?", "answers": ["Paris"]}))
    write_text(folder / "bare.jsonl", to_jsonl({"id": "q", "question": "?"}))
    write_text(folder / "a.run", "q Q0 d 1 2 t\nq Q0 gone 2 1 t\n")
    write_text(folder / "x.run", "x7 Q0 d 1 1 t\n")
    write_text(folder / "p.jsonl", to_jsonl({"query_id": "q", "answer": "Paris"}) + '{"query_id": "q", "answer": 3}\n')
    by_answers = ["a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl"]
    faults: list[tuple[list[str], type[DrtkError], str]] = [
        (["a.run"], UsageError, "--qrels or --answers is required"),
        (by_answers[:3], UsageError, "--corpus FILE"),
        ([*by_answers, "--qrels", "q.jsonl"], UsageError, "--qrels and --answers cannot be combined"),
        ([*by_answers, "--measures", "R@10"], UsageError, r"R@10 requires `qrels`"),
        ([*by_answers, "--measures", "Answer"], UsageError, "such as Answer@10"),
        ([*by_answers, "--by", "source"], UsageError, "`by=source`"),
        (["a.run", "--qrels", "q.jsonl", "--measures", "Answer@1"], UsageError, "requires `answers`"),
        (["a.run", "--exact-match"], UsageError, "--answers FILE"),
        (["p.jsonl", "--exact-match", *by_answers[1:3], "--measures", "RR"], UsageError, "expected EM or F1"),
        (["p.jsonl", "--exact-match", *by_answers[1:3]], RecordError, r"^p\.jsonl:2: .*'answer'"),
        (
            by_answers,
            MismatchError,
            r"^a\.run:2: passage 'gone' is not in the corpus c\.jsonl; pass the corpus of this run$",
        ),
        (
            ["x.run", *by_answers[1:]],
            MismatchError,
            r"^x\.run: no query has answers \(run: 'x7', answers: 'q'\); pass the answers of these queries$",
        ),
        (["a.run", "--answers", "bare.jsonl", *by_answers[3:]], DrtkError, "no question has an answer"),
    ]
    for arguments, fault, problem in faults:
        with pytest.raises(fault, match=problem):
            run_command(capfd, "eval", *arguments)


WORDS = ["river", "Lake", "U.S.", "1,000", "Beyonc\u00e9", "O'Brien", "the", "rock-n-roll", "stone", "\u65e5\u672c"]
ANSWERS = [
    ["lake"],
    ["US"],
    ["beyonce\u0301"],
    ["Beyonce"],
    ["rock n roll", "stone"],
    ["1000"],
    ["", "The Lake"],
    ["\u65e5"],
]
PATTERNS = [["l.ke"], ["^river"], ["("], ["(", "STONE$"], [" "], ["\u00c9"], ["\\d,\\d+"], ["o'b", ""]]


def find_first_relevant(texts: list[str], answers: list[str], *, regex: bool) -> int | None:
    rank = queries.rank_label([queries.Found("", text) for text in texts], answers, max_rank=-1, depth=len(texts))
    if regex:
        rank = next((at for at, text in enumerate(texts, 1) if slow.has_answer(answers, text, regex=True)), -1)
    return None if rank < 0 else rank


@pytest.mark.parametrize("regex", [False, True])
def test_top_k_accuracy_equals_the_reference(folder: Path, capfd: pytest.CaptureFixture[str], regex: bool) -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 3))) for _ in range(60)]
    write_rows(
        folder / "c.jsonl",
        [{"_id": f"d{n}", "title": draw.choice(WORDS), "text": text} for n, text in enumerate(texts)],
    )
    questions, lines = [], []
    ranks: list[int | None] = []
    for number in range(24):
        answers = draw.choice(PATTERNS if regex else ANSWERS)
        questions.append({"_id": f"q{number}", "text": "?", "answers": answers})
        result = draw.sample(
            range(60), draw.choice([0, 1, 8, 60])
        )  # 0: the run lacks the question, which is wrong then
        lines += [f"q{number} Q0 d{name} {rank} {100 - rank} t\n" for rank, name in enumerate(result, start=1)]
        if any(answer.strip() for answer in answers):
            ranks.append(find_first_relevant([texts[name] for name in result], answers, regex=regex))
    write_rows(folder / "q.jsonl", questions)
    write_text(folder / "a.run", "".join(lines))
    cutoffs = (1, 2, 5, 20, 100)
    more = ["--measures", " ".join(f"Answer@{k}" for k in cutoffs), "--match", "regex" if regex else "tokens"]
    means = run_eval(capfd, "a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", *more)
    for k in cutoffs:
        assert means[f"Answer@{k}"] == pytest.approx(slow.top_k_accuracy(ranks, k)), k


def test_question_with_an_invalid_pattern_counts_as_wrong(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # q0 is right; q1's only pattern is none and matches nothing: 1/2. A blank pattern is no answer, q2 is left out.
    write_rows(folder / "c.jsonl", [{"_id": "d", "text": "the ( of 1984"}])
    answer_lists = [[r"19\d\d"], ["("], [" "]]
    write_rows(
        folder / "q.jsonl", [{"_id": f"q{n}", "text": "?", "answers": result} for n, result in enumerate(answer_lists)]
    )
    write_text(folder / "a.run", "".join(f"q{n} Q0 d 1 1 t\n" for n in range(3)))
    more = ["--measures", "Answer@1", "--match", "regex"]
    assert run_eval(capfd, "a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", *more)["Answer@1"] == 0.5


@pytest.mark.parametrize("seed", range(2))
def test_reader_gets_the_top_of_a_fused_run(folder: Path, capfd: pytest.CaptureFixture[str], seed: int) -> None:
    draw = random.Random(seed)
    texts = {f"d{n}": {"title": draw.choice(WORDS), "text": draw.choice(WORDS)} for n in range(30)}
    write_rows(folder / "c.jsonl", [{"_id": id} | row for id, row in texts.items()])
    lists = [draw.sample(list(texts), draw.randint(1, 20)) for _ in range(3)]
    for number, names in enumerate(lists):
        lines = [f"q Q0 {name} {rank} {50 * number - rank} t\n" for rank, name in enumerate(names, start=1)]
        write_text(folder / f"{number}.run", "".join(lines))
    run_command(
        capfd, "fuse", "0.run", "1.run", "2.run", "--method", "round-robin", "--top", "100", "-o", "fused", "-q"
    )
    shown = queries.round_robin(lists, 100)[:10]
    wanted = [queries.reader_input("who?", **texts[name]) for name in shown]
    for order in ("rank", "score"):  # a reader that sorts sees the same
        reading = iter_reader_questions(
            "fused",
            queries={"q": "who?"},
            corpus=CorpusStore.open("c.jsonl"),
            depth=10,
            order=order,
            tracker=InputTracker(),
        )
        assert [each.inputs for each in reading] == [wanted]


def test_rouge_of_a_worked_example() -> None:
    # 4 of 5 words written are among the 6 wanted: P 4/5, R 4/6, F 8/11; pairs: "the cat", of 4 and 5: F 2/9
    # longest common subsequence the cat on mat, 4: F 8/11
    result = compute_rouge(["The cat on a mat!"], ["the cat sat on the mat"])
    assert result == pytest.approx({"rouge1": 8 / 11, "rouge2": 2 / 9, "rougeL": 8 / 11})


def test_rouge_is_averaged_and_0_without_texts() -> None:
    result = compute_rouge(["a b", "c", ""], ["a b", "d", "e"])
    assert result == pytest.approx({"rouge1": 1 / 3, "rouge2": 1 / 3, "rougeL": 1 / 3})
    assert compute_rouge([], []) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


def test_rouge_tokenizes_all_scripts() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    written, wanted = "Re-trains `x_y` (v2.0), it's 3D", "it retrains x_y v2 0; 3d's"
    expected = RougeScorer(["rouge1", "rouge2", "rougeL"]).score(wanted, written)
    assert compute_rouge([written], [wanted]) == pytest.approx({name: each.fmeasure for name, each in expected.items()})
    assert compute_rouge(["что такое крыло"], ["Крыло"])["rouge1"] == pytest.approx(2 * (1 / 3) / (1 / 3 + 1))


def test_missing_rouge_score_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(MissingDependency, match=r"ROUGE needs rouge-score.*pip install rouge-score"):
        compute_rouge(["a"], ["a"])
