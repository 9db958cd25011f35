"""SimLM pre-training: drtk beside a plain textbook loop, with the same encoder, generator, passages, batch and precision.

python benchmarks/pretrain.py [DOCUMENTS] [--model DIR] [--batch-size N] [--length N] [--max-steps N] [--rounds N] [--out FILE]

Both begin with MODEL after two steps of masked language modelling, which give it a head; the same weights are the generator. That
and passages of up to the length are made first, in --folder. The textbook loop does what the paper says and no more: texts padded to the longest length, scores of every token for encoder,
decoder and generator. Both run in processes of their own and take turns; sequences a second are of the steps after the first
two, memory is the peak of the process (of the GPU where there is one), less what it has before the first step. Tokens are
those of texts, not of padding. On a GPU whose peak is known, the share of it that the products of matrices come to is told:
6 operations for each weight a token meets where gradients flow, 2 in the generator, attention left out. Writes JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

WARM = 2  # steps that are not timed
PEAKS = {
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "L4": 121e12,
}  # bfloat16, dense, operations a second (data sheets)


def main() -> None:
    options = _options()
    if options.run:
        print(json.dumps({"textbook": textbook, "drtk": ours}[options.run](_prepared(options))))
        return
    _prepare(options)
    tokens = _tokens_of_a_text(_prepared(options))
    rounds: dict[str, list[dict[str, float]]] = {"textbook": [], "drtk": []}
    for _ in range(options.rounds):
        for name, found in rounds.items():
            call = [sys.executable, __file__, *sys.argv[1:], "--run", name]
            done = subprocess.run(call, capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(name, found[-1], file=sys.stderr)
    best = {name: max(found, key=lambda each: each["sequences_per_second"]) for name, found in rounds.items()}
    for found in best.values():
        found["tokens_per_second"] = found["sequences_per_second"] * tokens
    report = {
        "benchmark": "pretrain",
        "command": " ".join(["python", "benchmarks/pretrain.py", *map(_plain, sys.argv[1:])]),
        "best": best,
        "speed_ratio": best["drtk"]["sequences_per_second"] / best["textbook"]["sequences_per_second"],
        "memory_ratio": best["drtk"]["peak_mib"] / best["textbook"]["peak_mib"],
        "share_of_peak": _share_of_peak(_prepared(options), best["drtk"]["tokens_per_second"]),
        "tokens_of_a_text": tokens,
        "rounds": rounds,
        "device": _device_name(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
        | {"python": platform.python_version()},
    }
    text = json.dumps(report, indent=2) + "\n"
    Path(options.out).write_text(text, encoding="utf-8") if options.out else print(text)


def _prepare(options: argparse.Namespace) -> None:
    """Passages of the length, and the model with a head, by drtk's own commands; what is there already stays."""
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    made = ["--skip-done", "--force", "-q"]
    longest = str(options.length - 2)
    warm = [
        "--preset",
        "mlm",
        "--max-steps",
        "2",
        "--batch-size",
        "8",
        "--max-length",
        str(options.length),
        "--set",
        "held_out=0",
    ]
    ready = _prepared(options)
    for call in (
        ["chunk", options.documents, "--tokenizer", options.model, "--max-tokens", longest, "-o", ready.passages],
        ["pretrain", ready.passages, "--model", options.model, *warm, "-o", ready.model],
        ["convert", "--masked-lm", ready.model, "-o", ready.masked_lm],
    ):
        subprocess.run([sys.executable, "-m", "drtk", *call, *made], check=True)


def _prepared(options: argparse.Namespace) -> argparse.Namespace:
    folder = Path(options.folder)
    ready = {"passages": f"passages-{options.length}.jsonl", "model": "model", "masked_lm": "masked-lm"}
    return argparse.Namespace(**vars(options) | {name: str(folder / path) for name, path in ready.items()})


def _tokens_of_a_text(options: argparse.Namespace) -> float:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    found = tokenizer(
        _texts(options)[: options.max_steps * options.batch_size], truncation=True, max_length=options.length
    )
    return sum(map(len, found["input_ids"])) / len(found["input_ids"])


def _share_of_peak(options: argparse.Namespace, tokens_per_second: float) -> float | None:
    peak = next((peak for name, peak in PEAKS.items() if name in _device_name()), None)
    if peak is None:
        return None
    from transformers import AutoModelForMaskedLM

    model: Any = AutoModelForMaskedLM.from_pretrained(options.masked_lm)
    layer = sum(each.numel() for each in model.base_model.encoder.layer[0].parameters())
    layers, head = model.config.num_hidden_layers, model.config.vocab_size * model.config.hidden_size
    trained = (layers + 2) * layer + 2 * head
    generator = 2 * layers * layer + (0.3 + 0.5) * head  # both inputs; its head at masked positions alone
    return (6 * trained + 2 * generator) * tokens_per_second / peak


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"


def textbook(options: argparse.Namespace) -> dict[str, float]:
    """SimLM as its paper has it, written down plainly."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    device, half = _device()
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model: Any = AutoModelForMaskedLM.from_pretrained(options.masked_lm).to(device).train()
    generator: Any = AutoModelForMaskedLM.from_pretrained(options.masked_lm).to(device).eval()
    body = model.base_model
    decoder = deepcopy(body.encoder.layer[-2:])
    optimizer = torch.optim.AdamW([*model.parameters(), *decoder.parameters()], lr=3e-4)
    special = torch.tensor(sorted(tokenizer.all_special_ids), device=device)
    texts = _texts(options)
    memory, start = _memory(device), 0.0
    for step in range(options.max_steps):
        if step == WARM:
            _wait(device)
            start = time.perf_counter()
        batch = [texts[(step * options.batch_size + at) % len(texts)] for at in range(options.batch_size)]
        inputs = tokenizer(
            batch, padding="max_length", truncation=True, max_length=options.length, return_tensors="pt"
        ).to(device)
        ids, attention = inputs["input_ids"], inputs["attention_mask"]
        content = ~torch.isin(ids, special)
        first = content & (torch.rand(ids.shape, device=device) < 0.3)
        second = first | (content & (torch.rand(ids.shape, device=device) < 0.2857))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            seen = [_replaced(generator, ids, attention, mask, tokenizer.mask_token_id) for mask in (first, second)]
            above = body(input_ids=seen[0], attention_mask=attention).last_hidden_state
            labels = ids.masked_fill(~content, -100)
            loss = F.cross_entropy(model.cls(above).flatten(0, 1).float(), labels.flatten())
            below = torch.cat([above[:, :1], body.embeddings(input_ids=seen[1])[:, 1:]], dim=1)
            wide = attention[:, None, None, :].bool()
            for layer in decoder:
                below = layer(below, wide)
            loss = loss + F.cross_entropy(model.cls(below).flatten(0, 1).float(), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    _wait(device)
    return _result(options, time.perf_counter() - start, _peak(device) - memory, float(loss))


@torch.no_grad()
def _replaced(
    generator: Any, ids: torch.Tensor, attention: torch.Tensor, hidden: torch.Tensor, mask: int
) -> torch.Tensor:
    logits = generator(input_ids=ids.masked_fill(hidden, mask), attention_mask=attention).logits
    drawn = torch.multinomial(logits.float().softmax(-1).flatten(0, 1), 1).view(ids.shape)
    return torch.where(hidden, drawn, ids)


def ours(options: argparse.Namespace) -> dict[str, float]:
    """The shipped preset, with a clock on its steps."""
    import tempfile

    from drtk.config import load_preset, merge
    from drtk.pretraining import trainer as training
    from drtk.pretraining.assembly import build_network
    from drtk.pretraining.config import PretrainSettings
    from drtk.pretraining.example_builder import list_corpus_fields
    from drtk.pretraining.parse import parse_composition
    from drtk.pretraining.trainer import Pretrainer
    from drtk.runtime.inputs import InputTracker
    from drtk.runtime.progress import set_verbosity
    from drtk.text.token_dataset import TokenCorpus

    set_verbosity(quiet=True, verbose=False)
    device, _ = _device()
    preset = load_preset("simlm")
    plan = parse_composition(preset.content | {"generator": {"model": options.model}}, "simlm")
    network, tokenizer = build_network(plan, Path(options.model), seed=1)
    chosen = {
        "batch_size": options.batch_size,
        "max_steps": options.max_steps,
        "max_length": options.length,
        "held_out": 0,
        "warmup": 0.0,
    }
    if options.micro:
        chosen["micro_batch_size"] = options.micro
    settings = merge(PretrainSettings, preset.settings, chosen | {"log_steps": 1000})
    corpus = TokenCorpus.open(options.passages, options.model, fields=list_corpus_fields(plan), tracker=InputTracker())
    material = training.PretrainingData(corpus, plan, settings, tokenizer, 1)
    clock = {"start": 0.0, "memory": 0.0, "loss": 0.0}
    usual = Pretrainer.training_step

    def timed(self: Any, *given: Any, **named: Any) -> torch.Tensor:
        if self.state.global_step == 0:
            clock["memory"] = _memory(device)
        if self.state.global_step == WARM:
            _wait(device)
            clock["start"] = time.perf_counter()
        loss = usual(self, *given, **named)
        if self.state.global_step == options.max_steps - 1:
            _wait(device)
            clock["end"], clock["loss"] = time.perf_counter(), float(loss)
        return loss

    Pretrainer.training_step = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        training.pretrain(material, Path(folder), network=network, tokenizer=tokenizer)
    return _result(options, clock["end"] - clock["start"], _peak(device) - clock["memory"], clock["loss"])


def _result(options: argparse.Namespace, seconds: float, peak: float, loss: float) -> dict[str, float]:
    sequences = (options.max_steps - WARM) * options.batch_size
    return {"sequences_per_second": sequences / seconds, "peak_mib": peak, "last_loss": loss}


def _texts(options: argparse.Namespace) -> list[str]:
    from drtk.data.jsonl import read_passages

    return [passage.text for passage in islice(read_passages(options.passages), 5000)]


def _device() -> tuple[torch.device, bool]:
    return (torch.device("cuda"), True) if torch.cuda.is_available() else (torch.device("cpu"), False)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _memory(device: torch.device) -> float:
    """MiB held now: of the GPU, or of the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return 0.0
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _plain(word: str) -> str:
    """A path as others have it."""
    return Path(word).name if "/" in word else word


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="?", default="runs/quickstart/data/documents.jsonl")
    parser.add_argument("--model", default="runs/quickstart/minilm")
    parser.add_argument("--folder", default="runs/bench-pretrain", help="where the model and the passages are prepared")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--micro", type=int, default=0)
    parser.add_argument("--length", type=int, default=144)
    parser.add_argument("--max-steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out")
    parser.add_argument("--run", choices=["textbook", "drtk"], help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
