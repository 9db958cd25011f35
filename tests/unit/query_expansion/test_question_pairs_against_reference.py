"""Targets of GAR generators from files, against loops written from the description of the methods alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drtk.config import load_preset, merge_settings
from drtk.query_expansion.train_generator import build_question_pairs
from drtk.runtime.inputs import InputTracker
from drtk.text.sentences import split_plain_sentences
from drtk.training.config import GeneratorConfig
from tests.expansion_collection import write_rows
from tests.reference import queries as slow
from tests.reference.queries import Found
from tests.run_commands import write_text

WORDS = ["river", "lake", "stone", "bridge", "town", "north", "DAVID", "Beyonc\u00e9", "nile"]
ANSWERS = [
    ["David"],
    ["Speke"],
    ["NILE", "lake"],
    ["beyonce\u0301"],
    ["never said"],
    [""],
    [],
    ["U.S."],
    ["stone bridge", "x"],
]


@pytest.mark.parametrize("seed", range(4))
def test_questions_get_the_targets_of_the_reference(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    passages = []
    for number in range(40):
        sentences = [
            " ".join(["Here", *draw.choices(WORDS, k=draw.randint(1, 5))]) + "." for _ in range(draw.randint(1, 3))
        ]
        passages.append(
            {"_id": f"d{number}", "title": draw.choice(["Nile", "Ruvu", "Speke"]), "text": " ".join(sentences)}
        )
    known = {row["_id"]: Found(row["_id"], row["text"], row["title"]) for row in passages}
    questions: list[dict[str, Any]] = []
    found: dict[str, list[Found]] = {}
    lines = []
    for number, answers in enumerate([*ANSWERS, *ANSWERS]):
        questions.append({"_id": f"q{number}", "text": f"which {number}?", "answers": answers})
        names = draw.sample(list(known), draw.choice([0, 1, 3, 20]))
        found[f"q{number}"] = [known[name] for name in names]
        lines += [f"q{number} Q0 {name} {rank} {100 - rank} t\n" for rank, name in enumerate(names, start=1)]
    asked, corpus = write_rows(tmp_path / "q.jsonl", questions), write_rows(tmp_path / "c.jsonl", passages)
    run = write_text(tmp_path / "run", "".join(lines))
    presets = ["gar-answer", "gar-answer-triviaqa", "gar-sentence", "gar-title", "gar-title-triviaqa"]
    for preset in presets:
        plain = merge_settings(GeneratorConfig, load_preset(preset).settings, {})
        for settings in (plain, replace(plain, depth=2), replace(plain, title_mode="first")):
            pairs = build_question_pairs(
                str(asked), run=str(run), corpus=str(corpus), settings=settings, format=str, tracker=InputTracker()
            )
            wanted = {}
            for question in questions:
                answers = [answer for answer in question["answers"] if answer]
                hits = found[question["_id"]][: settings.depth]
                if settings.kind == "answer":
                    target = answers[0] if answers else None
                    if target and settings.answer_case == "initial":
                        target = slow.initial_capitals(target)
                elif settings.kind == "sentence":
                    target = slow.sentence_target(hits, answers, split=split_plain_sentences)
                else:
                    target = ", ".join(slow.title_targets(hits, answers, every=settings.title_mode == "all")) or None
                if target:
                    wanted[question["text"]] = target
            assert {pairs[at].source: pairs[at].target for at in range(len(pairs))} == wanted, settings
            assert len(pairs) == len(wanted)
    assert merge_settings(GeneratorConfig, load_preset("gar-title").settings, {}).title_mode == "all"
