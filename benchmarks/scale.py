"""CPU seconds of work that grows with the corpus: ids of a corpus (`--corpus`, sorted by `index`), and batches for pre-training, both on one core.

    python benchmarks/scale.py ids|ranks [--passages N]
    python benchmarks/scale.py batches CORPUS --model MODEL [--presets NAME,...] [--examples N]

CORPUS has the fields of the presets. PYTHONPATH selects the checkout. `digest` is equal for equal batches. Prints JSON.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

BATCH, MICRO = 256, 64


def get_anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def measure_ids(passages: int) -> dict[str, Any]:
    try:
        from drtk.data.corpus_ids import CorpusIds
    except ImportError:  # before ids were memory-mapped
        from drtk.data.ids import CorpusIds  # type: ignore[attr-defined, no-redef]
    from drtk.records import Passage

    before, began = get_anonymous_bytes(), time.process_time()
    ids = CorpusIds(Passage(str(number), "") for number in range(passages))
    seconds = time.process_time() - began
    gc.collect()
    memory = get_anonymous_bytes() - before
    return {"passages": len(ids), "ids_per_s": passages / seconds, "anonymous_bytes_per_passage": memory / passages}


def measure_ranks(passages: int) -> dict[str, Any]:
    from drtk.indexing.base import RankedIds

    peak, done, before = 0, threading.Event(), get_anonymous_bytes()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, get_anonymous_bytes())

    results: dict[str, Any] = {}
    for prefix in ("", "msmarco_v2.1_doc_00_12345678"):
        done.clear()
        peak = 0
        watcher = threading.Thread(target=watch)
        with tempfile.TemporaryDirectory() as folder:
            watcher.start()
            began = time.process_time()
            RankedIds.write((f"{prefix}{number * 7919 % passages}" for number in range(passages)), Path(folder))
            seconds = time.process_time() - began
            done.set()
            watcher.join()
        results[prefix + "N"] = {
            "bytes_per_id": (peak - before) / passages,
            "microseconds_per_id": seconds / passages * 1e6,
        }
    return results


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("ids", "ranks", "batches"))
    parser.add_argument("corpus", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--presets", default="master,simlm,cotmae")
    parser.add_argument("--passages", type=int, help="[default: 8 M for ids, 1 M for ranks]")
    parser.add_argument("--examples", type=int, default=1024)
    options = parser.parse_args()
    if options.what == "ids":
        results = measure_ids(options.passages or 8_000_000)
    elif options.what == "ranks":
        results = measure_ranks(options.passages or 1_000_000)
    else:
        presets = options.presets.split(",")
        results = {name: measure_batches(options.corpus, options.model, name, options.examples) for name in presets}
    from drtk.runtime.manifest import list_versions

    print(json.dumps(results | {"versions": list_versions()}, indent=2))


if __name__ == "__main__":
    main()
