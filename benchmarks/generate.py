"""Query generation speed: drtk's decoding compared with a plain loop over `model.generate`.

python benchmarks/generate.py [--model DIR] [--corpus FILE] [--passages N] [--n N] [--max-new-tokens N] [--batch N] [--batch-tokens N] [--rounds N] [--profile] [--out FILE]

Without --model, a T5 model is trained for a minute on synthetic pairs, so that its texts have various lengths. The loop
processes --batch passages at a time, padded to the longest, and samples as drtk does (top-k 25, top-p .95). Both take turns; the
fastest round counts. Writes JSON: passages per second (of processor time on a CPU), mean length of the texts, the ratio; with --profile also the most
expensive operations of drtk, from a separate round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from drtk.data.readers import read_passages
from drtk.expansion.generate import PassageExpander
from drtk.models.checkpoint import save_pretrained_model
from drtk.models.config import GenerationSettings, InitModelSettings
from drtk.models.init_model import init_generator, train_tokenizer
from drtk.records import Passage
from drtk.runtime.manifest import list_versions
from drtk.runtime.progress import set_verbosity

WORDS = [
    a + b
    for a in ("ka", "lo", "mi", "ru", "te", "su", "no", "pa")
    for b in ("ra", "li", "mo", "ten", "ve", "dor", "sa", "kin")
]
PROFILE_LENGTH = 15  # operations


def make_passages(count: int, seed: int) -> list[tuple[Passage, str]]:
    """Return random passages of 20 to 200 words, each with a query of 3 to 14 of its words."""
    rng = random.Random(seed)
    pairs = []
    for number in range(count):
        text = [rng.choice(WORDS) for _ in range(rng.randint(20, 200))]
        query = [text[at] for at in sorted(rng.sample(range(20), rng.randint(3, 14)))]
        pairs.append((Passage(f"p{number}", " ".join(text)), " ".join(query)))
    return pairs


def train_model(folder: Path, device: str) -> None:
    """Train a T5 model that generates queries of various lengths."""
    settings = InitModelSettings(arch="t5", vocab_size=8000, layers=4, hidden=256, heads=4, max_length=512)
    pairs = make_passages(2000, seed=1)
    tokenizer = train_tokenizer((passage.text for passage, _ in pairs), settings)
    model = init_generator(tokenizer, settings, seed=1).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(150):
        chosen = random.Random(step).sample(pairs, 16)
        inputs = tokenizer(
            [p.text for p, _ in chosen], padding=True, truncation=True, max_length=64, return_tensors="pt"
        ).to(device)
        labels = tokenizer([query for _, query in chosen], padding=True, return_tensors="pt").input_ids.to(device)
        labels[labels == tokenizer.pad_token_id] = -100
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    save_pretrained_model(model.cpu().eval(), tokenizer, folder)


def read_clock() -> float:
    """Return the time in seconds on a GPU; on a CPU, which may be busy with other work, the processor time of all threads."""
    return time.perf_counter() if torch.cuda.is_available() else time.process_time()


def generate_plain(
    folder: Path, passages: list[Passage], settings: GenerationSettings, device: str, dtype: torch.dtype, size: int
) -> tuple[float, list[str]]:
    """Generate with a plain loop; return the seconds and the texts."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder).to(device, dtype)
    start = read_clock()
    texts: list[str] = []
    for at in range(0, len(passages), size):
        batch = [passage.text for passage in passages[at : at + size]]
        inputs = tokenizer(batch, padding=True, truncation=True, max_length=settings.max_length, return_tensors="pt")
        with torch.inference_mode():
            outputs = model.generate(
                input_ids=inputs.input_ids.to(device), attention_mask=inputs.attention_mask.to(device), do_sample=True,
                top_k=settings.top_k, top_p=settings.top_p, num_return_sequences=settings.n,
                max_new_tokens=settings.max_new_tokens,
            )  # fmt: skip
        texts += tokenizer.batch_decode(outputs, skip_special_tokens=True)
    return read_clock() - start, texts


def generate_drtk(
    folder: Path, passages: list[Passage], settings: GenerationSettings, device: str
) -> tuple[float, list[str]]:
    """Generate with drtk, in batches of 256 passages; return the seconds and the texts."""
    generate = PassageExpander(str(folder), settings, 42, device, "queries", True)
    start = read_clock()
    texts: list[str] = []
    batches = (generate.prepare(passages[at : at + 256]) for at in range(0, len(passages), 256))
    for done in generate.map(batches):
        texts += [query for line in done.lines for query in json.loads(line)["queries"]]
    return read_clock() - start, texts


def profile_operations(work: Callable[[], object], device: str) -> dict[str, Any]:
    """Profile `work`; return the operations with the most self time, of the GPU if there is one, and their share."""
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    start = time.perf_counter()
    with profile(activities=kinds) as profiler:
        work()
    took = time.perf_counter() - start
    by_own = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"  # microseconds
    operations = sorted(profiler.key_averages(), key=lambda entry: -getattr(entry, by_own))
    total = sum(getattr(entry, by_own) for entry in operations)
    return {
        "seconds": took,
        "seconds in operations": total / 1e6,
        "of": by_own,
        "operations": [
            {
                "name": entry.key,
                "calls": entry.count,
                "seconds": getattr(entry, by_own) / 1e6,
                "share": getattr(entry, by_own) / total,
            }
            for entry in operations[:PROFILE_LENGTH]
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", metavar="DIR")
    parser.add_argument("--passages", type=int, default=512)
    parser.add_argument("--corpus", default="", metavar="FILE", help="passages, instead of synthetic ones")
    parser.add_argument("--batch", type=int, default=32, help="passages per call of model.generate")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, metavar="N", help="tokens in memory, as in drtk doc2query")
    parser.add_argument("--profile", action="store_true", help="tell the costliest operations of drtk's side")
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    set_verbosity(quiet=True, verbose=False)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = GenerationSettings(n=options.n, max_new_tokens=options.max_new_tokens, batch_tokens=options.batch_tokens)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.model or Path(name) / "model")
        if not options.model:
            train_model(folder, device)
        if options.corpus:
            passages = list(islice(read_passages(options.corpus), options.passages))
        else:
            passages = [passage for passage, _ in make_passages(options.passages, seed=2)]
        seconds: dict[str, list[float]] = {"drtk": [], "model.generate": []}
        words = {}
        for _ in range(options.rounds):
            for kind, run in (
                ("drtk", lambda: generate_drtk(folder, passages, settings, device)),
                ("model.generate", lambda: generate_plain(folder, passages, settings, device, dtype, options.batch)),
            ):
                took, texts = run()
                seconds[kind].append(took)
                words[kind] = sum(len(text.split()) for text in texts) / len(texts)
        profiling = (
            profile_operations(lambda: generate_drtk(folder, passages, settings, device), device)
            if options.profile
            else None
        )
    rates = {kind: len(passages) / min(rounds) for kind, rounds in seconds.items()}
    result = {
        "command": "python benchmarks/generate.py",
        "passages": len(passages),
        "n": options.n,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "passages a second": rates,
        "ratio": rates["drtk"] / rates["model.generate"],
        "words a text": words,
        "hardware": {"machine": platform.machine(), "system": platform.system(), "cores": len(os.sched_getaffinity(0))},
        "versions": list_versions(),
    }
    if profiling is not None:
        result["profile"] = profiling
    text = json.dumps(result, indent=2) + "\n"
    Path(options.out).write_text(text) if options.out else print(text, end="")


if __name__ == "__main__":
    main()
