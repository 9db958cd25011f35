"""Two processes compute the same loss and gradients as one."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import Tensor

from drtk.models.seq2seq import GenerationModel, load_generation_model
from drtk.training.distributed import gather_items, gather_rows, share_batch_norm
from drtk.training.generator import GenerationEvaluator, collate, compute_generator_terms
from drtk.training.text_pairs import TextPair
from tests.pretraining_setup import PretrainingFiles, PretrainingSetup
from tests.run_commands import make_torchrun_variables
from tests.tiny_models import save_tiny_generator
from tests.unit.training.test_grad_cache import LOSSES, create_setup, data

__all__ = ["data"]  # the fixture
BATCH = 8
TARGETS = {"rivers riverer": "river", "engines": "engined", "violins": "violiner " * 6, "a": "b c"}
PAIRS = [TextPair(*pair) for pair in TARGETS.items()]


def split_batch(inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Split a batch for two processes, without removing padding, which a loss may include."""
    return [{name: value.chunk(2)[rank] for name, value in inputs.items()} for rank in range(2)]


def collate_pairs(writer: GenerationModel, start: int, stop: int) -> dict[str, Tensor]:
    return collate(PAIRS[start:stop], generator=writer, max_length=12, target_length=9)


def run_generator_step(model: torch.nn.Module, inputs: dict[str, Tensor]) -> tuple[float, list[Tensor]]:
    model.zero_grad()
    (loss,) = compute_generator_terms(model, inputs, smoothing=0.1).values()
    loss.backward()
    return loss.item(), [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def evaluate(writer: GenerationModel) -> dict[str, float]:
    """Return the loss on PAIRS, and a value that depends on the order of the generated texts."""

    def score(generated: Sequence[str], targets: Sequence[str]) -> dict[str, float]:
        assert list(targets) == [pair.target for pair in PAIRS]
        return {"read": float(sum(index * len(text) for index, text in enumerate(generated)))}

    collating = partial(collate, generator=writer, max_length=12, target_length=9)
    return GenerationEvaluator(writer, PAIRS, collate=collating, score=score, batch_size=2, max_new_tokens=5)()


MICRO = 2  # so two parts in each of two processes
JOINT = "simlm, joint generator"
PRESETS = ["mlm", "cocondenser", "simlm-rtd", "diffcse-sts-bert", JOINT, "master"]


def make_pretraining_stage(files: PretrainingFiles, preset: str) -> PretrainingSetup:
    changes = ("generator.mode=joint", "generator.slot=encoder") if preset == JOINT else ()
    stage = files.prepare(preset.partition(",")[0], *changes, batch_size=BATCH).randomize_weights().disable_dropout()
    share_batch_norm(stage.network)  # as the command does
    return stage


def make_examples(stage: PretrainingSetup, preset: str) -> list[int]:
    """Return the examples of a step; for master, only those of the second process have a next passage."""
    if preset != "master":
        return [*range(BATCH)]
    there: dict[bool, list[int]] = {False: [], True: []}
    for number in range(len(stage.rows)):
        there[stage.get_examples(number)[0].slots["next"].present].append(number)
    assert min(map(len, there.values())) >= BATCH // 2
    return [*there[False][: BATCH // 2], *there[True][: BATCH // 2]]


def prepare_pretraining(rank: int, folder: str) -> Callable[[], None]:
    """Compute steps of presets in this process alone; return a function that compares them with those of two processes."""
    os.environ["DRTK_CACHE"] = f"{folder}/cache"
    world = PretrainingFiles(Path(folder) / "model", Path(folder) / "generator", Path(folder) / "corpus.jsonl")
    stages = {preset: make_pretraining_stage(world, preset) for preset in PRESETS}
    trainers = {preset: stage.trainer(Path(folder) / f"{preset}-{rank}") for preset, stage in stages.items()}
    examples = {preset: make_examples(stage, preset) for preset, stage in stages.items()}
    alone = {preset: stage.step(trainers[preset], examples[preset], micro=BATCH) for preset, stage in stages.items()}

    def compare() -> None:
        share = BATCH // 2
        for preset, stage in stages.items():
            loss, expected = alone[preset]
            micro = share if preset == "diffcse-sts-bert" else MICRO  # batch norm needs its batch in one part
            together = torch.nn.parallel.DistributedDataParallel(stage.network)
            for _ in range(2):  # the second step would fail if a weight had waited for a gradient in the first
                stage.network.zero_grad()
                mine = stage.get_examples(*examples[preset][rank * share : rank * share + share])
                part = trainers[preset].training_step(together, stage.data.build_collator(micro)(mine)).clone()
            dist.all_reduce(part)
            assert abs(float(part) / 2 - loss) < 1e-5 * max(1, abs(loss)), (preset, float(part) / 2, loss)
            for name, weight in stage.network.named_parameters():
                assert (weight.grad is None) == (name not in expected), (preset, name)
                if weight.grad is not None:
                    difference = float((weight.grad - expected[name]).abs().max())
                    assert difference < 3e-5 * max(1.0, float(expected[name].abs().max())), (preset, name, difference)

    return compare


def check(rank: int, folder: str, generator: str, files: str, store: str, path: list[str]) -> None:
    sys.path[:] = path
    torch.set_num_threads(1)
    stages = {name: create_setup(Path(folder), name) for name in LOSSES}
    whole = {name: stage.inputs(range(BATCH)) for name, stage in stages.items()}
    trainers = {
        (name, chunk): stage.trainer(Path(store).parent / f"{name}-{rank}-{chunk}", cache_chunk=chunk)
        for name, stage in stages.items()
        for chunk in (None, 3)
    }
    alone = {name: stage.step(trainers[name, None], whole[name]) for name, stage in stages.items()}
    writer = load_generation_model(Path(generator))
    lonely, wanted = run_generator_step(writer.model, collate_pairs(writer, 0, 4))
    figures = evaluate(writer)
    compare_pretraining = prepare_pretraining(rank, files)
    os.environ |= make_torchrun_variables(rank=rank, processes=2)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for (name, chunk), trainer in trainers.items():
        stage, (loss, expected) = stages[name], alone[name]
        together = torch.nn.parallel.DistributedDataParallel(stage.model)
        for _ in range(2):  # the second step would fail if a weight had waited for a gradient in the first
            mine, gradients = stage.step(trainer, split_batch(whole[name])[rank], together)
        part = torch.tensor(mine)
        dist.all_reduce(part)
        assert abs(float(part) / 2 - loss) < 1e-5 * max(1, abs(loss)), (name, chunk, float(part) / 2, loss)
        if names := [*trainer._terms]:  # logged as means over processes
            logs = {"loss": loss}
            trainer._log_path = Path(os.devnull)
            trainer.log(logs)
            logged = sum(trainer.get_term_weight(term) * logs[term] for term in names)
            assert abs(logged - loss) < 1e-5 * max(1, abs(loss)), (name, chunk, logged, loss)
        assert gradients.keys() == expected.keys(), name
        for weight, slope in expected.items():
            difference = float((gradients[weight] - slope).abs().max())
            assert difference < 3e-3 * max(1e-3, float(slope.abs().max())), (name, chunk, weight, difference)
    # The halves of the generator's batch have different numbers of target tokens, so a mean of means would differ.
    half = collate_pairs(writer, 2 * rank, 2 * rank + 2)
    mine, slopes = run_generator_step(torch.nn.parallel.DistributedDataParallel(writer.model), half)
    parts = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(parts, torch.tensor(mine))
    assert abs(float(sum(parts)) / 2 - lonely) < 1e-5, (parts, lonely)
    assert abs(float(parts[0] - parts[1])) > 0.1
    for slope, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(slope, other, rtol=1e-4, atol=1e-5)
    together_figures = evaluate(writer)
    assert abs(together_figures["dev_loss"] - figures["dev_loss"]) < 1e-5
    assert together_figures["read"] == figures["read"]
    assert gather_items(["a", "c"] if rank == 0 else ["b"]) == ["a", "b", "c"]
    compare_pretraining()
    dist.barrier()
    os._exit(0)  # without gloo's destructors, which once waited for a thread that had ended


@pytest.mark.slow
def test_two_processes_agree_with_one(data: Path, files: PretrainingFiles, tmp_path: Path):
    generator = save_tiny_generator(tmp_path / "generator", "t5")
    folders = (str(data), str(generator), str(files.model.parent), str(tmp_path / "store"))
    processes.spawn(check, args=(*folders, sys.path), nprocs=2)


def test_one_process_gathers_its_own_rows():
    rows = torch.ones(3, 2, requires_grad=True)
    assert gather_rows(rows) is rows
