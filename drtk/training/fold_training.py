"""One generator a fold of the questions, each trained with the others' (methods, section 7.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from drtk.errors import DrtkError
from drtk.io.progress import log
from drtk.settings.writing import GeneratorSettings
from drtk.training.folds import fold_folder
from drtk.training.generator import Start, plan, start_from, train_generator
from drtk.training.pairs import Chosen, Pair, Pairs, held_out, sampled
from drtk.training.writing import Score

Finish = Callable[[Path, Start, Mapping[str, Any]], None]  # folder of a generator, what it is, facts of its training


def pairs_without(pairs: Pairs, folds: Mapping[str, int], fold: int) -> Chosen:
    """The pairs that the generator of a fold is trained with: those of all other folds."""
    return Chosen(pairs, (number for number in range(len(pairs)) if folds[pairs.key(number)] != fold))


def to_train_and_measure(pairs: Pairs, dev: Pairs | None, settings: GeneratorSettings) -> tuple[Pairs, list[Pair]]:
    """(pairs to train with, pairs to measure with): a share of the former is held out for the latter where there is no `dev`."""
    if settings.dev_share is None:
        return pairs, [] if dev is None else sampled(dev, settings.dev_limit)
    trained, held = held_out(pairs, settings.dev_share)
    return trained, sampled(held, settings.dev_limit)


def check_folds(pairs: Pairs, folds: Mapping[str, int], dev: Pairs | None, settings: GeneratorSettings) -> None:
    """Raises DrtkError where the pairs of some generator fill no batch, or leave none to measure with."""
    for fold in range(settings.folds or 0):
        trained, measured = to_train_and_measure(pairs_without(pairs, folds, fold), dev, settings)
        plan(len(trained), settings)
        if settings.dev_share is not None and not measured:
            raise DrtkError(
                f"without fold {fold}, --dev-share {settings.dev_share} leaves no questions to measure with"
            )


def train_folds(
    pairs: Pairs,
    folder: Path,
    *,
    model: str,
    folds: Mapping[str, int],
    settings: GeneratorSettings,
    dev: Pairs | None = None,
    score: Score | None = None,
    seed: int = 42,
    device: str = "auto",
    done: Collection[int] = (),
    finish: Finish,
) -> list[dict[str, Any]]:
    """Train a generator for each fold into a folder of its own below `folder`; facts of those that were trained now.

    folds: of each question by its id. done: folds that an earlier run has finished
    dev: pairs to measure all of them with; otherwise each measures with a share of its own, never with its fold
    """
    facts = []
    for fold in range(settings.folds or 0):
        if fold in done:
            continue
        mine, measured = to_train_and_measure(pairs_without(pairs, folds, fold), dev, settings)
        log(f"fold {fold}: trained with {len(mine):,} of {len(pairs):,} questions")
        start = start_from(model, settings)
        target = fold_folder(folder, fold)
        target.mkdir(exist_ok=True)
        found = train_generator(
            mine, target, start=start, settings=settings, dev=measured, score=score, seed=seed, device=device
        )
        found |= {"pairs": len(mine), "dev pairs": len(measured), "fold": fold}
        finish(target, start, found)
        facts.append(found)
    return facts
