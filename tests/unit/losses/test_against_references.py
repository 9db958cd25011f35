"""Losses of retrievers, list rerankers and query rerankers equal the slow reference implementations."""

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drtk.losses import RETRIEVER_LOSSES
from drtk.losses.contrastive import infonce, mask_duplicate_positives, mask_labeled_positives, simlm_full, simlm_paper
from drtk.losses.ranking import pairwise_margin_loss
from drtk.models.list_reranker import ListRerankerConfig, init_list_reranker
from tests.reference import finetuning as slow
from tests.reference import queries as query_losses
from tests.reference.finetuning import BatchQuery, Masking, Similarity
from tests.reference.hlatr import logits as slow_logits
from tests.retriever_setup import compute_terms, load_settings

SEEDS = range(4)
CONTRASTIVE: dict[str, tuple[Callable[..., Tensor], Callable[..., list[float]]]] = {
    "infonce": (infonce, slow.infonce),
    "simlm-paper": (simlm_paper, slow.simlm_paper),
    "simlm-full": (simlm_full, slow.simlm_full),
}


@pytest.fixture(autouse=True)
def in_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Disable casts to float32 in the losses, so that rounding errors do not matter."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    with torch.random.fork_rng(devices=[]):
        yield


def assert_close(expected: Any) -> Any:
    return pytest.approx(expected, abs=2e-6, rel=1e-6)


class Batch:
    """A random batch, as input of the references and as tensors."""

    def __init__(self, seed: int, *, scale: float = 1.0) -> None:
        draw = random.Random(seed)
        size, self.n, width = draw.randint(2, 6), draw.randint(1, 5), draw.randint(3, 9)
        names = [str(number) for number in range(size * self.n * 2 // 3 + 2)]  # too few: some stand twice
        self.asked = []
        for _ in range(size):
            passages = [[draw.gauss(0, scale) for _ in range(width)] for _ in range(self.n)]
            mine = [draw.choice(names) for _ in range(self.n)]
            answers = frozenset({mine[0], *draw.sample(names, draw.randint(0, 3))})
            teacher = tuple(draw.gauss(0, 3) for _ in range(self.n))
            query = [draw.gauss(0, scale) for _ in range(width)]
            self.asked.append(BatchQuery(query, passages, mine, answers, teacher))
        self.queries = torch.tensor([each.vector for each in self.asked], dtype=torch.float64)
        self.passages = torch.tensor([row for each in self.asked for row in each.passages], dtype=torch.float64)
        self.numbers = torch.tensor([int(name) for each in self.asked for name in each.names])
        most = max(len(each.answers) for each in self.asked)
        self.answers = torch.tensor(
            [[*map(int, sorted(each.answers)), *[-1] * (most - len(each.answers))] for each in self.asked]
        )
        self.teacher = torch.tensor([each.teacher for each in self.asked], dtype=torch.float64)

    def mask(self, masking: Masking) -> Tensor | None:
        if masking == "none":
            return None
        if masking == "duplicates":
            return mask_duplicate_positives(self.numbers, len(self.asked))
        own = torch.arange(len(self.asked)) * self.n
        return mask_labeled_positives(self.numbers, self.answers, own=own)

    def facts(self) -> dict[str, Tensor]:
        return {"passage_indices": self.numbers, "positives": self.answers, "teacher": self.teacher}


@pytest.mark.parametrize("masking", ["none", "duplicates", "answers"])
@pytest.mark.parametrize(("similarity", "temperature"), [("cosine", 0.02), ("dot", 0.7)])
@pytest.mark.parametrize("name", CONTRASTIVE)
def test_contrastive_losses(name: str, similarity: Similarity, temperature: float, masking: Masking):
    fast, reference = CONTRASTIVE[name]
    masked = 0
    for seed in SEEDS:
        batch = Batch(seed)
        given: dict[str, Any] = {"similarity": similarity, "temperature": temperature}
        actual = fast(batch.queries, batch.passages, mask=batch.mask(masking), **given)
        assert actual.dtype == torch.float64
        expected = reference(batch.asked, masking=masking, **given)
        assert actual.item() == assert_close(slow.mean(expected))
        masked += expected != reference(batch.asked, **given)
    assert masked == 0 if masking == "none" else masked > 2  # the masks bite in most of the batches


@pytest.mark.parametrize(("similarity", "temperature", "softer"), [("cosine", 0.02, 1.0), ("dot", 1.3, 2.5)])
def test_distillation_and_margins(similarity: Similarity, temperature: float, softer: float):
    for seed in SEEDS:
        batch = Batch(seed)
        given: dict[str, Any] = {"similarity": similarity, "temperature": temperature}
        theirs: dict[str, Any] = {"teacher": batch.teacher, **given}
        actual = RETRIEVER_LOSSES.load("kl")(batch.queries, batch.passages, teacher_temperature=softer, **theirs)
        expected = slow.distillation(batch.asked, teacher_temperature=softer, **given)
        assert actual.item() == assert_close(slow.mean(expected))
        actual = RETRIEVER_LOSSES.load("margin-mse")(batch.queries, batch.passages, **theirs)
        losses = slow.margin_mse(batch.asked, **given)
        assert actual.item() == assert_close(slow.mean(losses) if losses else 0.0)


@pytest.mark.parametrize("masking", ["none", "duplicates", "answers"])
@pytest.mark.parametrize("preset", ["simlm-r1", "simlm-nq-distill-official", "master-official-distill"])
def test_a_presets_loss_with_matryoshka_dimensions(preset: str, masking: Masking):
    flags = {"duplicates": "mask_duplicate_positives", "answers": "mask_false_negatives"}
    changes = {flags[masking]: True} if masking != "none" else {}
    settings = load_settings(preset, matryoshka=(2, 1), **changes)
    alpha = 1.0 if preset == "simlm-nq-distill-official" else 0.2  # docs/methods/distillation.md
    cosine = not preset.startswith("master")
    given: dict[str, Any] = {"similarity": "cosine", "temperature": 0.02} if cosine else {"similarity": "dot"}
    given.setdefault("temperature", 1.0)
    contrastive = slow.simlm_full if cosine else slow.infonce

    def loss(asked: list[BatchQuery]) -> float:
        contrast = slow.mean(contrastive(asked, masking=masking, **given))
        if "distill" not in preset:
            return contrast
        return slow.mean(slow.distillation(asked, **given)) + alpha * contrast

    for seed in SEEDS:
        batch = Batch(seed)
        actual = compute_terms(settings, batch.queries, batch.passages, **batch.facts())
        assert actual["loss"] == assert_close(slow.matryoshka(batch.asked, (2, 1), loss))


def test_the_list_transformer_item_by_item():
    shape = ListRerankerConfig(width=10, depth=9, layers=3, hidden=8, heads=2, feedforward=12, dropout=0.1)
    model = init_list_reranker(shape, seed=1).double().eval()
    torch.manual_seed(2)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.5)
    sizes = [9, 1, 4]
    vectors = torch.randn(3, 9, 10, dtype=torch.float64)
    present = torch.arange(9) < torch.tensor(sizes).unsqueeze(1)
    actual = model(vectors, torch.arange(9).expand(3, -1), present)
    for row, size in enumerate(sizes):
        parts = SimpleNamespace(project=model.project, ranks=model.ranks, norm=model.norm, head=model.head)
        expected = slow_logits(list(vectors[row, :size]), layers=model.layers.layers, heads=2, **vars(parts))
        assert actual[row, :size].tolist() == assert_close([logit.item() for logit in expected])


def make_question(draw: random.Random) -> tuple[list[float], list[int]]:
    """Return scores and ranks of one to nine candidates, with many equal ranks."""
    ranks = draw.choice([[101], [1, 101], [1, 2, 15, 101], list(range(1, 102)), [250, 3, 77]])
    count, scale = draw.randint(1, 9), draw.choice([0.01, 1.0, 50.0])
    scores = [draw.choice([0.0, draw.gauss(0, scale)]) for _ in range(count)]
    return scores, [draw.choice(ranks) for _ in range(count)]


@pytest.mark.parametrize("weight", ["offset", "sum"])
@pytest.mark.parametrize("skip_ties", [True, False])
def test_the_pairwise_margin_loss_equals_the_reference(weight: Any, skip_ties: bool) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        questions = [make_question(draw) for _ in range(draw.randint(1, 4))]
        width = max(len(scores) for scores, _ in questions)
        scores = torch.tensor([row + [1e6] * (width - len(row)) for row, _ in questions], dtype=torch.double)
        ranks = torch.tensor([row + [1] * (width - len(row)) for _, row in questions])
        present = torch.arange(width) < torch.tensor([len(row) for row, _ in questions]).unsqueeze(1)
        options: Any = {"weight": weight, "skip_ties": skip_ties, "alpha": (0.01, 0.0, 0.3)[seed % 3]}
        loss = pairwise_margin_loss(scores, ranks, present, **options)
        assert float(loss) == pytest.approx(query_losses.batch_loss(questions, **options), abs=1e-9, rel=1e-9), seed
