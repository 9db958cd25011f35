"""Write a synthetic collection of questions, passages with their answers, and a run that ranks these passages second."""

import random
from dataclasses import dataclass
from pathlib import Path

from tests.expansion_collection import write_rows
from tests.run_commands import write_text
from tests.tiny_models import TOPICS, make_topic_words


@dataclass(frozen=True)
class QuestionFiles:
    """Paths of the files; and by question id the text, the answer and the sentence that contains it."""

    questions: Path
    corpus: Path
    run: Path
    texts: dict[str, str]
    answers: dict[str, str]
    sentences: dict[str, str]


def write_questions(folder: Path, count: int, *, seed: int = 0) -> QuestionFiles:
    """Write questions q0, q1, …; each is answered only by passage d0, d1, …, its second hit."""
    draw = random.Random(seed)
    texts: dict[str, str] = {}
    rows, passages, lines, answers, sentences = [], [], [], {}, {}
    while len(texts) < count:
        number = len(texts)
        first, second, third, fourth = draw.sample(make_topic_words(TOPICS[number % len(TOPICS)]), 4)
        if f"{first} {second}?" in texts.values():
            continue
        id = f"q{number}"
        texts[id], answers[id] = f"{first} {second}?", third
        sentences[id] = f"The {third} {fourth} end."
        rows.append({"_id": id, "text": texts[id], "answers": [third]})
        passages.append(
            {"_id": f"d{number}", "title": third.capitalize(), "text": f"{first} {second}. {sentences[id]} More."}
        )
        for rank, other in enumerate(((number + 1) % count, number, (number + 2) % count), start=1):
            lines.append(f"{id} Q0 d{other} {rank} {10 - rank}.0 bm25\n")
    paths = [write_rows(folder / "questions.jsonl", rows), write_rows(folder / "passages.jsonl", passages)]
    paths.append(write_text(folder / "bm25.run", "".join(lines)))
    return QuestionFiles(*paths, texts, answers, sentences)
