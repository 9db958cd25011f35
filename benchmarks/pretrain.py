"""Pre-training: drtk compared with a textbook loop of SimLM, with the same models, passages, batch size and precision.

    python benchmarks/pretrain.py [DOCUMENTS] [--model DIR] [--generator DIR] [--batch-size N] [--length N] [--max-steps N] [--rounds N]
    [--preset simlm|master] [--compile] [--padded] [--no-liger] [--systems NAME ...] [--profile] [--out FILE]

Both start from MODEL with a new LM head, and the generator from --generator, by default the same model.
They run in separate processes and take turns. The textbook loop pads all texts to the maximum length and computes the logits
of all tokens. Sequences per second exclude the first --warm steps; memory is the peak of the process (or GPU) minus the memory
before the first step, and the share of waiting for data that of the process. Tokens do not include padding. On a known GPU, the share of its peak performance is computed from 6 operations
per weight and token with gradients and 2 in the generator, without attention. There is no textbook loop of --preset master, for which
queries and continuations are made of the texts themselves. --profile adds the most expensive operations of a step of drtk, from a
run of its own. Writes JSON.
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

PEAKS = {
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "L4": 121e12,
}  # bfloat16, dense, operations a second (data sheets)


def main() -> None:
    options = _parse_arguments()
    if options.run:
        train = train_textbook if options.run == "textbook" else train_drtk
        print(json.dumps(train(_open_inputs(options))))
        return
    _make_inputs(options)
    tokens = _count_tokens_per_text(_open_inputs(options))
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in options.systems}
    for _ in range(options.rounds):
        for name, results in rounds.items():
            results.append(_run_in_process(name))
            print(name, results[-1], file=sys.stderr)
    best = {name: max(results, key=lambda result: result["sequences_per_second"]) for name, results in rounds.items()}
    for result in best.values():
        result["tokens_per_second"] = result["sequences_per_second"] * tokens
    report = {
        "benchmark": "pretrain",
        "command": " ".join(["python", "benchmarks/pretrain.py", *map(_anonymize_path, sys.argv[1:])]),
        "best": best,
        "speed_ratio": _divide(best, "sequences_per_second"),
        "memory_ratio": _divide(best, "peak_mib"),
        "share_of_peak": _compute_share_of_peak(_open_inputs(options), best["drtk"]["tokens_per_second"]),
        "tokens_of_a_text": tokens,
        "rounds": rounds,
        "device": _get_device_name(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
        | {"python": platform.python_version()},
    }
    if options.profile:
        report["profile"] = _run_in_process("profile")["profile"]
    text = json.dumps(report, indent=2) + "\n"
    Path(options.out).write_text(text, encoding="utf-8") if options.out else print(text)


def _run_in_process(name: str) -> dict[str, Any]:
    call = [sys.executable, __file__, *sys.argv[1:], "--run", name]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _divide(best: dict[str, dict[str, float]], name: str) -> float | None:
    return best["drtk"][name] / best["textbook"][name] if len(best) == 2 else None


def _make_inputs(options: argparse.Namespace) -> None:
    """Make the passages and the model with a head by drtk commands, unless they exist."""
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    common = ["--skip-done", "--force", "-q"]
    ready = _open_inputs(options)
    for start, model in ((options.model, ready.model), (options.generator or options.model, ready.generator)):
        _add_head(start, model)
    longest = str(options.length - 2)
    chunk = ["chunk", options.documents, "--tokenizer", options.model, "--max-tokens", longest]
    _run_drtk(*chunk, "-o", ready.chunks, *common)
    if options.preset == "master" and not Path(ready.passages).exists():
        fields = folder / "fields.jsonl"
        rows = [json.loads(line) for line in Path(ready.chunks).read_text(encoding="utf-8").splitlines()]
        with open(fields, "w", encoding="utf-8") as file:
            for at, row in enumerate(rows):
                words = 5 * row["text"].split()
                more = {
                    "queries": [" ".join(words[i * 8 : i * 8 + 8]) for i in range(5)],
                    "continuations": [rows[at - 1]["text"]],
                }
                print(json.dumps({"_id": row["_id"]} | more), file=file)
        call = ["termweight", ready.chunks, "--with", str(fields), "--method", "inv-freq", "--tokenizer", options.model]
        _run_drtk(*call, "-o", ready.passages, *common)


def _add_head(start: str, folder: str) -> None:
    """Save a model with a new LM head as a masked language model."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()  # do not list the new weights of the head
    torch.manual_seed(1)
    AutoModelForMaskedLM.from_pretrained(start).save_pretrained(folder)
    AutoTokenizer.from_pretrained(start).save_pretrained(folder)


def _run_drtk(*arguments: str) -> None:
    if status := subprocess.run([sys.executable, "-m", "drtk", *arguments], check=False).returncode:
        sys.exit(status)  # drtk has printed the reason


def _open_inputs(options: argparse.Namespace) -> argparse.Namespace:
    folder = Path(options.folder)
    chunks = f"passages-{options.length}.jsonl"
    ready = {"chunks": chunks, "passages": chunks, "model": "model", "generator": "generator"}
    if options.preset == "master":
        ready["passages"] = f"passages-{options.length}-master.jsonl"
    return argparse.Namespace(**vars(options) | {name: str(folder / path) for name, path in ready.items()})


def _count_tokens_per_text(options: argparse.Namespace) -> float:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    found = tokenizer(
        _read_texts(options)[: options.max_steps * options.batch_size], truncation=True, max_length=options.length
    )
    return sum(map(len, found["input_ids"])) / len(found["input_ids"])


def _compute_share_of_peak(options: argparse.Namespace, tokens_per_second: float) -> float | None:
    peak = next((peak for name, peak in PEAKS.items() if name in _get_device_name()), None)
    if peak is None:
        return None
    from transformers import AutoModelForMaskedLM

    def count_weights(folder: str) -> tuple[int, int, int]:
        """Return the number of layers, the weights per layer, and the weights of the head."""
        model: Any = AutoModelForMaskedLM.from_pretrained(folder)
        layer = sum(each.numel() for each in model.base_model.encoder.layer[0].parameters())
        return model.config.num_hidden_layers, layer, model.config.vocab_size * model.config.hidden_size

    layers, layer, head = count_weights(options.model)
    if options.preset == "master":  # three encoder passes and five decoders, predicting at masked positions alone
        operations = 6 * ((3 * layers + 5 * 2) * layer + (0.3 + 0.5 + 0.3 + 5 * 0.5) * head)
    else:
        its_layers, its_layer, its_head = count_weights(options.generator)
        generator = 2 * its_layers * its_layer + (0.3 + 0.5) * its_head  # both inputs; head at masked positions alone
        operations = 6 * ((layers + 2) * layer + 2 * head) + 2 * generator
    return operations * tokens_per_second / peak


def _get_device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"


def train_textbook(options: argparse.Namespace) -> dict[str, float]:
    """Train SimLM as in its paper, without optimizations."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    device, half = _get_device()
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model: Any = AutoModelForMaskedLM.from_pretrained(options.model).to(device).train()
    generator: Any = AutoModelForMaskedLM.from_pretrained(options.generator).to(device).eval()
    body = model.base_model
    decoder = deepcopy(body.encoder.layer[-2:])
    optimizer = torch.optim.AdamW([*model.parameters(), *decoder.parameters()], lr=3e-4)
    special = torch.tensor(sorted(tokenizer.all_special_ids), device=device)
    texts = _read_texts(options)
    memory, start = _measure_memory(device), 0.0
    for step in range(options.max_steps):
        if step == options.warm:
            _synchronize(device)
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
            seen = [
                _replace_tokens(generator, ids, attention, mask, tokenizer.mask_token_id) for mask in (first, second)
            ]
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
    _synchronize(device)
    return _build_result(options, time.perf_counter() - start, _measure_peak_memory(device) - memory, float(loss))


@torch.no_grad()
def _replace_tokens(
    generator: Any, ids: torch.Tensor, attention: torch.Tensor, hidden: torch.Tensor, mask: int
) -> torch.Tensor:
    logits = generator(input_ids=ids.masked_fill(hidden, mask), attention_mask=attention).logits
    sampled = torch.multinomial(logits.float().softmax(-1).flatten(0, 1), 1).view(ids.shape)
    return torch.where(hidden, sampled, ids)


def train_drtk(options: argparse.Namespace) -> dict[str, Any]:
    """Train the preset with drtk, and time its steps; with `--run profile`, also profile one of them."""
    import tempfile

    from generate import profile_operations

    from drtk.config import load_preset, merge_settings
    from drtk.losses import language
    from drtk.models.device import AttentionBackend
    from drtk.pretraining import trainer as training
    from drtk.pretraining.assembly import build_network
    from drtk.pretraining.config import PretrainSettings
    from drtk.pretraining.dataset import PretrainingData
    from drtk.pretraining.example_builder import list_corpus_fields
    from drtk.pretraining.parse import parse_composition
    from drtk.pretraining.trainer import Pretrainer
    from drtk.runtime.inputs import InputTracker
    from drtk.runtime.progress import set_verbosity
    from drtk.text.token_dataset import TokenCorpus

    set_verbosity(quiet=True, verbose=False)
    device, half = _get_device()
    preset = load_preset(options.preset)
    generator = {"generator": {"model": options.generator}} if "generator" in preset.content else {}
    plan = parse_composition(preset.content | generator, options.preset)
    if options.no_liger:
        language._load_liger_loss = lambda: None  # type: ignore[assignment]
    attention = AttentionBackend("auto", device, half, packed=not options.padded)
    network, tokenizer = build_network(plan, Path(options.model), seed=1, attention=attention)
    chosen = {
        "batch_size": options.batch_size,
        "max_steps": options.max_steps,
        "max_length": options.length,
        "held_out": 0,
        "warmup": 0.0,
        "compile": options.compile,
    }
    if options.micro:
        chosen["micro_batch_size"] = options.micro
    settings = merge_settings(PretrainSettings, preset.settings, chosen | {"log_steps": 1000})
    corpus = TokenCorpus.open(options.passages, options.model, fields=list_corpus_fields(plan), tracker=InputTracker())
    data = PretrainingData(corpus, plan, settings, tokenizer, 1)
    clock, profiles = {"start": 0.0, "memory": 0.0, "loss": 0.0, "waiting": 0.0}, {}
    original_step, get_batches = Pretrainer.training_step, Pretrainer.get_batch_samples

    def run_timed_step(self: Any, *given: Any, **named: Any) -> torch.Tensor:
        if self.state.global_step == 0:
            clock["memory"] = _measure_memory(device)
        if self.state.global_step == options.warm:
            _synchronize(device)
            clock["start"] = time.perf_counter()
        if options.run == "profile" and self.state.global_step == options.warm:
            profiles["profile"] = profile_operations(lambda: original_step(self, *given, **named), device.type)
        loss = original_step(self, *given, **named)
        if self.state.global_step == options.max_steps - 1:
            _synchronize(device)
            clock["end"], clock["loss"] = time.perf_counter(), float(loss)
        return loss

    def get_timed_batches(self: Any, *given: Any, **named: Any) -> Any:
        start = time.perf_counter()
        batches = get_batches(self, *given, **named)
        if options.warm < self.state.global_step < options.max_steps:  # the first timed step had its batch before
            clock["waiting"] += time.perf_counter() - start
        return batches

    Pretrainer.training_step = run_timed_step  # type: ignore[method-assign]
    Pretrainer.get_batch_samples = get_timed_batches  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        training.pretrain(data, Path(folder), network=network, tokenizer=tokenizer)
    seconds = clock["end"] - clock["start"]
    result = _build_result(options, seconds, _measure_peak_memory(device) - clock["memory"], clock["loss"])
    return result | profiles | {"share_of_waiting": clock["waiting"] / seconds}


def _build_result(options: argparse.Namespace, seconds: float, peak: float, loss: float) -> dict[str, float]:
    sequences = (options.max_steps - options.warm) * options.batch_size
    return {"sequences_per_second": sequences / seconds, "peak_mib": peak, "last_loss": loss}


def _read_texts(options: argparse.Namespace) -> list[str]:
    from drtk.data.readers import read_passages

    return [passage.text for passage in islice(read_passages(options.passages), 5000)]


def _get_device() -> tuple[torch.device, bool]:
    return (torch.device("cuda"), True) if torch.cuda.is_available() else (torch.device("cpu"), False)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _measure_memory(device: torch.device) -> float:
    """Return the current memory of the process in MiB; on a GPU, reset its peak and return 0."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return 0.0
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def _measure_peak_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _anonymize_path(word: str) -> str:
    """Return the file name of a path; other words unchanged."""
    return Path(word).name if "/" in word else word


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="?", default="runs/quickstart/data/documents.jsonl")
    parser.add_argument("--model", default="runs/quickstart/minilm")
    parser.add_argument("--generator", default="", metavar="DIR", help="model of SimLM's generator; default: --model")
    parser.add_argument("--folder", default="runs/bench-pretrain", help="where the model and the passages are prepared")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--micro", type=int, default=0)
    parser.add_argument("--length", type=int, default=144)
    parser.add_argument("--max-steps", type=int, default=8)
    parser.add_argument("--warm", type=int, default=2, help="first steps, not timed; compilation takes more")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--preset", choices=["simlm", "master"], default="simlm")
    parser.add_argument("--compile", action="store_true", help="compile the encoder's layers")
    parser.add_argument("--padded", action="store_true", help="drtk with padding on a GPU too")
    parser.add_argument("--no-liger", action="store_true", help="drtk's own loss where liger-kernel is installed")
    parser.add_argument("--systems", nargs="+", choices=["textbook", "drtk"], default=["textbook", "drtk"])
    parser.add_argument("--profile", action="store_true", help="the most expensive operations of drtk's side, too")
    parser.add_argument("--out")
    parser.add_argument("--run", choices=["textbook", "drtk", "profile"], help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
