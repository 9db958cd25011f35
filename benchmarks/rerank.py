"""Reranking speed of drtk and sentence-transformers' CrossEncoder, with the same weights on the same pairs.

    python benchmarks/rerank.py [CORPUS] [--model MODEL] [--queries 20] [--depth 30] [--repeats 2] [--device auto] [--threads N] [--precision float32] [--tokenize-only]

The cross-encoder is MODEL with a new head, because speed does not depend on quality. Queries are first sentences of passages; their
candidates are passages sampled at random. drtk does everything that the command does except loading the model: it reads the run, looks up
texts, tokenizes, scores, sorts and writes. Both take turns, and the fastest repeat counts. Writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder

from drtk.data.corpus_store import CorpusStore
from drtk.data.readers import read_passages
from drtk.data.rows import dump
from drtk.data.trec import format_run_lines
from drtk.models.config import CrossEncoderSettings
from drtk.models.cross_encoder import init_cross_encoder, save_cross_encoder
from drtk.models.generator_input import format_passage
from drtk.records import Passage
from drtk.retrieval.rerank import RunReranker, read_ranking_texts
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.inputs import InputTracker
from drtk.runtime.manifest import list_versions
from drtk.runtime.progress import set_verbosity
from drtk.runtime.runners import RunnerSettings, run_filter
from drtk.text.batching import PairTokenizer, tokenize_texts


class RerankingTask:
    """A run and its corpus as files, and the pairs as texts."""

    def __init__(self, folder: Path, passages: list[Passage], queries: int, depth: int) -> None:
        draw = random.Random(0)
        self.corpus, self.run, self.depth = folder / "corpus.jsonl", folder / "run", depth
        self.corpus.write_bytes(b"".join(map(dump, passages)))
        self.queries = {
            f"q{at}": each.text.split(". ")[0][:120] for at, each in enumerate(draw.sample(passages, queries))
        }
        self.pairs: list[tuple[str, str]] = []
        with open(self.run, "wb") as file:
            for query, text in self.queries.items():
                chosen = draw.sample(passages, depth)
                file.write(format_run_lines(query, [(each.id, float(-at)) for at, each in enumerate(chosen)]))
                self.pairs += [(text, format_passage(each, "join")) for each in chosen]


def rerank(task: RerankingTask, work: RunReranker, output: Path) -> np.ndarray:
    """Rerank as the command does with a loaded model; return the scores in the order of the pairs."""
    tracker = InputTracker()
    found = read_ranking_texts(
        str(task.run),
        queries=task.queries,
        corpus=CorpusStore.open(task.corpus),
        depth=task.depth,
        title="join",
        tracker=tracker,
    )
    work._scorer._tokenizer._cache.clear()  # a command starts without the texts of the previous repeat
    job = FilterJob("rerank", "run", str(output), force=True, tracker=tracker)
    run_filter(found, job, lambda: work, runner_settings=RunnerSettings(), batch_size=16, unit="queries")
    scores = {tuple(line.split()[0:3:2]): float(line.split()[4]) for line in output.read_text().splitlines()}
    order = [tuple(line.split()[0:3:2]) for line in task.run.read_text().splitlines()]
    return np.array([scores[key] for key in order])


def measure_tokenization(pairs: list[tuple[str, str]], tokenizer: PairTokenizer, batch_size: int) -> dict[str, float]:
    """Return CPU microseconds per pair, with each text tokenized once and with pairs as texts."""
    seconds = dict.fromkeys(("each text once", "pairs as texts"), 0.0)
    for start in range(0, len(pairs), batch_size):
        batch = pairs[start : start + batch_size]
        before = time.process_time()
        joined = tokenizer(batch)
        between = time.process_time()
        first, second = [text for text, _ in batch], [text for _, text in batch]
        expected = tokenize_texts(
            tokenizer.tokenizer, first, second, max_length=tokenizer.max_length, with_types=tokenizer.with_types
        )
        seconds["pairs as texts"] += time.process_time() - between
        seconds["each text once"] += between - before
        np.testing.assert_array_equal(joined.ids, expected.ids)
    return {name: round(1e6 * value / len(pairs), 1) for name, value in seconds.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("corpus", nargs="?", default="runs/quickstart/passages.jsonl")
    options.add_argument("--model", default="runs/quickstart/minilm")
    options.add_argument("--passages", type=int, default=2000)
    options.add_argument("--queries", type=int, default=20)
    options.add_argument("--depth", type=int, default=30)
    options.add_argument("--repeats", type=int, default=2)
    options.add_argument("--max-length", type=int, default=192)
    options.add_argument("--device", default="auto")
    options.add_argument("--threads", type=int)
    options.add_argument("--precision", default="float32", help="dtype of both")
    options.add_argument("--st-batch", type=int, default=32, help="batch size of sentence-transformers")
    options.add_argument("--tokenize-only", action="store_true", help="measure tokenization only")
    chosen = options.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    set_verbosity(quiet=True, verbose=False)
    on_gpu = torch.cuda.is_available() and chosen.device != "cpu"
    device = "cuda" if on_gpu else "cpu"

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = str(folder / "model")
        made = init_cross_encoder(chosen.model, max_length=chosen.max_length, seed=1, default_length=chosen.max_length)
        save_cross_encoder(made, Path(model))
        task = RerankingTask(
            folder, list(islice(read_passages(chosen.corpus), chosen.passages)), chosen.queries, chosen.depth
        )
        tokenizer = PairTokenizer(made.tokenizer, max_length=chosen.max_length)
        tokenization = {
            "distinct_passages": len({text for _, text in task.pairs}),
            "tokenization_microseconds_per_pair": measure_tokenization(task.pairs, tokenizer, 16 * chosen.depth),
        }
        if chosen.tokenize_only:
            print(json.dumps(tokenization, indent=2))
            return
        work = RunReranker(model, CrossEncoderSettings(precision=chosen.precision), device, False, "drtk", False)
        peer = CrossEncoder(model, device=device, model_kwargs={"dtype": getattr(torch, chosen.precision)})
        systems = {
            "drtk rerank": lambda: rerank(task, work, folder / "out"),
            f"sentence-transformers predict, batch {chosen.st_batch}": lambda: peer.predict(
                task.pairs, batch_size=chosen.st_batch, show_progress_bar=False
            ),
        }
        best: dict[str, tuple[float, float]] = {}
        scores = {}
        for _ in range(chosen.repeats):
            for name, system in systems.items():
                start, processor = time.perf_counter(), time.process_time()
                scores[name] = np.asarray(system())
                wall, processor = time.perf_counter() - start, time.process_time() - processor
                before = best.get(name, (np.inf, np.inf))
                best[name] = min(before[0], wall), min(before[1], processor)
        mine, theirs = scores.values()
        lengths = work._scorer.tokenize(task.pairs).tokens.lengths
        report = {
            "benchmark": "rerank",
            "model": chosen.model if len(Path(chosen.model).parts) < 4 else Path(chosen.model).parent.name,
            "pairs": len(task.pairs),
            "queries": chosen.queries,
            "depth": chosen.depth,
            "max_length": chosen.max_length,
            "precision": chosen.precision,
            "tokens": int(lengths.sum()),
            **tokenization,
            "device": torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads",
            "systems": {
                name: {
                    "pairs_per_second": round(len(task.pairs) / wall, 1),
                    "pairs_per_processor_second": round(len(task.pairs) / processor, 1),
                }
                for name, (wall, processor) in best.items()
            },
            "deviation_of_scores": float(theirs.std()),
            "largest_difference": float(np.abs(mine - theirs).max()),
            "versions": list_versions(),
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
