"""Retriever training: drtk compared with sentence-transformers, with the same model, examples, batches and precision.

python benchmarks/train.py EXAMPLES --corpus FILE --queries FILE --model DIR [--batch-size N] [--negatives N] [--chunk N] [--max-steps N] [--rounds N] [--tensors] [--reranker] [--padded] [--out FILE]

InfoNCE with cosine similarity and temperature .05 over the positives and hard negatives of the batch, compared with sentence-transformers'
MultipleNegativesRankingLoss; then gradient caching compared with its cached version (--chunk 0 skips this). Both get the same texts in the
same order, run in separate processes and take turns. Samples per second exclude the first two steps; processor seconds vary less on a
shared machine. Memory is the peak of the process (of the GPU, if there is one), minus that before the first step and in total; --tensors
adds the peak of new tensors in a step and makes the timing invalid. With --reranker, instead, listwise training of a cross-encoder is
compared with sentence-transformers' CrossEncoderTrainer and ListNetLoss; a sample is a query with all its passages. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

WARM, TEMPERATURE, LENGTH = 2, 0.05, 144
PEER, RERANKER, RERANKER_PEER = "sentence-transformers", "drtk-reranker", "CrossEncoder"


def main() -> None:
    options = _parse_arguments()
    if options.run:
        print(json.dumps(SYSTEMS[options.run](options)))
        return
    if options.reranker:
        forms = {"reranker": compare(options, 0, [RERANKER] if options.padded else [RERANKER_PEER, RERANKER])}
    else:
        chunks = {"plain": 0} | ({"cached": options.chunk} if options.chunk else {})
        forms = {
            form: compare(options, chunk, ["drtk"] if options.padded else [PEER, "drtk"])
            for form, chunk in chunks.items()
        }
    report = {
        "benchmark": "train",
        "command": " ".join(["python", "benchmarks/train.py", *map(_anonymize_path, sys.argv[1:])]),
        **forms,
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"cpu, {torch.get_num_threads()} threads",
        "versions": {name: version(name) for name in ("torch", "transformers", PEER)}
        | {"python": platform.python_version()},
    }
    text = json.dumps(report, indent=2) + "\n"
    Path(options.out).write_text(text, encoding="utf-8") if options.out else print(text)


def compare(options: argparse.Namespace, chunk: int, systems: list[str]) -> dict[str, Any]:
    """Measure the systems in turns, in separate processes; return the best rounds, the ratios and all rounds."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for _ in range(options.rounds):
        for name, found in rounds.items():
            call = [sys.executable, __file__, *sys.argv[1:], "--chunk", str(chunk), "--run", name]
            done = subprocess.run(call, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{name}: {done.stderr}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(name, found[-1], file=sys.stderr)
    best = {
        name: {
            "samples_per_second": max(each["samples_per_second"] for each in found),
            "samples_per_processor_second": max(each["samples_per_processor_second"] for each in found),
            "peak_mib": min(each["peak_mib"] for each in found),
            "process_mib": min(each["process_mib"] for each in found),
        }
        | ({"tensors_mib": found[0]["tensors_mib"]} if options.tensors else {})
        for name, found in rounds.items()
    }
    *peers, ours = systems
    ratios = {name: best[ours][name] / best[peers[0]][name] for name in best[ours]} if peers else {}
    return {"best": best, "ratios": ratios, "rounds": rounds}


def train_drtk(options: argparse.Namespace) -> dict[str, float]:
    """Train with drtk as the command does, and time its steps."""
    from drtk.runtime.progress import set_verbosity
    from drtk.training.grad_cache import RetrieverTrainer
    from drtk.training.retriever import load_start_towers, train_retriever

    set_verbosity(quiet=True, verbose=False)
    settings = _build_settings(options)
    data = _load_data(options)
    clock = Clock(options.max_steps, tensors=options.tensors)
    time_steps(RetrieverTrainer, clock)
    towers = load_start_towers(options.model, settings)
    with tempfile.TemporaryDirectory() as folder:
        train_retriever(data, Path(folder), towers=towers, config=settings)
    return clock.result(options.batch_size)


def train_drtk_reranker(options: argparse.Namespace) -> dict[str, float]:
    """Train a cross-encoder with drtk as the command does, and time its steps."""
    from drtk.config import merge_settings
    from drtk.models.cross_encoder import init_cross_encoder
    from drtk.runtime.progress import set_verbosity
    from drtk.training.config import RerankerConfig
    from drtk.training.fit import DrtkTrainer
    from drtk.training.reranker import train_reranker

    set_verbosity(quiet=True, verbose=False)
    chosen = {"negatives": options.negatives, "batch_size": options.batch_size, "max_steps": options.max_steps}
    chosen["packed"] = not options.padded
    config = merge_settings(RerankerConfig, {}, chosen | {"log_steps": 1000, "save_steps": 100_000})
    clock = Clock(options.max_steps, tensors=options.tensors)
    time_steps(DrtkTrainer, clock)
    start = init_cross_encoder(options.model, max_length=None, seed=42, default_length=LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        train_reranker(_load_data(options), Path(folder), start=start, title="colon", config=config)
    return clock.result(options.batch_size)


def time_steps(trainer: Any, clock: Clock) -> None:
    """Time the training steps of a trainer class."""
    usual = trainer.training_step

    def run_timed_step(self: Any, *given: Any, **named: Any) -> torch.Tensor:
        clock.before(self.state.global_step)
        loss: torch.Tensor = usual(self, *given, **named)
        clock.after(self.state.global_step, loss)
        return loss

    trainer.training_step = run_timed_step


def train_sentence_transformers(options: argparse.Namespace) -> dict[str, float]:
    """Train with SentenceTransformerTrainer on the same texts in the same order."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss

    rows = []
    for query, passages in _sample_texts(options):
        names = ["positive", *(f"negative_{place}" for place in range(1, len(passages)))]
        rows.append({"anchor": query} | dict(zip(names, passages, strict=True)))
    model = SentenceTransformer(options.model)
    model.max_seq_length = LENGTH
    kind, more = MultipleNegativesRankingLoss, {}
    if options.chunk:
        kind, more = CachedMultipleNegativesRankingLoss, {"mini_batch_size": options.chunk}
    loss = kind(model, scale=1 / TEMPERATURE, **more)
    return _train_peer(
        options, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, model=model, loss=loss, rows=rows
    )


def train_cross_encoder(options: argparse.Namespace) -> dict[str, float]:
    """Train with CrossEncoderTrainer on the same texts in the same order."""
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
    )
    from sentence_transformers.cross_encoder.losses import ListNetLoss

    rows = [
        {"query": query, "passages": passages, "labels": [1.0] + [0.0] * (len(passages) - 1)}
        for query, passages in _sample_texts(options)
    ]
    model = CrossEncoder(options.model, num_labels=1, max_length=LENGTH)
    return _train_peer(
        options, CrossEncoderTrainer, CrossEncoderTrainingArguments, model=model, loss=ListNetLoss(model), rows=rows
    )


SYSTEMS = {
    "drtk": train_drtk,
    PEER: train_sentence_transformers,
    RERANKER: train_drtk_reranker,
    RERANKER_PEER: train_cross_encoder,
}


def _sample_texts(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Yield a query and its passages, positive first, for each example of each step."""
    from drtk.training.dataset import SampledExamples

    data = _load_data(options)
    sampled = SampledExamples(
        data,
        batch=options.batch_size,
        steps=options.max_steps,
        negatives=options.negatives,
        seed=42,
    )
    for number in range(options.max_steps * options.batch_size):
        example = sampled[number]
        yield example.query, [f"{each.title} {each.text}" if each.title else each.text for each in example.passages]


def _train_peer(
    options: argparse.Namespace, trainer: Any, arguments: Any, *, model: Any, loss: Any, rows: list[dict[str, Any]]
) -> dict[str, float]:
    """Train with a trainer of sentence-transformers on rows in their order, and time its steps."""
    from datasets import Dataset
    from torch.utils.data import BatchSampler, SequentialSampler
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    clock = Clock(options.max_steps, tensors=options.tensors)

    class TimedTrainer(trainer):  # type: ignore[misc]
        def get_batch_sampler(self, dataset: Any, batch_size: int, drop_last: bool, **given: Any) -> Any:
            return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    time_steps(TimedTrainer, clock)
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        settings = arguments(
            output_dir=folder,
            max_steps=options.max_steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=2e-5,
            warmup_steps=0,
            weight_decay=0.01,
            bf16=on_gpu,
            dataloader_num_workers=2 if on_gpu else 0,
            save_strategy="no",
            logging_steps=1000,
            report_to="none",
            disable_tqdm=True,
        )
        TimedTrainer(model=model, args=settings, train_dataset=Dataset.from_list(rows), loss=loss).train()
    return clock.result(options.batch_size)


class Clock:
    """Clock of the training steps after the warm-up, and meter of the peak memory."""

    def __init__(self, steps: int, *, tensors: bool) -> None:
        self._last = steps - 1
        self._steps = steps - WARM
        self._losses: list[float] = []
        self._tensors = profile(activities=[ProfilerActivity.CPU], profile_memory=True) if tensors else None
        self._most = 0

    def before(self, step: int) -> None:
        """Record the start of a step."""
        if step == 0:
            self._memory = _measure_memory()
        if step == WARM:
            _synchronize()
            self._start, self._processor = time.perf_counter(), time.process_time()
            if self._tensors is not None:
                self._tensors.start()

    def after(self, step: int, loss: torch.Tensor) -> None:
        """Record the end of the backward pass of a step."""
        if step == WARM and self._tensors is not None:
            self._tensors.stop()
            told: Any = self._tensors.profiler
            events = [each for each in told.kineto_results.events() if each.name() == "[memory]"]
            taken = (each.nbytes() for each in sorted(events, key=lambda each: each.start_ns()))
            self._most = max(accumulate(taken), default=0)
        if step in (0, self._last):
            self._losses.append(float(loss))
        if step == self._last:
            _synchronize()
            self._seconds, self._spent = time.perf_counter() - self._start, time.process_time() - self._processor

    def result(self, batch: int) -> dict[str, float]:
        """Return the measurements."""
        samples = self._steps * batch
        return {
            "samples_per_second": samples / self._seconds,
            "samples_per_processor_second": samples / self._spent,
            "peak_mib": _measure_peak_memory() - self._memory,
            "process_mib": _measure_peak_memory(),
            **({} if self._tensors is None else {"tensors_mib": self._most / 2**20}),
            "first_loss": self._losses[0],
            "last_loss": self._losses[-1],
        }


def _build_settings(options: argparse.Namespace) -> Any:
    from drtk.config import merge_settings
    from drtk.training.config import RetrieverConfig

    chosen = {
        "loss": "infonce",
        "similarity": "cosine",
        "temperature": TEMPERATURE,
        "negatives": options.negatives,
        "batch_size": options.batch_size,
        "grad_cache": options.chunk or None,
        "packed": not options.padded,
        "max_steps": options.max_steps,
        "warmup": 0.0,
        "query_length": LENGTH,  # sentence-transformers has one length for both
        "passage_length": LENGTH,
        "title": "join",
        "log_steps": 1000,
        "save_steps": 100_000,
    }
    return merge_settings(RetrieverConfig, {}, chosen)


def _load_data(options: argparse.Namespace) -> Any:
    from drtk.runtime.inputs import InputTracker
    from drtk.training.examples import load_examples

    files = {"queries": options.queries, "corpus": options.corpus}
    return load_examples(options.examples, **files, tracker=InputTracker(), negatives=options.negatives)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _measure_memory() -> float:
    """Return the current memory of the process in MiB; on a GPU, reset its peak and return 0."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return 0.0
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _measure_peak_memory() -> float:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _anonymize_path(word: str) -> str:
    """Return the file name of a path; other words unchanged."""
    return Path(word).name if "/" in word else word


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="?", default="runs/quickstart/train.jsonl")
    parser.add_argument("--corpus", default="runs/quickstart/passages.jsonl")
    parser.add_argument("--queries", default="runs/quickstart/data/queries.jsonl")
    parser.add_argument("--model", default="runs/quickstart/minilm")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=8, help="texts at once in gradient caching; 0: no caching")
    parser.add_argument("--max-steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tensors", action="store_true", help="what tensors take in a step, too")
    parser.add_argument("--reranker", action="store_true", help="re-ranker training instead of retriever training")
    parser.add_argument("--padded", action="store_true", help="drtk with padding on a GPU too, without the peer")
    parser.add_argument("--out")
    parser.add_argument("--run", choices=list(SYSTEMS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.max_steps <= WARM:
        parser.error(f"--max-steps: more than {WARM}, which are not timed")
    if options.tensors and torch.cuda.is_available():
        parser.error("--tensors: on a GPU the peak is of tensors alone")
    return options


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all models are local
    main()
