"""Training of models that weigh words: DeepCT and DeepImpact (methods: sections 3.5 and 3.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from drtk.errors import DrtkError
from drtk.io.parts import spread
from drtk.losses.weighting import pair_loss, recall_loss
from drtk.models.termweighter import Weigher, Weighing, save_weigher
from drtk.settings.weighting import WeightingSettings, WeightTrainingSettings
from drtk.text.basic_words import function_words
from drtk.text.word_pieces import WordPieceTokenizer
from drtk.text.word_places import passage_places
from drtk.training.arguments import training_arguments
from drtk.training.callbacks import ShowProgress
from drtk.training.draws import Draws, Texts
from drtk.training.examples import PackedExamples
from drtk.training.schedule import Plan, planned
from drtk.training.trainer import DrtkTrainer
from drtk.training.weighing_data import AskedPassages, Pairing, Recalling
from drtk.training.weighing_methods import METHODS

LOG = "log.jsonl"
_LOOKED_AT = 2000  # training passages among which the largest impact is sought


def plan(examples: PackedExamples, method: str, training: WeightTrainingSettings, *, source: str = "examples") -> Plan:
    """How long training on the examples of the file `source` lasts. Raises DrtkError where the data fill no batch."""
    batch = training.batch or METHODS[method].batch
    count, what = len(examples), "examples"
    if method == "deepct":
        count, what = len({number for at in range(count) for number in examples.positives(at)}), "passages"
    return planned(count, batch=batch, epochs=training.epochs, steps=training.steps, what=what, source=source)


def recall_objective(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """{"recall": ()}: DeepCT's loss of a batch."""
    inputs = dict(inputs)
    recall, first = inputs.pop("recall"), inputs.pop("first")
    return {"recall": recall_loss(model(**inputs), recall, first)}


def pair_objective(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """{"pairs": ()}: DeepImpact's loss of a batch whose rows are a positive and a negative by turns."""
    inputs = dict(inputs)
    asked = inputs.pop("asked")  # (2 * pairs, tokens), 1 where a word begins that the question has
    scores = (model(**inputs) * asked).sum(dim=1)
    return {"pairs": pair_loss(scores[0::2], scores[1::2])}


def train_weigher(
    examples: PackedExamples,
    folder: Path,
    *,
    weigher: Weigher,
    queries: dict[str, str],
    corpus: Texts,
    settings: WeightingSettings,
    training: WeightTrainingSettings,
    seed: int = 42,
    device: str = "auto",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train, write the model into `folder` (rank zero); counts of the run, and what meta.json shall say of the model.

    folder: where checkpoints (taken away at the end), log.jsonl and the model go; where it holds a whole checkpoint,
            training goes on from there
    Raises MismatchError for a length that the model cannot read, DrtkError where the loss ceases to be a number.
    """
    method = weigher.method
    defaults = METHODS[method]
    schedule = plan(examples, method, training)
    batch = training.batch or defaults.batch
    length = settings.max_length or min(defaults.max_length, weigher.longest)
    checkpoints = folder / "checkpoints"
    clip = (
        []
        if any(item.startswith("max_grad_norm=") for item in training.trainer)
        else [f"max_grad_norm={defaults.clip}"]
    )
    arguments = training_arguments(
        checkpoints,
        steps=schedule.steps,
        batch=schedule.batch,
        lr=defaults.lr if training.lr is None else training.lr,
        warmup=training.warmup,
        weight_decay=training.weight_decay,
        seed=seed,
        device=device,
        precision=training.precision,
        log_every=training.log_every,
        save_every=training.save_every,
        others=[*clip, *training.trainer],
    )
    tokenizer = WordPieceTokenizer(str(weigher.folder))
    room = weigher.room(length)
    collate: Callable[[Sequence[Any]], dict[str, Tensor]]
    if method == "deepct":
        data: Dataset[Any] = AskedPassages(
            examples, queries=queries, corpus=corpus, batch=batch, steps=schedule.steps, seed=seed
        )
        collate = Recalling(weigher, tokenizer, room=room, title=settings.title or "join")
    else:
        data = Draws(
            examples, queries=queries, corpus=corpus, batch=batch, steps=schedule.steps, negatives=1, seed=seed
        )
        collate = Pairing(weigher, tokenizer, room=room, title=settings.title or "join", expand=settings.expand)
    trainer = DrtkTrainer(
        objective=recall_objective if method == "deepct" else pair_objective,
        log=folder / LOG,
        steps_per_epoch=schedule.steps_per_epoch,
        model=weigher.module.train(),
        args=arguments,
        train_dataset=data,
        data_collator=collate,
        callbacks=[ShowProgress("termweight", schedule.steps)],
    )
    facts: dict[str, Any] = {"method": method, "title": settings.title or "join", "trained_length": length}
    if method == "deepimpact":
        facts |= {"expand": list(settings.expand)}

    def save() -> None:
        if method == "deepimpact":
            facts["largest"] = largest_impact(
                weigher, tokenizer, examples, corpus, settings=settings, length=length, device=device
            )
        weigher.module.cpu().float().eval()
        save_weigher(weigher, folder)

    return trainer.finish(save), facts


def largest_impact(
    weigher: Weigher,
    tokenizer: WordPieceTokenizer,
    examples: PackedExamples,
    corpus: Texts,
    *,
    settings: WeightingSettings,
    length: int,
    device: str,
) -> float:
    """The largest impact of a word, function words apart, in at most 2,000 of the examples' passages, evenly spread."""
    ids = [*spread(examples.passage_ids, _LOOKED_AT, of=len(examples.passage_ids))]
    run = Weighing(weigher, device=device, dtype="float32", max_length=length)
    left_out = function_words()
    largest = 0.0
    for begin in range(0, len(ids), 256):
        passages = corpus.many(ids[begin : begin + 256])
        places = passage_places(passages, tokenizer, "basic", title=settings.title or "join", expand=settings.expand)
        for each, values in zip(places, run([each.ids for each in places]), strict=True):
            heads = [head for word, head in each.first().items() if word not in left_out]
            largest = max([largest, *map(float, values[heads])])
    if largest <= 0:
        raise DrtkError("every impact is 0 after training: another --seed or a lower --lr may help")
    return largest
