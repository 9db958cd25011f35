"""Prove and measure drtk's GPU paths in at most 10 minutes, without a network.

    benchmarks/on_a_gpu.sh [CORPUS] [--toy] [--steps NAME ...] [--out PREFIX] [--work DIR]

Each step runs in its own process with a time limit, so the others run even if one fails. Models have the shapes of BERT-base, MiniLM-L6
and T5-base with random weights, on which speed does not depend. CORPUS is a file of passages or documents, by default passages.jsonl.gz
beside this script, else `drtk sample`. Writes a table to stdout and PREFIX.md, and everything measured to PREFIX.json. --toy runs all
steps at a tiny size, on a CPU too. Predictions and limits in the table are derived for an H200, not measured.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOTAL = 600  # seconds for all steps
PACKAGES = ("torch", "transformers", "tokenizers", "sentence-transformers", "liger-kernel", "faiss-gpu", "faiss-cpu")
FULL_CORPUS = 8.8e6  # passages of MS MARCO, to which the rates of exact search are scaled
# (predicted, limit): derived from an H200's 790 TFLOP/s in bfloat16 and 4.3 TB/s, for the code before optimization
PREDICTED = {
    "matmul 8192^3 bfloat16, TFLOP/s": ("790", "989"),
    "copy, GB/s": ("4,300", "4,800"),
    "open files at the peak": ("1,178 before tensors were packed", ""),
    "RoPE ModernBERT, largest error of a position's cosine": ("0; rounded frequencies: .86", ""),
    "RoPE Llama, largest error of a position's cosine": ("0; rounded frequencies: .86", ""),
    "pretrain simlm, sequences/s": ("2,000 to 2,400", "11,000"),
    "pretrain simlm, textbook loop, sequences/s": ("2,000", ""),
    "pretrain master, sequences/s": ("950", "4,400"),
    "encode BERT-base, passages/s": ("22,000 to 25,000", "60,000"),
    "encode BERT-base, sentence-transformers, passages/s": ("14,000", ""),
    "encode MiniLM-L6, passages/s": ("25,000 to 30,000", "490,000"),
    "encode MiniLM-L6, sentence-transformers, passages/s": ("16,000", ""),
    "doc2query T5-base, passages/s": ("390", "26,000"),
    "exact search of 8.8M passages, queries/s": ("1,600", "58,000"),
    "exact search of 8.8M passages, faiss flat, queries/s": ("4,000", ""),
    "train-retriever, passages/s": ("6,000 to 7,000", "20,000"),
    "train-retriever, sentence-transformers, passages/s": ("4,000", ""),
    "train-reranker, pairs/s": ("3,300", "18,000"),
    "termweight bprop, passages/s": ("1,400", "60,000"),
    "rerank BERT-base, pairs/s": ("20,000", "54,000"),
    "rerank BERT-base, CrossEncoder, pairs/s": ("12,000", ""),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """The corpus file or "", whether to run at toy size, and whether there is a CUDA device."""

    corpus: str
    toy: bool
    cuda: bool

    @property
    def device(self) -> str:
        return "cuda" if self.cuda else "cpu"

    @property
    def half(self) -> str:
        return "float16" if self.cuda else "float32"

    def size(self, full: int, toy: int) -> int:
        """Return the size to use."""
        return toy if self.toy else full

    def synchronize(self) -> None:
        import torch

        if self.cuda:
            torch.cuda.synchronize()

    def time_best_of(self, rounds: int, work: Callable[[], object]) -> float:
        """Return the seconds of the fastest round, after one that is not timed."""
        times = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            work()
            self.synchronize()
            times.append(time.perf_counter() - start)
        return min(times[1:])


def run_python(command: str) -> str:
    """Run Python with arguments and return its stdout; exit with its last error line if it fails."""
    print("$ python", command, file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *shlex.split(command)], capture_output=True, text=True, check=False)
    print(done.stderr, file=sys.stderr, flush=True)
    if done.returncode:
        sys.exit(f"{command.split()[0]}: {get_last_line(done.stderr or done.stdout)}")
    return done.stdout


def run_drtk(command: str) -> str:
    return run_python(f"-m drtk {command} --force -q")


def run_benchmark(name: str, arguments: str) -> dict[str, Any]:
    """Run another benchmark and return its report, with the command."""
    return {"command": f"benchmarks/{name}.py {arguments}"} | json.loads(
        run_python(f"{shlex.quote(str(HERE / name))}.py {arguments}")
    )


def make_row(name: str, measured: float | str, note: str = "", **details: Any) -> Row:
    return {"row": name, "measured": measured, "note": note, **details}


def get_last_line(text: str) -> str:
    return next((line.strip("= ") for line in reversed(text.splitlines()) if line.strip("= ")), "no message")


def write_rows(name: str, rows: Iterator[Row]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def prepare(context: Context) -> Iterator[Row]:
    """Write passages of about MS MARCO's lengths, longer documents, queries and examples, and initialize the models."""
    from drtk.data.readers import read_passages

    start, rng, words = time.perf_counter(), random.Random(0), list[str]()
    if not context.corpus:
        run_drtk(f"sample sample {'--packages numpy' * context.toy}")
    passages = context.size(32_768, 400)
    for each in read_passages(context.corpus or "sample/documents.jsonl"):
        words += each.text.split()
        if len(words) > 64 * passages:
            break

    def cut(length: int) -> str:
        begin = rng.randrange(max(1, len(words) - length))
        return " ".join(words[begin : begin + length])

    texts = [cut(max(8, min(200, round(rng.lognormvariate(3.95, 0.4))))) for _ in range(passages)]  # mean: 56 words
    queries = {f"q{at}": " ".join(text.split()[:8]) for at, text in enumerate(texts[: context.size(4096, 64)])}
    pairs = ((id, f"p{at}", [f"p{other}" for other in rng.sample(range(passages), 16) if other != at]) for at, id in enumerate(queries))
    write_rows("passages.jsonl", ({"_id": f"p{at}", "text": text} for at, text in enumerate(texts)))
    write_rows("documents.jsonl", ({"_id": f"d{at}", "text": cut(400)} for at in range(context.size(800, 60))))
    write_rows("queries.jsonl", ({"_id": id, "text": text} for id, text in queries.items()))
    write_rows("examples.jsonl", ({"query_id": id, "positives": [gold], "negatives": others} for id, gold, others in pairs))
    tiny = "--layers 3 --hidden 32 --heads 2 --vocab-size 500"
    base = tiny if context.toy else "--layers 12 --hidden 768 --heads 12"
    shapes = (f"{base} -o bert-base", f"{tiny if context.toy else ''} -o minilm", f"{base} --arch t5 -o t5-base")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda shape: run_drtk(f"init-model passages.jsonl {shape}"), shapes))
    yield make_row("prepare, s", time.perf_counter() - start, f"{len(words):,} words of text")


def measure_ceilings(context: Context) -> Iterator[Row]:
    """Measure the rates of a matrix product and of a copy, which bound all others."""
    import torch

    n = context.size(8192, 256)
    one, other = (torch.randn(n, n, device=context.device, dtype=torch.bfloat16) for _ in range(2))
    seconds = context.time_best_of(5, lambda: one @ other)
    yield make_row("matmul 8192^3 bfloat16, TFLOP/s", 2 * n**3 / seconds / 1e12, f"{n}^3" * context.toy)
    source = torch.empty(context.size(1 << 30, 1 << 20), device=context.device)
    target = torch.empty_like(source)
    yield make_row("copy, GB/s", 2 * source.nbytes / context.time_best_of(5, lambda: target.copy_(source)) / 1e9)


def check_descriptors(context: Context) -> Iterator[Row]:
    """Pre-train with many tensors per step under the usual limit of open files, and count the files of the process."""
    run_drtk("chunk documents.jsonl --tokenizer minilm --max-tokens 30 -o chunks.jsonl")
    command = (
        "-m drtk pretrain chunks.jsonl --model minilm --preset cotmae --batch-size 2048 --micro-batch-size 64 --max-length 32"
        f" --max-steps {context.size(6, 2)} --set held_out=0 --set trainer=dataloader_num_workers=2 -o descriptors --force -q"
    )
    call = ["sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh", sys.executable, *command.split()]
    process, peak = subprocess.Popen(call, stderr=subprocess.PIPE, text=True), 0
    while process.poll() is None:
        with contextlib.suppress(OSError):  # it has just ended, or this system has no /proc
            peak = max(peak, len(os.listdir(f"/proc/{process.pid}/fd")))
        time.sleep(0.02)
    if process.returncode:
        sys.exit(f"pretrain: {get_last_line(process.communicate()[1])}")
    yield make_row("open files at the peak", peak or "passed", command=command)


def run_gpu_tests(context: Context) -> Iterator[Row]:
    """Run the tests that need a GPU."""
    if not context.cuda:
        yield make_row("GPU tests", "skipped: no CUDA device")
        return
    root = HERE.parent
    call = [sys.executable, *"-m pytest -q -p no:cacheprovider -m gpu tests/slow/test_on_a_gpu.py tests/unit".split()]
    done = subprocess.run(call, capture_output=True, text=True, check=False, cwd=root)
    summary = get_last_line(done.stdout or done.stderr)
    yield make_row("GPU tests", summary if done.returncode == 0 else f"failed: {summary}", output=done.stdout[-8000:])


def check_rope(context: Context) -> Iterator[Row]:
    """Compare vectors in bfloat16 and float32 at length 2,048, and the rotary frequencies of both."""
    import torch
    from transformers import AutoModel, LlamaConfig, ModernBertConfig

    from drtk.models.device import move_model

    length, width = context.size(2048, 256), context.size(768, 64)
    shape: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": width // 64}
    shape |= {"num_hidden_layers": context.size(12, 2), "vocab_size": 1000, "max_position_embeddings": length}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    inputs = torch.randint(3, 1000, (4, length), device=context.device)

    def compute_cosines(model: Any) -> Any:
        found = [each.double().cpu() for name, each in model.named_buffers() if name.endswith("inv_freq")]
        return torch.cat([torch.outer(torch.arange(length), each).cos() for each in found], dim=1)

    for name, config in (
        ("ModernBERT", ModernBertConfig(**shape, cls_token_id=1, sep_token_id=2)),
        ("Llama", LlamaConfig(**shape)),
    ):
        exact: Any = AutoModel.from_config(config, dtype=torch.float32).eval()
        half, rounded = deepcopy(exact), deepcopy(exact).to(torch.bfloat16)
        move_model(half, torch.device(context.device), torch.bfloat16)
        exact.to(context.device)
        with torch.inference_mode():
            one, other = (model(inputs).last_hidden_state.float().mean(1) for model in (exact, half))
        right = compute_cosines(exact)
        error, without_fix = (float((compute_cosines(model) - right).abs().max()) for model in (half, rounded))
        yield make_row(f"RoPE {name}, smallest cosine of vectors", float(torch.cosine_similarity(one, other).min()))
        yield make_row(f"RoPE {name}, largest error of a position's cosine", error, f"{without_fix:.2f} if rounded")


def compare_cross_entropies(context: Context) -> Iterator[Row]:
    """Compare the variants of the vocabulary cross-entropy with float64: gradients, speed and memory."""
    import torch
    import torch.nn.functional as F

    from drtk.losses import language

    n, width, words = (64, 32, 500) if context.toy else (16_384, 768, 30_522)
    torch.manual_seed(0)
    leaves = [torch.randn(n, width), torch.randn(words, width) * 0.05, torch.randn(words) * 0.05]
    inputs = [leaf.to(context.device).requires_grad_() for leaf in leaves]
    labels = torch.randint(words, (n,)).to(context.device)

    def compute_plain(features: Any, weight: Any, bias: Any, labels: Any) -> Any:
        logits = F.linear(features, weight, bias)
        return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels, reduction="sum")

    def compute_gradients(loss: Callable[..., Any], inputs: list[Any]) -> list[Any]:
        with torch.autocast(context.device, dtype=torch.bfloat16, enabled=inputs[0].dtype != torch.float64):
            total = loss(*inputs, labels)
        return [total.detach(), *torch.autograd.grad(total, inputs)]

    exact = compute_gradients(compute_plain, [each.detach().double().requires_grad_() for each in inputs])
    load_liger = language._load_liger_loss
    for name, loss in (
        ("drtk's chunks", language.linear_cross_entropy),
        ("liger", language.linear_cross_entropy),
        ("plain torch", compute_plain),
    ):
        label = f"cross-entropy, {name}, Mtok/s"
        if name == "liger" and (reason := find_reason_to_skip("liger", context)):
            yield make_row(label, reason)
            continue
        language._load_liger_loss = load_liger if name == "liger" else lambda: None  # type: ignore[assignment]
        found = compute_gradients(loss, inputs)
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
        del found
        note, before = f"relative error {max(errors):.1e}", 0
        if context.cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        seconds = context.time_best_of(3, partial(compute_gradients, loss, inputs))
        if context.cuda:
            note += f", peak {(torch.cuda.max_memory_allocated() - before) / 2**30:.2f} GiB"
        yield make_row(label, n / seconds / 1e6, note, errors=errors)


def find_reason_to_skip(variant: str, context: Context) -> str:
    """Return why a variant of the loss or of pre-training cannot run, or ""."""
    if variant and not context.cuda:
        return "skipped: no CUDA device"
    missing = variant == "liger" and importlib.util.find_spec("liger_kernel") is None
    return "skipped: liger-kernel is not installed" * missing


def measure_pretraining(preset: str, variant: str, context: Context) -> Iterator[Row]:
    """Time pre-training steps with drtk's own loss, compiled layers or liger-kernel, and a textbook loop of SimLM."""
    label = f"pretrain {preset}{', ' * bool(variant)}{variant}, sequences/s"
    if reason := find_reason_to_skip(variant, context):
        yield make_row(label, reason)
        return
    sizes = context.size(256, 4), context.size(14, 4), context.size(144, 32)
    options = "--batch-size {} --max-steps {} --length {} --rounds 1 --model bert-base --folder pretrain".format(*sizes)
    options += f" --preset {preset}{' --compile' * (variant == 'compile')}{' --no-liger' * (variant != 'liger')}"
    options += f" --systems {'textbook ' * (preset == 'simlm' and not variant)}drtk"
    report = run_benchmark("pretrain", f"documents.jsonl {options}")
    for name, best in report["best"].items():
        note = f"peak {best['peak_mib'] / 1024:.1f} GiB"
        if name == "drtk" and report["share_of_peak"] is not None:
            note += f", MFU on real tokens {report['share_of_peak']:.0%}"
        row = label if name == "drtk" else f"pretrain {preset}, textbook loop, sequences/s"
        yield make_row(row, best["sequences_per_second"], note, report=report)


def measure_encoding(name: str, model: str, context: Context) -> Iterator[Row]:
    """Time encoding in float16, beside sentence-transformers with batches of 512 sorted by length."""
    options = f"--model {model} --texts {context.size(32_768, 64)} --repeats 2 --st-batch 512"
    report = run_benchmark("encode", f"passages.jsonl {options} --precision {context.half} --st-dtype {context.half}")
    ours, peer = (system["texts_per_second"] for system in report["systems"].values())
    note = f"{report['tokens'] / report['texts']:.0f} tokens each"
    yield make_row(f"encode {name}, passages/s", ours, note, report=report)
    yield make_row(f"encode {name}, sentence-transformers, passages/s", peer, note)


def measure_generation(context: Context) -> Iterator[Row]:
    """Time doc2query with five queries per passage, beside model.generate with batches of 256."""
    options = f"--passages {context.size(2048, 8)} --batch 256 --max-new-tokens 12 --rounds 1"
    report = run_benchmark("generate", f"--model t5-base --corpus passages.jsonl {options}")
    rates, note = report["passages a second"], "5 queries of 12 tokens"
    yield make_row("doc2query T5-base, passages/s", rates["drtk"], note, report=report)
    yield make_row("doc2query T5-base, generate at batch 256, passages/s", rates["model.generate"], note)


def measure_search(context: Context) -> Iterator[Row]:
    """Time exact search, k = 1000, beside faiss flat on the GPU or torch.topk; rates are scaled to 8.8M passages."""
    passages, has_faiss = 2000, False
    if context.cuda:
        import torch

        passages = context.size(min(500_000, int(0.1 * torch.cuda.mem_get_info()[0] / (4 * 768))), 2000)
        with contextlib.suppress(ImportError):
            import faiss

            has_faiss = getattr(faiss, "get_num_gpus", int)() > 0
    labels = {"torch exact float32": "", "torch exact float16": ", float16"}
    labels |= {"faiss flat float32": ", faiss flat"} if has_faiss else {"torch topk float32": ", torch.topk"}
    sizes = passages, context.size(4096, 16), context.size(768, 32), context.size(1000, 10), shlex.join(labels)
    report = run_benchmark("search", "--passages {} --queries {} --dimension {} -k {} --systems {}".format(*sizes))
    for name, result in report["results"].items():
        note = f"scaled from {passages:,} passages, overlap {result['agrees']}"
        rate = result["queries_per_s"] * passages / FULL_CORPUS
        yield make_row(f"exact search of 8.8M passages{labels[name]}, queries/s", rate, note, report=report)


def run_training(options: str) -> dict[str, Any]:
    files = "examples.jsonl --corpus passages.jsonl --queries queries.jsonl --model bert-base --rounds 1"
    return run_benchmark("train", f"{files} {options}")


def measure_retriever(context: Context) -> Iterator[Row]:
    """Time retriever training, plain and with gradient caching, beside sentence-transformers."""
    sizes = context.size(128, 4), context.size(12, 4), context.size(64, 2)
    report = run_training("--negatives 3 --batch-size {} --max-steps {} --chunk {}".format(*sizes))
    for form, suffix in (("plain", ""), ("cached", " --grad-cache")):
        for name, best in report[form]["best"].items():
            label = f"train-retriever{suffix}{'' if name == 'drtk' else f', {name}'}, passages/s"
            note = f"peak {best['peak_mib'] / 1024:.1f} GiB"
            yield make_row(label, best["samples_per_second"] * 4, note, report=report)


def measure_reranker_training(context: Context) -> Iterator[Row]:
    """Time listwise re-ranker training."""
    sizes = context.size(32, 2), context.size(22, 4)
    report = run_training("--reranker --negatives 15 --batch-size {} --max-steps {}".format(*sizes))
    best = report["reranker"]["best"]["reranker"]
    note = f"peak {best['peak_mib'] / 1024:.1f} GiB"
    yield make_row("train-reranker, pairs/s", best["samples_per_second"] * 16, note, report=report)


def measure_term_weights(context: Context) -> Iterator[Row]:
    """Time the weighting of passages by attention, as the difference of a long and a short run."""
    lines, seconds = Path("passages.jsonl").read_text(encoding="utf-8").splitlines(keepends=True), []
    sizes = context.size(1024, 50), context.size(17_408, 400)
    for size in sizes:
        Path("few.jsonl").write_text("".join(lines[:size]), encoding="utf-8")
        start = time.perf_counter()
        run_drtk("termweight few.jsonl --method bprop --model bert-base -o weights.jsonl")
        seconds.append(time.perf_counter() - start)
    rate = (sizes[1] - sizes[0]) / max(seconds[1] - seconds[0], 0.001)
    yield make_row("termweight bprop, passages/s", rate, seconds=seconds, passages=sizes)


def measure_reranking(context: Context) -> Iterator[Row]:
    """Time reranking in float16, beside sentence-transformers' CrossEncoder with batches of 512."""
    sizes = context.size(8000, 100), context.size(64, 2), context.size(200, 8), context.half
    options = "--passages {} --queries {} --depth {} --precision {} --st-batch 512".format(*sizes)
    report = run_benchmark("rerank", f"passages.jsonl --model bert-base {options}")
    ours, peer = (system["pairs_per_second"] for system in report["systems"].values())
    note = f"{report['tokens'] / report['pairs']:.0f} tokens each"
    yield make_row("rerank BERT-base, pairs/s", ours, note, report=report)
    yield make_row("rerank BERT-base, CrossEncoder, pairs/s", peer, note)


STEPS: dict[str, tuple[Callable[[Context], Iterator[Row]], int]] = {  # with the time limit in seconds
    "prepare": (prepare, 90),
    "ceilings": (measure_ceilings, 30),
    "descriptors": (check_descriptors, 60),
    "tests": (run_gpu_tests, 120),
    "rope": (check_rope, 40),
    "cross-entropy": (compare_cross_entropies, 40),
    "simlm": (partial(measure_pretraining, "simlm", ""), 120),
    "simlm-liger": (partial(measure_pretraining, "simlm", "liger"), 60),
    "simlm-compile": (partial(measure_pretraining, "simlm", "compile"), 90),
    "master": (partial(measure_pretraining, "master", ""), 90),
    "master-liger": (partial(measure_pretraining, "master", "liger"), 60),
    "master-compile": (partial(measure_pretraining, "master", "compile"), 90),
    "encode": (partial(measure_encoding, "BERT-base", "bert-base"), 60),
    "encode-minilm": (partial(measure_encoding, "MiniLM-L6", "minilm"), 60),
    "doc2query": (measure_generation, 60),
    "search": (measure_search, 90),
    "train-retriever": (measure_retriever, 90),
    "train-reranker": (measure_reranker_training, 45),
    "termweight": (measure_term_weights, 60),
    "rerank": (measure_reranking, 45),
}


def run_step(name: str, limit: float, context: Context, work: Path) -> list[Row]:
    """Run a step in its own process group, in the work folder; return its rows, with one more if it fails."""
    call = [sys.executable, str(HERE / Path(__file__).name), context.corpus, "--run", name]
    call += ["--toy"] * context.toy + ["--cuda"] * context.cuda
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    log, failure = work / f"{name}.log", ""
    with open(work / f"{name}.rows", "w+", encoding="utf-8") as rows, open(log, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(call, stdout=rows, stderr=errors, cwd=work, env=environment, start_new_session=True)
        try:
            failure = "failed" * bool(process.wait(limit))
        except subprocess.TimeoutExpired:
            failure = f"failed: stopped after {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        rows.seek(0)
        results = [json.loads(line) for line in rows]
    text = log.read_text(encoding="utf-8")
    if failure:
        reason = failure if ":" in failure else f"failed: {get_last_line(text)}"
        results.append(make_row(name, reason, log=text[-4000:]))
    return [{"step": name} | row for row in results]


def format_table(rows: list[Row], device: str) -> str:
    """Return the table in Markdown."""
    lines = [f"# drtk on {device}", "", "Predictions and limits are derived for an H200, not measured.", ""]
    lines += ["| | measured | predicted | limit | |", "| --- | ---: | ---: | ---: | --- |"]
    for row in rows:
        value = row["measured"]
        text = value if isinstance(value, str) else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.5g}"
        cells = [row["row"], text, *PREDICTED.get(row["row"], ("", "")), row["note"]]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def list_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = HERE / "passages.jsonl.gz"
    parser.add_argument("corpus", nargs="?", default=str(beside) if beside.exists() else "")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, on a CPU too")
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--out", default="runs/on-a-gpu", metavar="PREFIX")
    parser.add_argument("--work", metavar="DIR", help="folder for models and logs [default: a temporary folder]")
    parser.add_argument("--run", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--cuda", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        for row in STEPS[options.run][0](Context(options.corpus, options.toy, options.cuda)):
            print(json.dumps(row), flush=True)
        return
    import torch

    has_cuda = torch.cuda.is_available()
    if not options.toy and not has_cuda:
        parser.error("no CUDA device; --toy runs at a tiny size on a CPU")
    device = torch.cuda.get_device_name() if has_cuda else f"{os.cpu_count()} CPU cores"
    device += ", toy size" * options.toy
    context = Context(str(Path(options.corpus).resolve()) if options.corpus else "", options.toy, has_cuda)
    start, rows, seconds = time.perf_counter(), list[Row](), dict[str, float]()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(options.work or temporary)
        work.mkdir(parents=True, exist_ok=True)
        for name in options.steps:
            begin = time.perf_counter()
            if (remaining := TOTAL - (begin - start)) < 10:
                found = [{"step": name} | make_row(name, f"skipped: the {TOTAL} s are over; use --steps {name}")]
            else:
                found = run_step(name, min(STEPS[name][1], remaining), context, work)
            seconds[name] = time.perf_counter() - begin
            rows += found
            for row in found:
                print(f"{row['row']}: {row['measured']}", file=sys.stderr, flush=True)
    table = format_table(rows, device)
    report = {"device": device, "cuda": torch.version.cuda, "versions": list_versions(), "seconds": seconds}
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_name(f"{out.name}.md").write_text(table, encoding="utf-8")
    content = json.dumps(report | {"predicted": PREDICTED, "rows": rows}, indent=2) + "\n"
    out.with_name(f"{out.name}.json").write_text(content, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
