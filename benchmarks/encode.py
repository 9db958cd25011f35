"""Encoding speed of drtk and sentence-transformers, with the same weights on the same texts.

    python benchmarks/encode.py [CORPUS] [--model MODEL] [--texts 1000] [--repeats 3] [--device auto] [--threads N] [--precision NAME ...] [--st-dtype NAME] [--padded]

Both take turns, and the fastest repeat counts. Processor seconds are printed too: they vary less on a shared machine. Writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from drtk.data.readers import read_passages
from drtk.models.config import EncodeSettings
from drtk.retrieval.encode import Embedder
from drtk.runtime.manifest import list_versions


def measure(work: Callable[[], np.ndarray]) -> tuple[float, float, np.ndarray]:
    """Return the seconds, the processor seconds and the result of `work`."""
    start, processor = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - start, time.process_time() - processor, result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("corpus", nargs="?", default="runs/quickstart/passages.jsonl")
    options.add_argument("--model", default="runs/quickstart/minilm")
    options.add_argument("--texts", type=int, default=1000)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--device", default="auto")
    options.add_argument("--threads", type=int)
    options.add_argument("--precision", nargs="*", help="of drtk; default: float32, and float16 on a GPU")
    options.add_argument("--st-dtype", default="float32", help="dtype of sentence-transformers")
    options.add_argument("--padded", action="store_true", help="also measure drtk with padding, last")
    options.add_argument("--st-batch", type=int, nargs="*", default=[32], help="batch sizes for sentence-transformers")
    chosen = options.parse_args()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)

    texts = [f"{p.title} {p.text}" if p.title else p.text for p in islice(read_passages(chosen.corpus), chosen.texts)]
    on_gpu = torch.cuda.is_available() and chosen.device != "cpu"
    device = "cuda" if on_gpu else "cpu"
    peer = SentenceTransformer(chosen.model, device=device, model_kwargs={"dtype": getattr(torch, chosen.st_dtype)})
    precisions = chosen.precision or (["float32", "float16"] if on_gpu else ["float32"])
    embedders = {
        name: Embedder(chosen.model, role="passage", settings=EncodeSettings(precision=name), device=device)
        for name in precisions
    }
    systems: dict[str, Callable[[], np.ndarray]] = {
        f"drtk {name}": partial(embedder, texts) for name, embedder in embedders.items()
    }
    for size in chosen.st_batch:
        systems[f"sentence-transformers, batch {size}"] = partial(peer.encode, texts, batch_size=size)

    if chosen.padded:
        settings = EncodeSettings(precision=precisions[-1], packed=False)
        padded = Embedder(chosen.model, role="passage", settings=settings, device=device)
        systems[f"drtk {precisions[-1]}, padded"] = lambda: padded(texts)
    for work in systems.values():
        work()  # warm up
    best: dict[str, tuple[float, float]] = {}
    vectors = {}
    for _ in range(chosen.repeats):
        for name, work in systems.items():
            wall, processor, vectors[name] = measure(work)
            before = best.get(name, (np.inf, np.inf))
            best[name] = min(before[0], wall), min(before[1], processor)
    reference = vectors[f"sentence-transformers, batch {chosen.st_batch[0]}"]
    report = {
        "benchmark": "encode",
        "model": chosen.model,
        "texts": len(texts),
        "tokens": int(embedders[precisions[0]].tokenize(texts).lengths.sum()),
        "device": torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads",
        "systems": {
            name: {
                "texts_per_second": round(len(texts) / wall, 1),
                "texts_per_processor_second": round(len(texts) / processor, 1),
                "largest_difference": float(np.abs(vectors[name] - reference).max()),
            }
            for name, (wall, processor) in best.items()
        },
        "versions": list_versions(),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
