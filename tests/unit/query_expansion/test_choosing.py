"""Choices among candidates, query files and labels, by hand and against tests/reference/queries.py."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drtk.cli.main import app
from drtk.query_expansion.candidates import select_distinct
from drtk.query_expansion.rerank import SELECTIONS, concatenate, sort_by_estimate, sort_by_label
from drtk.records import Expansion
from drtk.retrieval.search import PassageSearcher
from tests.expansion_collection import read_rows, write_rows
from tests.reference import queries as slow
from tests.reference.queries import Candidate, Found


def candidates(*ranks: int | None, texts: str = "") -> list[Expansion]:
    words = texts.split("|") if texts else [f"t{at}" for at in range(len(ranks))]
    return [Expansion(f"e{at}", "q", "answer", words[at], rank=rank) for at, rank in enumerate(ranks)]


def ids(found: list[Expansion]) -> list[str]:
    return [each.id for each in found]


def test_the_lowest_estimate_is_the_best_and_ties_keep_their_order() -> None:
    found = sort_by_estimate(candidates(None, None, None, None), np.array([0.5, -1.0, 0.5, -1.0], dtype=np.float32))
    assert ids(found) == ["e1", "e3", "e0", "e2"]


def test_the_oracle_takes_the_lowest_label_and_ties_keep_their_order() -> None:
    assert ids(sort_by_label(candidates(101, 7, 101, 7))) == ["e1", "e3", "e0", "e2"]


def test_texts_that_differ_in_white_space_alone_are_one_candidate() -> None:
    found = select_distinct(candidates(1, 2, 3, 4, texts="a b| a  b|A b|c"))
    assert ids(found) == ["e0", "e2", "e3"]
    assert ids(select_distinct(candidates(1, 2, 3, texts="a|a|b"), 2)) == ["e0", "e2"]


def test_all_candidates_make_one_query_cut_where_it_has_too_many_words() -> None:
    found = candidates(1, 2, texts="red Red|blue green")
    assert concatenate("which?", found) == ("which ? red Red blue green", False)
    assert concatenate("which?", found, max_clauses=3) == ("which ? red Red blue", True)  # which red blue
    assert concatenate("which?", found, max_clauses=4) == ("which ? red Red blue green", False)


KINDS = ("answer", "sentence", "title")
TEXTS = [*"Nile|nile|Lake Victoria|the river|Beyonc\u00e9|Beyonce\u0301|1858|\u65e5\u672c|a b c|U.S.".split("|")]


def drawn(draw: random.Random, count: int) -> list[Candidate]:
    """So many candidates, of which some repeat a text, a rank or a score."""
    return [
        Candidate(draw.choice(TEXTS), draw.choice([1, 2, 15, 101]), draw.choice([-1.0, 0.5, 0.25, 3.0]))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_selections_equal_those_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    made = drawn(draw, draw.randint(1, 12))
    most = draw.choice([None, 1, 2, 5])
    expansions = candidates(*(each.rank for each in made), texts="|".join(each.text for each in made))
    left = select_distinct(expansions, most)
    assert [each.text for each in left] == [each.text for each in slow.first_distinct(made, most)]
    estimates = np.array([made[expansions.index(each)].score for each in left], dtype=np.float32)
    choices = {name: choose(left) for name, choose in SELECTIONS.items() if name != "greedy"}
    for select, chosen in (choices | {"scorer": sort_by_estimate(left, estimates)}).items():
        for top in (1, 3, 20):
            wanted = slow.chosen(made, select, max_candidates=most, top=top)  # type: ignore[arg-type]
            assert [(each.text, each.rank) for each in chosen[:top]] == [(each.text, each.rank) for each in wanted]
    query, cut = concatenate("who?", select_distinct(expansions))
    assert (query, cut) == (slow.expanded("who?", slow.joined(made)), False)


def test_query_files_equal_those_of_the_reference(tmp_path: Path) -> None:
    draw = random.Random(0)
    questions = [{"_id": f"q{n}", "text": draw.choice(["who?", " which of them ", "what??"])} for n in range(12)]
    candidates: dict[tuple[str, str], list[Candidate]] = {}
    rows: list[dict[str, Any]] = []
    for question in questions:
        for kind in KINDS:
            candidates[question["_id"], kind] = drawn(draw, draw.randint(1, 9))
            for at, candidate in enumerate(candidates[question["_id"], kind]):
                row = {"_id": f"{question['_id']}#{kind}#{at}", "query_id": question["_id"], "kind": kind}
                greedy = {"decode": "greedy"} if at == 0 else {}  # GAR's greedy text is the first
                rows.append(row | {"text": candidate.text, "rank": candidate.rank} | greedy)
    files = f"{write_rows(tmp_path / 'e', rows)} --queries {write_rows(tmp_path / 'q', questions)}"
    for select, top, most in (
        ("oracle", 1, None), ("oracle", 3, 4), ("first", 2, 1), ("greedy", 1, None), ("concat", 1, None),
    ):  # fmt: skip
        output = tmp_path / f"{select}{top}"
        limit = "" if most is None else f"--set max_candidates={most}"
        call = f"rerank-queries apply {files} -q --select {select} --n-best {top} {limit} -o {output}"
        app(call.split(), standalone_mode=False)
        for kind in KINDS:
            for place in range(top):
                expected = {}
                for question in questions:
                    own = candidates[question["_id"], kind]
                    if select == "concat":
                        expected[question["_id"]] = slow.expanded(question["text"], slow.joined(own))
                        continue
                    best = slow.chosen(own, select, max_candidates=most, top=top)  # type: ignore[arg-type]
                    if place < len(best):
                        expected[question["_id"]] = slow.expanded(question["text"], best[place].text)
                file = output / (f"{kind}.jsonl" if top == 1 else f"{kind}.{place + 1}.jsonl")
                assert {row["_id"]: row["text"] for row in read_rows(file)} == expected, (select, top, most)


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
        {"_id": f"q{n}#{at}", "query_id": f"q{n}", "kind": "answer"}
        | {"text": " ".join(draw.choices([*words, "unheard"], k=2))}
        for n in range(len(answers))
        for at in range(5)
    ]
    for name, content in (("c.jsonl", corpus), ("q", questions), ("e", rows)):
        write_rows(tmp_path / name, content)
    index = tmp_path / "index"
    app(f"index {tmp_path}/c.jsonl --type bm25s -o {index} -q".split(), standalone_mode=False)
    searcher = PassageSearcher(str(index))
    question_of = {row["_id"]: row for row in questions}
    ranks = set()
    for depth, max_rank in ((100, 101), (3, 250), (1, 2)):
        call = f"rerank-queries label {tmp_path}/e --queries {tmp_path}/q --index {index} -o {tmp_path}/{depth} -q"
        app(f"{call} --depth {depth} --set max_rank={max_rank}".split(), standalone_mode=False)
        for row in read_rows(tmp_path / str(depth)):
            question = question_of[row["query_id"]]
            (ranking,) = searcher.search([slow.expanded(question["text"], row["text"])], 100)
            hits = [
                Found(passage.id, passage.text, passage.title)
                for passage in (searcher.get_passage(id) for id, _ in ranking)
            ]
            expected = slow.rank_label(hits, question["answers"], max_rank=max_rank, depth=depth)
            assert row["rank"] == expected, json.dumps(row)
            assert row["top1"] == {"title": hits[0].title, "text": hits[0].text}
            ranks.add(expected)
    assert {1, 2, 3, 101, 250} <= ranks
