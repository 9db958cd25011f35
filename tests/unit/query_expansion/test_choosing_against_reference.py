"""Candidates, choices and labels against loops written from the description of the methods alone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.query_expansion.candidates import distinct
from drtk.query_expansion.read import reader_input
from drtk.query_expansion.rerank import CHOICES, by_estimate, concatenated
from drtk.records import Expansion, Passage
from drtk.retrieval.search import PassageSearcher
from tests.expansions import rows_of, write_rows
from tests.reference import queries as slow
from tests.reference.queries import Candidate, Found

KINDS = ("answer", "sentence", "title")
TEXTS = [
    "Nile",
    "nile",
    "Lake Victoria",
    "the river",
    "Beyonc\u00e9",
    "Beyonce\u0301",
    "1858",
    "\u65e5\u672c",
    "a b c",
    "U.S.",
]


def drawn(draw: random.Random, count: int) -> list[Candidate]:
    """So many candidates, of which some repeat a text, a rank or a score."""
    return [
        Candidate(draw.choice(TEXTS), draw.choice([1, 2, 15, 101]), draw.choice([-1.0, 0.5, 0.25, 3.0]))
        for _ in range(count)
    ]


def records(candidates: list[Candidate], kind: str = "answer") -> list[Expansion]:
    return [Expansion(f"q#{kind}#{at}", "q", kind, each.text, rank=each.rank) for at, each in enumerate(candidates)]


@pytest.mark.parametrize("seed", range(60))
def test_what_is_chosen_is_what_the_reference_chooses(seed: int) -> None:
    draw = random.Random(seed)
    candidates = drawn(draw, draw.randint(1, 12))
    most = draw.choice([None, 1, 2, 5])
    expansions = records(candidates)
    left = distinct(expansions, most)
    assert [each.text for each in left] == [each.text for each in slow.first_distinct(candidates, most)]
    estimates = np.array([candidates[expansions.index(each)].score for each in left], dtype=np.float32)
    found = {"scorer": by_estimate(left, estimates), "first": CHOICES["first"](left), "oracle": CHOICES["oracle"](left)}
    for select, chosen in found.items():
        for top in (1, 3, 20):
            wanted = slow.chosen(candidates, select, max_candidates=most, top=top)  # type: ignore[arg-type]
            assert [(each.text, each.rank) for each in chosen[:top]] == [(each.text, each.rank) for each in wanted], (
                select
            )
    query, cut = concatenated("who?", distinct(expansions))
    assert (query, cut) == (slow.expanded("who?", slow.joined(candidates)), False)


def test_a_passage_is_read_as_the_reference_says() -> None:
    for title, text in (("Nile", "It flows."), ("Beyonc\u00e9", "\u65e5\u672c \u2014 x")):
        wanted = slow.reader_input("who sang?", title, text)
        assert reader_input("who sang?", Passage("d", text, title)) == wanted


@pytest.mark.parametrize("seed", range(4))
def test_query_files_hold_what_the_reference_chooses(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    questions = [{"_id": f"q{n}", "text": draw.choice(["who?", " which of them ", "what??"])} for n in range(12)]
    groups: dict[tuple[str, str], list[Candidate]] = {}
    rows: list[dict[str, Any]] = []
    for question in questions:
        for kind in KINDS:
            groups[question["_id"], kind] = drawn(draw, draw.randint(1, 9))
            for at, each in enumerate(groups[question["_id"], kind]):
                row = {"_id": f"{question['_id']}#{kind}#{at}", "query_id": question["_id"], "kind": kind}
                # GAR's greedy text is the first of its samples
                rows.append(row | {"text": each.text, "rank": each.rank} | ({"decode": "greedy"} if at == 0 else {}))
    asked, source = write_rows(tmp_path / "q", questions), write_rows(tmp_path / "e", rows)
    for select, top, most in [
        ("oracle", 1, None),
        ("oracle", 3, 4),
        ("first", 1, None),
        ("first", 2, 1),
        ("greedy", 1, None),
    ]:
        output = tmp_path / f"{select}{top}{most}"
        call = [
            "rerank-queries",
            "apply",
            source,
            "--queries",
            asked,
            "-o",
            output,
            "--select",
            select,
            "--top",
            top,
            "-q",
        ]
        app(
            [str(each) for each in (*call, *([] if most is None else ["--max-candidates", most]))],
            standalone_mode=False,
        )
        for kind in KINDS:
            for place in range(top):
                file = output / (f"{kind}.jsonl" if top == 1 else f"{kind}.{place + 1}.jsonl")
                wanted = {}
                for question in questions:
                    best = slow.chosen(groups[question["_id"], kind], select, max_candidates=most, top=top)  # type: ignore[arg-type]
                    if place < len(best):
                        wanted[question["_id"]] = slow.expanded(question["text"], best[place].text)
                assert {row["_id"]: row["text"] for row in rows_of(file)} == wanted, (select, top, most)
    output = tmp_path / "concat"
    app(
        [
            "rerank-queries",
            "apply",
            str(source),
            "--queries",
            str(asked),
            "-o",
            str(output),
            "--select",
            "concat",
            "-q",
        ],
        standalone_mode=False,
    )
    for kind in KINDS:
        for row in rows_of(output / f"{kind}.jsonl"):
            question = next(each for each in questions if each["_id"] == row["_id"])
            assert row["text"] == slow.expanded(question["text"], slow.joined(groups[row["_id"], kind]))


def test_labels_are_the_ranks_of_the_reference(tmp_path: Path) -> None:
    draw = random.Random(7)
    words = ["river", "lake", "nile", "stone", "bridge", "town", "north", "speke", "Beyonc\u00e9", "U.S."]
    corpus = [
        {"_id": f"d{n}", "title": draw.choice(words), "text": " ".join(draw.choices(words, k=draw.randint(1, 12)))}
        for n in range(60)
    ]
    answers = [["Speke"], ["beyonce\u0301"], ["nowhere"], ["US", "stone bridge", ""], ["U.S."], ["Beyonce"]]
    questions = [{"_id": f"q{n}", "text": f"{words[n]} town?", "answers": found} for n, found in enumerate(answers)]
    rows = [
        {
            "_id": f"q{n}#{at}",
            "query_id": f"q{n}",
            "kind": "answer",
            "text": " ".join(draw.choices([*words, "unheard"], k=2)),
        }
        for n in range(len(answers))
        for at in range(5)
    ]
    paths = {
        name: write_rows(tmp_path / name, found) for name, found in (("c.jsonl", corpus), ("q", questions), ("e", rows))
    }
    index = tmp_path / "index"
    app(["index", str(paths["c.jsonl"]), "--type", "bm25s", "-o", str(index), "-q"], standalone_mode=False)
    texts = PassageSearcher(str(index))
    asked = {row["_id"]: row for row in questions}
    seen = set()
    for depth, max_rank in ((100, 101), (3, 250), (1, 2)):
        output = tmp_path / f"{depth}"
        call = ["rerank-queries", "label", paths["e"], "--queries", paths["q"], "--index", index, "-o", output, "-q"]
        app([str(each) for each in (*call, "--depth", depth, "--max-rank", max_rank)], standalone_mode=False)
        for row in rows_of(output):
            question = asked[row["query_id"]]
            (ranking,) = texts.search([slow.expanded(question["text"], row["text"])], 100)
            found = [
                Found(passage.id, passage.text, passage.title) for passage in (texts.passage(id) for id, _ in ranking)
            ]
            wanted = slow.rank_label(found, question["answers"], max_rank=max_rank, depth=depth)
            assert row["rank"] == wanted, json.dumps(row)
            assert row["top1"] == {"title": found[0].title, "text": found[0].text}
            seen.add(wanted)
    assert {1, 2, 3, 101, 250} <= seen
