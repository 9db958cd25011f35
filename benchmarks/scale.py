"""CPU seconds of work that grows with the corpus, on one core.

    python benchmarks/scale.py held-out --model MODEL [--passages N]         # choosing held-out passages
    python benchmarks/scale.py batches CORPUS --model MODEL [--presets NAME,...] [--examples N]    # for pre-training
    python benchmarks/scale.py texts CORPUS --model MODEL [--passages N]     # term weights by bprop, tokenization

CORPUS has the fields of the presets. PYTHONPATH selects the checkout. `digest` is equal for equal batches. Prints JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

BATCH, MICRO = 256, 64


def measure_held_out(passages: int, model: str) -> dict[str, float]:
    """Return the seconds of preparing pre-training with held-out passages, beyond those without, per 10^6 passages."""
    from transformers import AutoTokenizer

    from drtk.config import load_preset
    from drtk.pretraining.config import PretrainSettings
    from drtk.pretraining.dataset import PretrainingData
    from drtk.pretraining.parse import parse_composition
    from drtk.text.token_dataset import TokenCorpus

    composition, tokenizer = (
        parse_composition(dict(load_preset("mlm").content), "mlm"),
        AutoTokenizer.from_pretrained(model),
    )
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        corpus.write_text(
            "".join(f'{{"_id":"passage-{number}","text":"a text of several words"}}\n' for number in range(passages))
        )
        tokens = TokenCorpus.open(str(corpus), model, fields=[])
        for held_out in (0, 1000):
            settings = PretrainSettings(max_length=32, batch_size=32, max_steps=1, held_out=held_out)
            began = time.process_time()
            PretrainingData(tokens, composition, settings, tokenizer, 42)
            seconds.append(time.process_time() - began)
    return {"seconds_per_million": (seconds[1] - seconds[0]) / passages * 1e6}


def measure_batches(corpus: str, model: str, preset: str, examples: int) -> dict[str, Any]:
    from transformers import AutoTokenizer

    from drtk.config import load_preset
    from drtk.pretraining.config import PretrainSettings
    from drtk.pretraining.dataset import PretrainingData
    from drtk.pretraining.example_builder import list_corpus_fields
    from drtk.pretraining.parse import parse_composition
    from drtk.text.token_dataset import TokenCorpus

    composition = parse_composition(dict(load_preset(preset).content), preset)
    tokens = TokenCorpus.open(corpus, model, fields=list_corpus_fields(composition))
    settings = PretrainSettings(max_length=144, batch_size=BATCH, max_steps=examples // BATCH, held_out=0)
    data = PretrainingData(tokens, composition, settings, AutoTokenizer.from_pretrained(model), 42)
    dataset, collate, digest = data.build_dataset(), data.build_collator(MICRO), hashlib.blake2b(digest_size=8)
    seconds = 0.0
    for start in range(0, len(dataset), BATCH):
        began = time.process_time()
        packed = collate([dataset[index] for index in range(start, start + BATCH)])["batches"]
        seconds += time.process_time() - began
        digest.update(packed.buffer.numpy().tobytes())
    return {"sequences_per_s": len(dataset) / seconds, "digest": digest.hexdigest()}


class Attention(np.ndarray):
    """Random attention instead of a model's, with the methods of a tensor."""

    def cpu(self) -> Attention:
        return self

    numpy = cpu


def attend(_: Any, batch: dict[str, np.ndarray]) -> Attention:
    values = np.random.default_rng(42).random(batch["input_ids"].shape, dtype=np.float32)
    return (values / values.sum(axis=1, keepdims=True)).view(Attention)


def measure_texts(corpus: str, model: str, passages: int) -> dict[str, float]:
    """Return CPU microseconds per passage, candidate or text in the main process; two processes split passages."""
    from drtk.data.readers import read_passages
    from drtk.expansion.config import WeightingSettings
    from drtk.expansion.term_weights import bprop, compute
    from drtk.expansion.term_weights.base import read_statistics
    from drtk.query_expansion.query_reranker_input import CandidateTexts, CandidateTokenizer, InputFormat
    from drtk.retrieval.encode import Embedder
    from drtk.runtime.inputs import InputTracker
    from drtk.runtime.runners import iter_batch_results

    records = list(islice(read_passages(corpus, tracker=InputTracker()), passages))
    results = {}

    def measure(name: str, work: Callable[[], Any], count: int) -> Any:
        began = time.process_time()
        result = work()
        results[name] = (time.process_time() - began) / count * 1e6
        return result

    bprop.FirstTokenAttention._forward = attend  # type: ignore[assignment]
    settings = WeightingSettings(title="join")
    plan = compute.make_weighting_plan("bprop", settings, tokenizer=None, model=model, device="cpu", seed=42)
    statistics, batches = None, [records[start : start + 512] for start in range(0, len(records), 512)]
    with tempfile.NamedTemporaryFile() as file:
        for name in ("collect", "weigh"):
            function: Any
            if statistics is None:
                function = compute.StatisticsCollector(plan, 2, "attention", {})
            else:
                function = compute.PassageWeigher(plan, 2, statistics, False, False)
            function.prepare(records[:1])  # starts the processes
            found = measure(name, partial(list, iter_batch_results(function, batches)), len(records))
            function.close()
            file.writelines(line for result in found for line in result.lines)
            file.flush()
            statistics = statistics or read_statistics([file.name], "attention", {}, tracker=InputTracker())
    embedder = Embedder(model, role="passage", device="cpu", load_weights=False)
    candidates = []
    for record in records:
        words = record.text.split()
        windows = (words[start : start + 8] for start in range(25))
        candidates += [CandidateTexts(" ".join(words[:12]), " ".join(window)) for window in windows]
    tokenizer = CandidateTokenizer(embedder._tokenizer, InputFormat("ri", "official", 64))
    tokens = measure(
        "candidates",
        lambda: [tokenizer(candidates[i : i + 1600]) for i in range(0, len(candidates), 1600)],
        len(candidates),
    )
    texts = [record.text for record in records]
    embedder.tokenize(texts)
    measure("tokenize", lambda: embedder.tokenize(texts), len(texts))
    encode = embedder._tokenizer.backend_tokenizer.encode_batch_fast
    measure("encode_batch_fast", lambda: encode(texts), len(texts))
    return results | {"candidate tokens": float(sum(part.ids.sum() for part in tokens))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("held-out", "batches", "texts"))
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--presets", default="master,simlm,cotmae")
    parser.add_argument("--passages", type=int, help="[default: 200,000 held-out, 2,000 texts]")
    parser.add_argument("--examples", type=int, default=1024)
    options = parser.parse_args()
    if options.what == "held-out":
        results: dict[str, Any] = measure_held_out(options.passages or 200_000, options.model)
    elif options.what == "texts":
        results = measure_texts(options.corpus, options.model, options.passages or 2000)
    else:
        presets = options.presets.split(",")
        results = {name: measure_batches(options.corpus, options.model, name, options.examples) for name in presets}
    from drtk.runtime.manifest import list_versions

    print(json.dumps(results | {"versions": list_versions()}, indent=2))


if __name__ == "__main__":
    main()
