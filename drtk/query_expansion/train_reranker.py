"""Train a query re-ranker from labelled candidates (EAR; methods, section 7.5)."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch
from torch import Tensor, nn

from drtk.losses.ranking import pairwise_margin
from drtk.models.cross_encoder import CrossEncoder, PairScorer, save_crossencoder
from drtk.query_expansion.candidates import Candidates, distinct
from drtk.query_expansion.config import EPOCHS, QueryRerankerConfig
from drtk.query_expansion.query_reranker_input import Candidate, CandidateTokenizer, QueryInput
from drtk.records import Expansion
from drtk.runtime.progress import log, warn
from drtk.training.arguments import Schedule, plan_schedule, training_arguments
from drtk.training.best_checkpoint import Selection, Selections, folder_of
from drtk.training.dataset import pad_tokens
from drtk.training.distributed import rank, world_size
from drtk.training.fit import Objective, allow_checkpointing, fit
from drtk.training.folds import question_digest
from drtk.training.reranker import GROUP_TOKENS, score_tokens
from drtk.training.sampling import EpochDataset


class Labelled(NamedTuple):
    """A question's candidates of one kind, and the rank of each: (candidates,), int64."""

    candidates: list[Candidate]
    ranks: np.ndarray


def unlabelled(expansion: Expansion, *, scorer: str) -> str | None:
    """What a candidate lacks that training wants; None where it lacks nothing."""
    if expansion.rank is None:
        return f"'{expansion.id}' has no rank; drtk rerank-queries label gives it one"
    if scorer == "rd" and expansion.top1 is None:
        return f"'{expansion.id}' has no 'top1', which --scorer rd reads; drtk rerank-queries label adds it"
    return None


class LabelledCandidates:
    """Groups of candidates by number. Ranks beyond the depth of the labels, where no answer was found, become `max_rank`.

    A group is a question's candidates of one kind; `questions` counts the questions they are of, tied ones too.
    asked: what tells these questions from others, whatever their ids
    ties: keep groups whose ranks are all the same, from which nothing can be learned; `tied` counts those left out
    most: candidates of a group that are kept, its first different ones; `repeated` counts those of a text that came before
    depth: of the labels, for candidates that do not say it themselves
    beyond: the ranks beyond `depth` of such ones: more than one where it is not that of the labels
    """

    def __init__(
        self, groups: Iterable[Candidates], *, depth: int, max_rank: int, most: int | None = None, ties: bool = False
    ) -> None:
        # Both the file and its position are this process's own; readers in other processes take theirs with pread.
        self._file = tempfile.TemporaryFile(prefix="drtk-")  # noqa: SIM115 - it lives as long as this does
        self._offsets, self._starts, self._ranks = array("q", [0]), array("q", [0]), array("i")
        self._depths: set[int] = set()
        self.tied = self.repeated = 0
        questions: set[str] = set()
        self.asked: set[str] = set()
        self.beyond: set[int] = set()
        written = 0
        for group in groups:
            questions.add(group.query.id)
            self.asked.add(question_digest(group.query.text))
            different = distinct(group.expansions)
            self.repeated += len(group.expansions) - len(different)
            kept = different[:most]
            self._depths.update(each.depth or depth for each in kept)
            self.beyond.update(each.rank for each in kept if not each.depth and each.rank and each.rank > depth)
            ranks = [max_rank if (rank := each.rank or max_rank) > (each.depth or depth) else rank for each in kept]
            if not ties and len(set(ranks)) < 2:
                self.tied += 1
                continue
            top1 = [each.top1 or {} for each in kept]
            texts = [
                (each.text, top.get("title", ""), top.get("text", "")) for each, top in zip(kept, top1, strict=True)
            ]
            written += self._file.write(orjson.dumps((group.query.text, texts)))
            self._offsets.append(written)
            self._ranks.extend(ranks)
            self._starts.append(len(self._ranks))
        self._file.flush()
        self.questions = len(questions)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def depth(self) -> int | list[int]:
        """To which rank was looked for answers; where that is not the same for all groups, each such rank."""
        return sorted(self._depths) if len(self._depths) > 1 else next(iter(self._depths))

    @property
    def candidates(self) -> int:
        """Candidates of all groups together."""
        return len(self._ranks)

    def __getitem__(self, number: int) -> Labelled:
        start, end = self._offsets[number], self._offsets[number + 1]
        question, texts = orjson.loads(os.pread(self._file.fileno(), end - start, start))
        return Labelled([Candidate(question, *each) for each in texts], self.ranks(number))

    def ranks(self, number: int) -> np.ndarray:
        """(candidates of the group,), int64."""
        return np.array(self._ranks[self._starts[number] : self._starts[number + 1]], dtype=np.int64)


MEASURE = "mean rank"  # of the candidate that is chosen; lower is better
HIGH = 5e-4  # a learning rate that no pre-trained encoder survives


def inverse_sqrt(step: int, *, warmup: float) -> float:
    """min(t^-.5, t * warmup^-1.5) for step t, counted from 1: what the learning rate is of its factor (methods, 7.7).

    It rises to 1 / sqrt(warmup) at t = warmup and falls from there: a factor of 2e-3 peaks at 2e-5 with 10,000 steps.
    """
    return float(min(step**-0.5, step * warmup**-1.5))


def plan(groups: int, config: QueryRerankerConfig) -> Schedule:
    """Return the schedule for so many lists of candidates. Raises what `plan_schedule` raises."""
    epochs = EPOCHS[config.scorer] if config.epochs is None else config.epochs
    return plan_schedule(groups, replace(config, epochs=epochs), what="lists of candidates")


def collate(groups: Sequence[Labelled], *, tokenizing: CandidateTokenizer) -> dict[str, Tensor]:
    """The model's inputs, (candidates, tokens) each, question after question; ranks and present, (questions, n) each.

    n: the most candidates of a question; present: False where a question has fewer
    """
    tokens = tokenizing(candidate for group in groups for candidate in group.candidates)
    counts = torch.tensor([len(group.ranks) for group in groups])
    present = torch.arange(int(counts.max())) < counts.unsqueeze(1)  # (questions, n)
    ranks = torch.zeros(present.shape, dtype=torch.long)
    ranks[present] = torch.from_numpy(np.concatenate([group.ranks for group in groups]))
    return pad_tokens(tokens, tokenizing) | {"ranks": ranks, "present": present}


def margin_terms(model: nn.Module, inputs: Mapping[str, Tensor], **how: Any) -> dict[str, Tensor]:
    """{"margin": ()} of a batch of questions; `how` is what `pairwise_margin` takes."""
    given = dict(inputs)
    ranks, present = given.pop("ranks"), given.pop("present")
    scores = model(**given)  # (candidates,)
    table = torch.zeros(present.shape, dtype=scores.dtype, device=scores.device).masked_scatter(present, scores)
    return {"margin": pairwise_margin(table, ranks, present, **how)}


def query_objective(settings: QueryRerankerConfig) -> Objective:
    """What training with these settings minimises: (model, inputs of a step) -> named terms."""
    return partial(margin_terms, alpha=settings.alpha, weight=settings.pair_weight, skip_ties=settings.skip_ties)


class MeasuredRank:
    """The mean rank of the candidate that a model in training chooses; each process scores its share of them."""

    def __init__(
        self,
        model: nn.Module,
        groups: LabelledCandidates,
        numbers: Sequence[int],
        *,
        tokenizing: CandidateTokenizer,
        kind: str = "",
    ) -> None:
        """numbers: the groups to evaluate with; kind: of the candidates, if there are several evaluations"""
        self.name = measure_of(kind)
        self._model, self._tokenizing = model, tokenizing
        self._ranks = [groups.ranks(number) for number in numbers]
        texts = (candidate for number in numbers for candidate in groups[number].candidates)
        self._tokens = tokenizing(each for place, each in enumerate(texts) if place % world_size() == rank())
        first, best = np.mean([ranks[0] for ranks in self._ranks]), np.mean([ranks.min() for ranks in self._ranks])
        if rank() == 0:
            log(
                f"--dev: {len(numbers):,} lists of candidates; {self.name} {first:.2f} of the first candidates, {best:.2f} of the best"
            )

    def __call__(self) -> dict[str, float]:
        """Return {"mean rank"}, with the kind in its name if there is one; the mode of the model is restored."""
        scores = score_tokens(self._model, self._tokens, self._tokenizing)
        ends = np.cumsum([len(ranks) for ranks in self._ranks])[:-1]
        chosen = [ranks[each.argmin()] for ranks, each in zip(self._ranks, np.split(scores, ends), strict=True)]
        return {self.name: float(np.mean(chosen))}


def measure_of(kind: str) -> str:
    """The name of what is measured with the candidates of a kind; "" is for those of all."""
    return f"{MEASURE} ({kind})" if kind else MEASURE


def train_query_reranker(
    groups: LabelledCandidates,
    folder: Path,
    *,
    start: CrossEncoder,
    reading: QueryInput,
    settings: QueryRerankerConfig,
    dev: LabelledCandidates | Mapping[str, LabelledCandidates] | None = None,
    seed: int = 42,
    device: str = "auto",
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return "steps", "epochs" and, with `dev`, "best".

    folder: where checkpoints (taken away at the end), log.jsonl and the model go; where it holds a whole checkpoint,
            training goes on from there
    dev: candidates to measure with now and then; the weights whose choices have the lowest mean rank are the result. By kind:
         the weights that are best for each kind become a model of their own, in the folder of its name below `folder`, and
         "best" is by kind
    Raises what `plan` and `drtk.training.fit.fit` raise.
    """
    schedule = plan(len(groups), settings)
    factor = factor_of(settings)
    arguments = training_arguments(
        settings,
        schedule,
        folder,
        seed=seed,
        device=device,
        lr=settings.max_lr,
        warmup=0 if factor else None,
        defaults=["max_grad_norm=0.0"],  # 0: gradients are not clipped
    )
    if rank() == 0:
        _log_rates(settings, schedule.steps)
    if settings.gradient_checkpointing:
        allow_checkpointing(start.model)
    model = PairScorer(start.model, group_tokens=GROUP_TOKENS if arguments.device.type == "cpu" else None)
    tokenizing = CandidateTokenizer(start.tokenizer, reading)

    def select(candidates: LabelledCandidates, place: Path, kind: str = "") -> Selection:
        numbers = _spread(len(candidates), settings.dev_questions)
        measure = MeasuredRank(model.to(arguments.device), candidates, numbers, tokenizing=tokenizing, kind=kind)
        often, patience = settings.eval_every, settings.patience
        return Selection(model, measure, place, by=measure.name, every=often, patience=patience, lower=True)

    checkpoints = folder / "checkpoints"
    selection: Selection | Selections | None = None
    if isinstance(dev, Mapping):
        selection = Selections({kind: select(each, folder_of(checkpoints, kind), kind) for kind, each in dev.items()})
    elif dev is not None:
        selection = select(dev, checkpoints)

    def save(kind: str = "") -> None:
        start.model.cpu().eval()
        (folder / kind).mkdir(exist_ok=True)
        save_crossencoder(start, folder / kind)

    return fit(
        model,
        EpochDataset(groups, batch=settings.batch, steps=schedule.steps, seed=seed),
        partial(collate, tokenizing=tokenizing),
        objective=query_objective(settings),
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="rerank-queries train",
        save=save,
        probe=selection,
        micro_batch=settings.micro_batch or schedule.batch,
        factor=factor,
    )


def factor_of(settings: QueryRerankerConfig) -> Callable[[int], float] | None:
    """What `max_lr` is multiplied by in each step, counted from 1; None where transformers knows the schedule."""
    return partial(inverse_sqrt, warmup=settings.warmup) if settings.schedule == "inverse-sqrt" else None


def _log_rates(settings: QueryRerankerConfig, steps: int) -> None:
    """Say how high the learning rate gets, which --max-lr alone does not tell."""
    factor = factor_of(settings)
    peak = settings.max_lr
    if factor is not None:
        top = min(steps, round(settings.warmup))
        peak, last = settings.max_lr * factor(top), settings.max_lr * factor(steps)
        log(f"learning rate: {peak:.2g} at its highest, in step {top:,}; {last:.2g} in the last, {steps:,}")
        if steps < settings.warmup:
            warn(
                f"training ends after {steps:,} of the {settings.warmup:,.0f} steps in which the learning rate rises: --warmup"
            )
    if peak > HIGH:
        warn(f"a learning rate of {peak:.2g} destroys an encoder; with --schedule linear, --max-lr is the rate itself")


def _spread(count: int, wanted: int | None) -> list[int]:
    """Numbers of so many of `count` groups, evenly spread; all where nobody says."""
    wanted = min(count, wanted or count)
    return [place * count // wanted for place in range(wanted)]
