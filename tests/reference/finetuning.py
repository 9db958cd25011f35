"""Reference implementation of the fine-tuning losses, written independently from the method descriptions.

It uses floats, lists and loops, without tensors.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Vector = list[float]
Similarity = Literal["cosine", "dot"]
Masking = Literal["none", "duplicates", "answers"]


@dataclass(frozen=True)
class BatchQuery:
    """A query of a batch with its passages, the positive first.

    names: ids of its passages
    answers: ids of all passages that are labeled as its positives
    teacher: teacher scores of the passages
    """

    vector: Vector
    passages: list[Vector]
    names: list[str]
    answers: frozenset[str] = frozenset()
    teacher: tuple[float, ...] = ()


def compute_similarity(first: Vector, second: Vector, *, similarity: Similarity) -> float:
    """Return the inner product of two vectors, or their cosine."""
    product = math.fsum(a * b for a, b in zip(first, second, strict=True))
    if similarity == "dot":
        return product
    return product / math.sqrt(math.fsum(a * a for a in first) * math.fsum(b * b for b in second))


def mean(numbers: Sequence[float]) -> float:
    """Return the mean of numbers."""
    return math.fsum(numbers) / len(numbers)


def cross_entropy(right: float, wrong: Sequence[float]) -> float:
    """Return the cross-entropy: -log softmax of the positive score `right` among all scores."""
    top = max([right, *wrong])
    return top + math.log(math.fsum(math.exp(score - top) for score in [right, *wrong])) - right


def softmax(scores: Sequence[float]) -> list[float]:
    """Return the softmax of scores."""
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / math.fsum(powers) for power in powers]


def is_answer(query: BatchQuery, name: str, *, masking: Masking) -> bool:
    """Return whether the passage `name` is a known positive of the query, so that it is no negative."""
    if masking == "duplicates":
        return name == query.names[0]
    return masking == "answers" and (name in query.answers or name == query.names[0])


def negatives(batch: list[BatchQuery], number: int, *, masking: Masking) -> list[Vector]:
    """Return the in-batch negatives of query `number`: all passages except its positives (see `masking`)."""
    query = batch[number]
    results = []
    for other, asked in enumerate(batch):
        for place, passage in enumerate(asked.passages):
            if (other, place) == (number, 0) or is_answer(query, asked.names[place], masking=masking):
                continue
            results.append(passage)
    return results


def infonce(
    batch: list[BatchQuery], *, temperature: float, similarity: Similarity = "cosine", masking: Masking = "none"
) -> list[float]:
    """Return the InfoNCE loss of each query: its positive against its in-batch negatives."""
    losses = []
    for number, query in enumerate(batch):
        right = compute_similarity(query.vector, query.passages[0], similarity=similarity) / temperature
        wrong = [
            compute_similarity(query.vector, passage, similarity=similarity) / temperature
            for passage in negatives(batch, number, masking=masking)
        ]
        losses.append(cross_entropy(right, wrong))
    return losses


def simlm_paper(
    batch: list[BatchQuery], *, temperature: float, similarity: Similarity = "cosine", masking: Masking = "none"
) -> list[float]:
    """SimLM, equation 3: each negative is compared with the query and with the positive."""
    losses = []
    for number, query in enumerate(batch):
        right = compute_similarity(query.vector, query.passages[0], similarity=similarity) / temperature
        wrong = []
        for passage in negatives(batch, number, masking=masking):
            wrong.append(compute_similarity(query.vector, passage, similarity=similarity) / temperature)
            wrong.append(compute_similarity(query.passages[0], passage, similarity=similarity) / temperature)
        losses.append(cross_entropy(right, wrong))
    return losses


def simlm_full(
    batch: list[BatchQuery], *, temperature: float, similarity: Similarity = "cosine", masking: Masking = "none"
) -> list[float]:
    """SimLM, released code: other queries and other positives are negatives too.

    Masking is an extension: a query is no negative of a positive that answers it, queries are no negatives of each
    other if the positive of one answers the other, and positives that answer the query are no negatives of the
    query or of its positive.
    """
    losses = []
    for number, query in enumerate(batch):
        positive = query.passages[0]
        right = compute_similarity(query.vector, positive, similarity=similarity) / temperature
        wrong = [
            compute_similarity(query.vector, passage, similarity=similarity)
            for passage in negatives(batch, number, masking=masking)
        ]
        for other, asked in enumerate(batch):
            if other == number:
                continue
            mine_answers_them = is_answer(asked, query.names[0], masking=masking)
            theirs_answers_me = is_answer(query, asked.names[0], masking=masking)
            if not mine_answers_them:
                wrong.append(compute_similarity(positive, asked.vector, similarity=similarity))
            if not mine_answers_them and not theirs_answers_me:
                wrong.append(compute_similarity(query.vector, asked.vector, similarity=similarity))
            if not theirs_answers_me:
                wrong.append(compute_similarity(positive, asked.passages[0], similarity=similarity))
        losses.append(cross_entropy(right, [score / temperature for score in wrong]))
    return losses


def divergence(first: Sequence[float], second: Sequence[float]) -> float:
    """Return KL(first || second) of two distributions."""
    return math.fsum(p * math.log(p / q) for p, q in zip(first, second, strict=True) if p > 0)


def student_scores(query: BatchQuery, *, temperature: float, similarity: Similarity) -> list[float]:
    """Return the retriever's scores of the query's own passages."""
    return [
        compute_similarity(query.vector, passage, similarity=similarity) / temperature for passage in query.passages
    ]


def distillation(
    batch: list[BatchQuery], *, temperature: float, similarity: Similarity = "cosine", teacher_temperature: float = 1.0
) -> list[float]:
    """Return KL(teacher || student) over the query's own passages, for each query."""
    losses = []
    for query in batch:
        teacher = softmax([score / teacher_temperature for score in query.teacher])
        student = softmax(student_scores(query, temperature=temperature, similarity=similarity))
        losses.append(divergence(teacher, student))
    return losses


def margin_mse(batch: list[BatchQuery], *, temperature: float = 1.0, similarity: Similarity = "dot") -> list[float]:
    """Return the squared difference of student's and teacher's margin for each pair of positive and negative."""
    losses = []
    for query in batch:
        scores = student_scores(query, temperature=temperature, similarity=similarity)
        for place in range(1, len(scores)):
            student = scores[0] - scores[place]
            teacher = query.teacher[0] - query.teacher[place]
            losses.append((student - teacher) ** 2)
    return losses


def matryoshka(batch: list[BatchQuery], sizes: Sequence[int], loss: Callable[[list[BatchQuery]], float]) -> float:
    """Return the sum of the loss of the full vectors and the losses of the vectors truncated to each size."""
    total = loss(batch)
    for size in sizes:
        shorter = [
            replace(query, vector=query.vector[:size], passages=[passage[:size] for passage in query.passages])
            for query in batch
        ]
        total += loss(shorter)
    return total


def warmed_temperature(step: int, *, temperature: float, warmup: int) -> float:
    """Return the temperature at a step: its inverse, at least 1, grows linearly during warm-up."""
    if step >= warmup:
        return temperature
    return 1 / max(1.0, step / warmup / temperature)


def window(items: Sequence[str], count: int, *, epoch: int, seed: int) -> list[str]:
    """Return the `count` items of an epoch (from 0): a cyclic window that starts at (epoch + seed) * count."""
    start = (epoch + seed) * count % len(items)
    return [items[(start + step) % len(items)] for step in range(count)]


def listwise(logits: Sequence[float]) -> float:
    """Return -log softmax of the positive, the first logit."""
    return cross_entropy(logits[0], logits[1:])


def r_drop(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the R-Drop loss of two passes: the mean of both cross-entropies plus the mean of both KL divergences."""
    one, two = softmax(first), softmax(second)
    return 0.5 * listwise(first) + 0.5 * listwise(second) + 0.5 * (divergence(one, two) + divergence(two, one))


def keep_hardest(logits: Sequence[float], count: int) -> list[int]:
    """Return the indices of the positive and of the count - 1 negatives with the highest logits."""
    places = sorted(range(1, len(logits)), key=lambda place: -logits[place])
    return [0, *places[: count - 1]]


def binary(logit: float, *, right: bool) -> float:
    """Return the binary cross-entropy of a pair; right: whether it is a positive."""
    return cross_entropy(logit, [0.0]) if right else cross_entropy(0.0, [logit])


def labeled_list(logits: Sequence[float], labels: Sequence[float]) -> float:
    """HLATR: cross-entropy of the softmax over a list with the normalized labels."""
    whole = math.fsum(labels)
    return math.fsum(
        label / whole * cross_entropy(logits[place], [*logits[:place], *logits[place + 1 :]])
        for place, label in enumerate(labels)
        if label
    )


def with_difference(retrieval: float, queries: float, passages: float, *, weight: float) -> float:
    """DPR with DiffCSE's detection loss of queries and passages, weighted by `weight`."""
    return retrieval + weight * (queries + passages)
