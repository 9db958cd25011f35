"""Top-k accuracy, exact match and what a reader is shown, against loops written from the description of the methods alone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from drtk.data.corpus_store import CorpusStore
from drtk.query_expansion.read import questions_read
from drtk.runtime.inputs import Intake
from tests.expansions import write_rows
from tests.reference import answers as slow
from tests.reference import queries
from tests.running import command, write

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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def overall(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, float]:
    """The last line that eval prints: the means."""
    found: dict[str, float] = json.loads(command(capfd, "eval", "-q", *arguments, "--format", "jsonl").splitlines()[-1])
    return found


def first_right(texts: list[str], answers: list[str], *, regex: bool) -> int | None:
    rank = queries.rank_label([queries.Found("", text) for text in texts], answers, max_rank=-1, depth=len(texts))
    if regex:
        rank = next((at for at, text in enumerate(texts, 1) if slow.has_answer(answers, text, regex=True)), -1)
    return None if rank < 0 else rank


@pytest.mark.parametrize("regex", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_top_k_accuracy_is_that_of_the_reference(
    here: Path, capfd: pytest.CaptureFixture[str], seed: int, regex: bool
) -> None:
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 3))) for _ in range(60)]
    write_rows(
        here / "c.jsonl", [{"_id": f"d{n}", "title": draw.choice(WORDS), "text": text} for n, text in enumerate(texts)]
    )
    questions, lines = [], []
    ranks: list[int | None] = []
    for number in range(24):
        answers = draw.choice(PATTERNS if regex else ANSWERS)
        questions.append({"_id": f"q{number}", "text": "?", "answers": answers})
        found = draw.sample(range(60), draw.choice([0, 1, 8, 60]))  # 0: the run lacks the question, which is wrong then
        lines += [f"q{number} Q0 d{name} {rank} {100 - rank} t\n" for rank, name in enumerate(found, start=1)]
        if any(answer.strip() for answer in answers):
            ranks.append(first_right([texts[name] for name in found], answers, regex=regex))
    write_rows(here / "q.jsonl", questions)
    write(here / "a.run", "".join(lines))
    cutoffs = (1, 2, 5, 20, 100)
    more = ["--measures", " ".join(f"Answer@{k}" for k in cutoffs), "--match", "regex" if regex else "tokens"]
    means = overall(capfd, "a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", *more)
    for k in cutoffs:
        assert means[f"Answer@{k}"] == pytest.approx(slow.top_k_accuracy(ranks, k)), k


def test_a_question_whose_pattern_is_invalid_is_wrong_and_not_left_out(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # q0 is right; q1's only pattern is none and matches nothing: 1/2. A blank pattern is no answer, q2 is left out.
    write_rows(here / "c.jsonl", [{"_id": "d", "text": "the ( of 1984"}])
    asked = [[r"19\d\d"], ["("], [" "]]
    write_rows(here / "q.jsonl", [{"_id": f"q{n}", "text": "?", "answers": found} for n, found in enumerate(asked)])
    write(here / "a.run", "".join(f"q{n} Q0 d 1 1 t\n" for n in range(3)))
    more = ["--measures", "Answer@1", "--match", "regex"]
    assert overall(capfd, "a.run", "--answers", "q.jsonl", "--corpus", "c.jsonl", *more)["Answer@1"] == 0.5


@pytest.mark.parametrize("seed", range(4))
def test_exact_match_is_that_of_the_reference(here: Path, capfd: pytest.CaptureFixture[str], seed: int) -> None:
    draw = random.Random(seed)
    spelled = [
        "U.S.",
        "US",
        "1,000",
        "1000",
        "the",
        "a",
        "Rock-n-roll",
        "rocknroll",
        "rock n roll",
        "Beyonc\u00e9",
        "The  US!",
        "",
    ]
    golds = {f"q{n}": draw.sample(spelled[:-1], draw.randint(1, 3)) for n in range(40)}
    said = {id: draw.choice(spelled) for id in golds if draw.random() < 0.9}
    write_rows(here / "q.jsonl", [{"_id": id, "text": "?", "answers": found} for id, found in golds.items()])
    write_rows(here / "p.jsonl", [{"query_id": id, "answer": answer} for id, answer in said.items()])
    found = overall(capfd, "p.jsonl", "--exact-match", "--answers", "q.jsonl", "--measures", "EM")["EM"]
    assert found == pytest.approx(slow.exact_match_of_all(said, golds))


@pytest.mark.parametrize("seed", range(6))
def test_a_reader_is_shown_the_first_of_a_fused_list(here: Path, capfd: pytest.CaptureFixture[str], seed: int) -> None:
    draw = random.Random(seed)
    texts = {f"d{n}": {"title": draw.choice(WORDS), "text": draw.choice(WORDS)} for n in range(30)}
    write_rows(here / "c.jsonl", [{"_id": id} | row for id, row in texts.items()])
    lists = [draw.sample(list(texts), draw.randint(1, 20)) for _ in range(3)]
    for number, names in enumerate(lists):
        lines = [f"q Q0 {name} {rank} {50 * number - rank} t\n" for rank, name in enumerate(names, start=1)]
        write(here / f"{number}.run", "".join(lines))
    command(capfd, "fuse", "0.run", "1.run", "2.run", "--method", "round-robin", "--top", "100", "-o", "fused", "-q")
    shown = queries.round_robin(lists, 100)[:10]
    wanted = [queries.reader_input("who?", **texts[name]) for name in shown]
    for order in ("rank", "score"):  # a reader that sorts sees the same
        reading = questions_read(
            "fused", queries={"q": "who?"}, corpus=CorpusStore.open("c.jsonl"), depth=10, order=order, intake=Intake()
        )
        assert [each.inputs for each in reading] == [wanted]
