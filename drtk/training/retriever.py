"""Training of a bi-encoder from examples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from drtk.errors import DrtkError, MismatchError, UsageError
from drtk.models.biencoder import BiEncoder, load_towers, save_towers
from drtk.models.checkpoint import TextEncoder
from drtk.models.lora import add_adapters, merge_adapters, need_peft
from drtk.pretraining.auxiliary import Corrupting, WithAuxiliary, diffcse_network
from drtk.training.arguments import Plan, arguments_of, planned
from drtk.training.best_checkpoint import Selection
from drtk.training.config import RetrieverSettings
from drtk.training.example_order import Draws, Texts, collate
from drtk.training.examples import PackedExamples
from drtk.training.fit import MeasureTheStart, ShowProgress, allow_checkpointing, relief
from drtk.training.grad_cache import RetrieverTrainer
from drtk.training.retriever_loss import Goal, learns_from_teacher

QUERY_LENGTH, PASSAGE_LENGTH = 32, 144  # methods, section 6.2
# Texts of like length go through the encoder together. What beginning another group costs, in tokens: the gradient of all
# word embeddings and the start of every operation; a GPU has done thousands of tokens meanwhile.
GROUP_OVERHEAD = {"cpu": 64.0, "cuda": 4096.0}
LOG, CHOSEN_BY = "log.jsonl", "dev_nDCG@10"
Look = Callable[[], dict[str, float]]


def plan(examples: int, settings: RetrieverSettings, *, source: str = "examples") -> Plan:
    """The plan for so many examples of the file `source`.

    Raises DrtkError where there is nothing to learn, they fill no batch, or devices cannot share one.
    """
    if settings.negatives == 0 and learns_from_teacher(settings.loss):
        raise DrtkError(
            f"--loss {settings.loss} with --negatives 0 learns nothing: a teacher compares a query's own passages alone"
        )
    if settings.batch < 2 and settings.negatives == 0:
        raise DrtkError("--batch 1 with --negatives 0 leaves nothing to tell the positive from")
    return planned(examples, batch=settings.batch, epochs=settings.epochs, steps=settings.steps, source=source)


def check(settings: RetrieverSettings) -> None:
    """Raise UsageError for settings that cannot be meant together, MissingDependency for what is not installed."""
    settings.check()
    Goal.of(settings, similarity="cosine")
    if settings.lora is not None:
        need_peft()


def start_towers(model: str, settings: RetrieverSettings) -> dict[str, TextEncoder]:
    """The towers to start from, their recipes as they shall be used and saved.

    Raises MismatchError where --matryoshka wants more numbers than vectors have, UsageError for a temperature that has no
    way to warm up.
    """
    wishes = {
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "similarity": settings.similarity,
        "query_length": settings.query_length,
        "passage_length": settings.passage_length,
        "query_prompt": settings.query_prompt,
        "passage_prompt": settings.passage_prompt,
        "title": settings.title,
    }
    towers = load_towers(model, wishes=wishes, untied=settings.untied)
    for tower in towers.values():
        settled: dict[str, Any] = {"similarity": tower.recipe.similarity or "cosine"}
        if settings.query_length is None:
            settled["query_length"] = min(QUERY_LENGTH, tower.recipe.query_length)
        if settings.passage_length is None:
            settled["passage_length"] = min(PASSAGE_LENGTH, tower.recipe.passage_length)
        tower.recipe = tower.recipe.changed(settled, sealed=False, folder=model)
        for size in settings.matryoshka:
            if size >= tower.encoder.dimension:
                raise MismatchError(
                    f"--matryoshka {size}: {model} gives vectors of {tower.encoder.dimension} numbers, which are trained anyway"
                )
    last = Goal.of(settings, similarity=str(towers["passage"].recipe.similarity)).temperature
    if settings.temperature_warmup and last >= 1:
        raise UsageError(f"--temperature-warmup begins at temperature 1; the last one, {last:g}, is not below it")
    return towers


def _of_chunks(chunk: int | None) -> str:
    """What gradient caching can still do for memory; "" where it does all it can."""
    if chunk is None:
        return "--cache-chunk"
    return f"a smaller --cache-chunk (it is {chunk})" if chunk > 1 else ""


def train_retriever(
    examples: PackedExamples,
    folder: Path,
    *,
    towers: dict[str, TextEncoder],
    queries: dict[str, str],
    corpus: Texts,
    settings: RetrieverSettings,
    seed: int = 42,
    device: str = "auto",
    dev: Look | None = None,
) -> dict[str, Any]:
    """Train, write the model into `folder` (rank zero), and return "steps", "epochs" and, with `dev`, "best".

    folder: where checkpoints (taken away at the end), log.jsonl and the model go; where it holds a whole checkpoint,
            training goes on from there
    dev: figures of the towers as they are, CHOSEN_BY among them, taken every --eval-every steps; the best weights are kept
    Raises DrtkError where the loss ceases to be a number or memory is too small.
    """
    schedule = plan(len(examples), settings)
    passage, query = towers["passage"], towers.get("query", towers["passage"])
    goal = Goal.of(settings, similarity=str(passage.recipe.similarity), normalize=passage.recipe.normalize)
    if settings.draw != "replacement":
        examples.warn_of_short("train-retriever", settings.negatives)
    checkpoints = folder / "checkpoints"
    arguments = arguments_of(settings, checkpoints, plan=schedule, seed=seed, device=device)
    pair = BiEncoder(
        passage.encoder,
        query.encoder if "query" in towers else None,
        prompt_lengths=(query.prompt_length("query"), passage.prompt_length("passage")),
        group_overhead=GROUP_OVERHEAD.get(arguments.device.type),
    )
    model: nn.Module = pair
    corrupting = None
    weights = dict(goal.weights or {})
    if settings.aux == "diffcse":
        network = diffcse_network(towers, settings, seed=seed)
        network.generator.to(arguments.device)
        corrupting = Corrupting.of(network.composition, passage.tokenizer)
        weights |= network.weights
        model = WithAuxiliary(pair, network)
    if settings.lora is not None:
        for number, tower in enumerate(towers.values()):
            add_adapters(
                tower.encoder,
                rank=settings.lora,
                alpha=settings.lora_alpha,
                dropout=settings.lora_dropout,
                targets=settings.lora_target,
                seed=seed + number,
            )
    if settings.gradient_checkpointing:
        for tower in towers.values():
            allow_checkpointing(tower.encoder.backbone)
    draws = Draws(
        examples,
        queries=queries,
        corpus=corpus,
        batch=settings.batch,
        steps=schedule.steps,
        negatives=settings.negatives,
        seed=seed,
        draw=settings.draw,
        positive=settings.positive,
        answers=goal.masked == "answers",
        scores=goal.distilling is not None,
    )
    watch: Selection | None = None
    if dev is not None:
        watch = Selection(model, dev, checkpoints, by=CHOSEN_BY, every=settings.eval_every, patience=settings.patience)
    trainer = RetrieverTrainer(
        goal=goal,
        cache_chunk=settings.cache_chunk,
        warm_temperature=settings.temperature_warmup,
        weights=weights,
        probe=watch,
        log=folder / LOG,
        steps_per_epoch=schedule.steps_per_epoch,
        model=model,
        args=arguments,
        train_dataset=draws,
        data_collator=partial(
            collate, query=query.tokenizing("query"), passage=passage.tokenizing("passage"), aux=corrupting
        ),
        callbacks=[ShowProgress("train-retriever", schedule.steps)],
    )
    if watch is not None:
        trainer.add_callback(MeasureTheStart(trainer))
    trainer.relief = relief(
        chunk=_of_chunks(settings.cache_chunk),
        checkpointing=settings.gradient_checkpointing,
        anew="a smaller --batch or more devices",
    )

    def save() -> None:
        for tower in towers.values():
            if settings.lora is not None:
                merge_adapters(tower.encoder)
            tower.encoder.cpu().eval()
        save_towers(towers, folder)

    return trainer.finish(save)
