"""Fine-tuning losses written a second time, from the description of the methods alone: floats, lists and loops.

Nothing is a tensor here. A query is looked at by itself, its candidates one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Vector = list[float]
Similarity = Literal["cosine", "dot"]
Masking = Literal["none", "duplicates", "answers"]


@dataclass(frozen=True)
class Asked:
    """A query of a batch: its vector, those of its passages (the positive first), and who they are.

    names: ids of its passages
    answers: ids of all passages that are labeled as its positives
    teacher: a score per passage
    """

    vector: Vector
    passages: list[Vector]
    names: list[str]
    answers: frozenset[str] = frozenset()
    teacher: tuple[float, ...] = ()


def likeness(first: Vector, second: Vector, *, similarity: Similarity) -> float:
    """The inner product of two vectors, or their cosine."""
    product = math.fsum(a * b for a, b in zip(first, second, strict=True))
    if similarity == "dot":
        return product
    return product / math.sqrt(math.fsum(a * a for a in first) * math.fsum(b * b for b in second))


def mean(numbers: Sequence[float]) -> float:
    """Their sum by their number."""
    return math.fsum(numbers) / len(numbers)


def loss_of(right: float, wrong: Sequence[float]) -> float:
    """-log of the share that the right score has in the softmax over all of them."""
    top = max([right, *wrong])
    return top + math.log(math.fsum(math.exp(score - top) for score in [right, *wrong])) - right


def shares(scores: Sequence[float]) -> list[float]:
    """The softmax."""
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / math.fsum(powers) for power in powers]


def is_answer(query: Asked, name: str, *, masking: Masking) -> bool:
    """Whether the passage of this name is known to be right for the query, hence no negative of it."""
    if masking == "duplicates":
        return name == query.names[0]
    return masking == "answers" and (name in query.answers or name == query.names[0])


def negatives(batch: list[Asked], number: int, *, masking: Masking) -> list[Vector]:
    """Every passage of the batch but the query's own positive, and but its answers wherever they come from."""
    query = batch[number]
    found = []
    for other, asked in enumerate(batch):
        for place, passage in enumerate(asked.passages):
            if (other, place) == (number, 0) or is_answer(query, asked.names[place], masking=masking):
                continue
            found.append(passage)
    return found


def infonce(
    batch: list[Asked], *, temperature: float, similarity: Similarity = "cosine", masking: Masking = "none"
) -> list[float]:
    """A loss per query: its positive against all other passages of the batch."""
    losses = []
    for number, query in enumerate(batch):
        right = likeness(query.vector, query.passages[0], similarity=similarity) / temperature
        wrong = [
            likeness(query.vector, passage, similarity=similarity) / temperature
            for passage in negatives(batch, number, masking=masking)
        ]
        losses.append(loss_of(right, wrong))
    return losses


def simlm_paper(
    batch: list[Asked], *, temperature: float, similarity: Similarity = "cosine", masking: Masking = "none"
) -> list[float]:
    """SimLM, equation 3: every negative counts twice, by its likeness to the query and by that to the positive."""
    losses = []
    for number, query in enumerate(batch):
        right = likeness(query.vector, query.passages[0], similarity=similarity) / temperature
        wrong = []
        for passage in negatives(batch, number, masking=masking):
            wrong.append(likeness(query.vector, passage, similarity=similarity) / temperature)
            wrong.append(likeness(query.passages[0], passage, similarity=similarity) / temperature)
        losses.append(loss_of(right, wrong))
    return losses


def simlm_full(
    batch: list[Asked], *, temperature: float, similarity: Similarity = "cosine", masking: Masking = "none"
) -> list[float]:
    """SimLM as released: beside the passages, other queries for the query and its positive, and other positives.

    What masking means here is not in the description: a query is no negative of a positive that answers it, two
    queries are none of each other where one's positive answers the other, and another positive is none, neither of
    the query nor of its positive, where it answers the query.
    """
    losses = []
    for number, query in enumerate(batch):
        positive = query.passages[0]
        right = likeness(query.vector, positive, similarity=similarity) / temperature
        wrong = [
            likeness(query.vector, passage, similarity=similarity)
            for passage in negatives(batch, number, masking=masking)
        ]
        for other, asked in enumerate(batch):
            if other == number:
                continue
            mine_answers_them = is_answer(asked, query.names[0], masking=masking)
            theirs_answers_me = is_answer(query, asked.names[0], masking=masking)
            if not mine_answers_them:
                wrong.append(likeness(positive, asked.vector, similarity=similarity))
            if not mine_answers_them and not theirs_answers_me:
                wrong.append(likeness(query.vector, asked.vector, similarity=similarity))
            if not theirs_answers_me:
                wrong.append(likeness(positive, asked.passages[0], similarity=similarity))
        losses.append(loss_of(right, [score / temperature for score in wrong]))
    return losses


def divergence(first: Sequence[float], second: Sequence[float]) -> float:
    """KL(first || second) of two distributions."""
    return math.fsum(p * math.log(p / q) for p, q in zip(first, second, strict=True) if p > 0)


def student_scores(query: Asked, *, temperature: float, similarity: Similarity) -> list[float]:
    """The query's own candidates as the retriever scores them."""
    return [likeness(query.vector, passage, similarity=similarity) / temperature for passage in query.passages]


def distillation(
    batch: list[Asked], *, temperature: float, similarity: Similarity = "cosine", teacher_temperature: float = 1.0
) -> list[float]:
    """A loss per query: KL from the teacher's distribution over the query's own candidates to the student's."""
    losses = []
    for query in batch:
        teacher = shares([score / teacher_temperature for score in query.teacher])
        student = shares(student_scores(query, temperature=temperature, similarity=similarity))
        losses.append(divergence(teacher, student))
    return losses


def margin_mse(batch: list[Asked], *, temperature: float = 1.0, similarity: Similarity = "dot") -> list[float]:
    """A loss per pair of a positive and a negative: the square of how far both margins are apart."""
    losses = []
    for query in batch:
        scores = student_scores(query, temperature=temperature, similarity=similarity)
        for place in range(1, len(scores)):
            student = scores[0] - scores[place]
            teacher = query.teacher[0] - query.teacher[place]
            losses.append((student - teacher) ** 2)
    return losses


def matryoshka(batch: list[Asked], sizes: Sequence[int], loss: Callable[[list[Asked]], float]) -> float:
    """The loss of the whole vectors plus that of their first numbers, once for each size."""
    total = loss(batch)
    for size in sizes:
        shorter = [
            replace(query, vector=query.vector[:size], passages=[passage[:size] for passage in query.passages])
            for query in batch
        ]
        total += loss(shorter)
    return total


def warmed_temperature(step: int, *, temperature: float, warmup: int) -> float:
    """1 over a scale that grows in a line to 1 / temperature while the steps warm up, and is 1 at least."""
    if step >= warmup:
        return temperature
    return 1 / max(1.0, step / warmup / temperature)


def window(items: Sequence[str], count: int, *, epoch: int, seed: int) -> list[str]:
    """`count` of the items in an epoch (from 0), from (epoch + seed) count on, round the end of the list."""
    start = (epoch + seed) * count % len(items)
    return [items[(start + step) % len(items)] for step in range(count)]


def listwise(logits: Sequence[float]) -> float:
    """-log softmax at the positive, which is the first of a query's passages."""
    return loss_of(logits[0], logits[1:])


def r_drop(first: Sequence[float], second: Sequence[float]) -> float:
    """Half of both cross-entropies, and half of both divergences, between two passes."""
    one, two = shares(first), shares(second)
    return 0.5 * listwise(first) + 0.5 * listwise(second) + 0.5 * (divergence(one, two) + divergence(two, one))


def kept_places(logits: Sequence[float], count: int) -> list[int]:
    """Places of the positive and of the count - 1 negatives with the highest logits."""
    places = sorted(range(1, len(logits)), key=lambda place: -logits[place])
    return [0, *places[: count - 1]]


def binary(logit: float, *, right: bool) -> float:
    """-log of the sigmoid for a right pair, of what it leaves for a wrong one."""
    return loss_of(logit, [0.0]) if right else loss_of(0.0, [logit])


def labeled_list(logits: Sequence[float], labels: Sequence[float]) -> float:
    """HLATR: cross-entropy of a list's softmax against its labels, which several positives share."""
    whole = math.fsum(labels)
    return math.fsum(
        label / whole * loss_of(logits[place], [*logits[:place], *logits[place + 1 :]])
        for place, label in enumerate(labels)
        if label
    )


def with_difference(retrieval: float, queries: float, passages: float, *, weight: float) -> float:
    """DPR with DiffCSE's second task beside it: the detection losses of both sides count `weight`."""
    return retrieval + weight * (queries + passages)
