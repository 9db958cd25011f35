"""Made-up questions with answers, passages that hold them in their second sentence, and a run that ranks those second."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from tests.tiny_models import TOPICS, make_topic_words


@dataclass(frozen=True)
class QuestionFiles:
    """Paths of the files, and by id of each question its text, its answer and the sentence with it."""

    questions: Path
    corpus: Path
    run: Path
    texts: dict[str, str]
    answers: dict[str, str]
    sentences: dict[str, str]


def write_questions(folder: Path, count: int, *, seed: int = 0) -> QuestionFiles:
    """Questions q0, q1, … whose answers stand in passages d0, d1, … alone, which are their second hits."""
    draw = random.Random(seed)
    asked: dict[str, str] = {}
    rows, passages, lines, answers, sentences = [], [], [], {}, {}
    while len(asked) < count:
        number = len(asked)
        first, second, third, fourth = draw.sample(make_topic_words(TOPICS[number % len(TOPICS)]), 4)
        if f"{first} {second}?" in asked.values():
            continue
        id = f"q{number}"
        asked[id], answers[id] = f"{first} {second}?", third
        sentences[id] = f"The {third} {fourth} end."
        rows.append({"_id": id, "text": asked[id], "answers": [third]})
        passages.append(
            {"_id": f"d{number}", "title": third.capitalize(), "text": f"{first} {second}. {sentences[id]} More."}
        )
        for rank, other in enumerate(((number + 1) % count, number, (number + 2) % count), start=1):
            lines.append(f"{id} Q0 d{other} {rank} {10 - rank}.0 bm25\n")
    paths = []
    for name, text in (
        ("questions.jsonl", "".join(json.dumps(row) + "\n" for row in rows)),
        ("passages.jsonl", "".join(json.dumps(row) + "\n" for row in passages)),
        ("bm25.run", "".join(lines)),
    ):
        paths.append(folder / name)
        paths[-1].write_text(text, encoding="utf-8")
    return QuestionFiles(*paths, asked, answers, sentences)
