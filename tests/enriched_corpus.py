"""Write a synthetic corpus with all fields that pre-training can use: neighbors, queries, continuations, weights."""

import json
import random
from pathlib import Path

from drtk.text.word_pieces import WordPieceTokenizer
from tests.tiny_models import TOPICS, make_topic_words


def write_enriched_corpus(path: Path, model: Path, *, documents: int = 12, passages: int = 3, seed: int = 0) -> Path:
    """Write documents of several passages with two sentences each; weights are for the tokenizer of `model`."""
    draw = random.Random(seed)
    tokenizer = WordPieceTokenizer(str(model))
    rows = []
    for document in range(documents):
        words = make_topic_words(TOPICS[document % len(TOPICS)])
        for position in range(passages):
            first = " ".join(draw.choices(words, k=draw.randint(3, 8)))
            second = " ".join(draw.choices(words, k=draw.randint(3, 8)))
            text = f"{first} {second}"
            pieces = len(tokenizer([text])[0].ids)
            rows.append(
                {
                    "_id": f"d{document}#{position}",
                    "title": words[0],
                    "text": text,
                    "metadata": {
                        "source_id": f"d{document}",
                        "position": position,
                        "sentences": [[0, len(first)], [len(first) + 1, len(text)]],
                        "weights_tokenizer": str(model),
                    },
                    "queries": [" ".join(draw.choices(words, k=3)) for _ in range(6)],
                    "continuations": [" ".join(draw.choices(words, k=9))],
                    "weights": [round(draw.random(), 3) for _ in range(pieces)],
                }
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
