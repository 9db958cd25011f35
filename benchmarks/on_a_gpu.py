"""Prove and measure drtk's GPU paths in at most 10 minutes, without a network.

    benchmarks/on_a_gpu.sh [CORPUS] [--toy] [--steps NAME ...] [--out PREFIX] [--work DIR]

Each step runs in its own process with a time limit, so the others run even if one fails. The limits of the first steps, one for each rate
of docs/benchmarks.md, fit into the 10 minutes; checks and variants use the time that remains. Models have the shapes of BERT-base, MiniLM-L6
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
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TOTAL = 570  # seconds for all steps; the table is written within 10 minutes
PACKAGES = ("torch", "transformers", "tokenizers", "sentence-transformers", "liger-kernel", "faiss-gpu", "faiss-cpu")
DECODED_ROWS = (370, 1280, 4096, 16_384)  # queries decoded at once; 1,280: the former limit
FULL_CORPUS = 8.8e6  # passages of MS MARCO, to which the times of exact search are extrapolated
# (predicted, limit): derived from an H200's 790 TFLOP/s in bfloat16 and 4.3 TB/s, for the code before optimization
PREDICTED = {
    "matmul 8192^3 bfloat16, TFLOP/s": ("790", "989"),
    "copy, GB/s": ("4,300", "4,800"),
    "open files at the peak": ("1,178 before tensors were packed", ""),
    "RoPE ModernBERT, largest error of a position's cosine": ("0", ""),
    "RoPE Llama, largest error of a position's cosine": ("0", ""),
    "pretrain simlm, sequences/s": ("2,000 to 2,400", "11,000"),
    "pretrain simlm, textbook loop, sequences/s": ("2,000", ""),
    "pretrain master, sequences/s": ("950", "4,400"),
    "encode BERT-base, passages/s": ("22,000 to 25,000", "60,000"),
    "encode BERT-base, sentence-transformers, passages/s": ("14,000", ""),
    "encode MiniLM-L6, passages/s": ("25,000 to 30,000", "490,000"),
    "encode MiniLM-L6, sentence-transformers, passages/s": ("16,000", ""),
    "doc2query T5-base, passages/s": ("390", "26,000"),
    "exact search of 8.8M passages, queries/s": ("1,600 to 5,000", "58,000"),
    "exact search of 8.8M passages, faiss flat, queries/s": ("4,000", ""),
    "train-retriever, passages/s": ("6,000 to 7,000", "20,000"),
    "train-retriever, sentence-transformers, passages/s": ("4,000", ""),
    "train-reranker, pairs/s": ("3,300", "18,000"),
    "train-reranker, CrossEncoder, pairs/s": ("3,000", ""),
    "termweight bprop, passages/s": ("1,400", "60,000"),
    "rerank BERT-base, pairs/s": ("20,000", "54,000"),
    "rerank BERT-base, CrossEncoder, pairs/s": ("12,000", ""),
}
Row = dict[str, Any]
Options = argparse.Namespace  # of main, with the device added
Step = Callable[[Options], Iterator[Row]]


def make_row(name: str, measured: float | str, note: str = "", **details: Any) -> Row:
    return {"row": name, "measured": measured, "note": note, **details}


def get_last_line(text: str) -> str:
    return next((line.strip("= ") for line in reversed(text.splitlines()) if line.strip("= ")), "no message")


def run_python(command: str) -> str:
    """Run Python with arguments and return its stdout; exit with its last error line if it fails."""
    print("$ python", command, file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *shlex.split(command)], capture_output=True, text=True, check=False)
    print(done.stderr, file=sys.stderr, flush=True)
    if done.returncode:
        sys.exit(get_last_line(done.stderr or done.stdout))
    return done.stdout


def run_drtk(command: str) -> str:
    return run_python(f"-m drtk {command} --force -q")


def time_best_of(rounds: int, work: Callable[[], object]) -> float:
    """Return the seconds of the fastest round, after one that is not timed."""
    import torch

    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def find_reason_to_skip(variant: str, options: Options) -> str:
    """Return why a variant (compile, liger) cannot run, or an empty string."""
    if variant in ("compile", "liger") and options.device == "cpu":
        return "skipped: no CUDA device"
    missing = variant == "liger" and importlib.util.find_spec("liger_kernel") is None
    return "skipped: liger-kernel is not installed" * missing


def prepare(options: Options) -> Iterator[Row]:
    """Write passages of about MS MARCO's lengths, longer documents, queries and examples, and initialize the models."""
    from drtk.data.readers import read_passages

    start, rng, words = time.perf_counter(), random.Random(0), list[str]()
    count, documents, queries = (400, 60, 64) if options.toy else (32_768, 800, 4096)
    if not options.corpus:
        run_drtk(f"sample sample {'--packages numpy' * options.toy}")
    for each in read_passages(options.corpus or "sample/documents.jsonl"):
        words += each.text.split()
        if len(words) > 64 * count:
            break

    def cut(length: int) -> str:
        begin = rng.randrange(max(1, len(words) - length))
        return " ".join(words[begin : begin + length])

    def write(name: str, rows: Iterator[Row]) -> None:
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    texts = [cut(max(8, min(200, round(rng.lognormvariate(3.95, 0.4))))) for _ in range(count)]  # mean: 56 words
    negatives = (
        [f"p{(at + 1 + other) % count}" for other in rng.sample(range(count - 1), 15)] for at in range(queries)
    )
    examples = ({"query_id": f"q{at}", "positives": [f"p{at}"], "negatives": ids} for at, ids in enumerate(negatives))
    write("passages.jsonl", ({"_id": f"p{at}", "text": text} for at, text in enumerate(texts)))
    write("documents.jsonl", ({"_id": f"d{at}", "text": cut(400)} for at in range(documents)))
    write("queries.jsonl", ({"_id": f"q{at}", "text": " ".join(texts[at].split()[:8])} for at in range(queries)))
    write("examples.jsonl", examples)
    tiny = "--layers 3 --hidden 32 --heads 2 --vocab-size 500"
    base = tiny if options.toy else "--layers 12 --hidden 768 --heads 12"
    shapes = (f"{base} -o bert-base", f"{tiny if options.toy else ''} -o minilm", f"{base} --arch t5 -o t5-base")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda shape: run_drtk(f"init-model passages.jsonl {shape}"), shapes))
    yield make_row("prepare, s", time.perf_counter() - start, f"{len(words):,} words of text")


def measure_ceilings(options: Options) -> Iterator[Row]:
    """Measure the rates of a matrix product and of a copy, which bound all others."""
    import torch

    n, numbers = (256, 1 << 20) if options.toy else (8192, 1 << 30)
    one, other = (torch.randn(n, n, device=options.device, dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * n**3 / time_best_of(5, lambda: one @ other)
    yield make_row("matmul 8192^3 bfloat16, TFLOP/s", rate / 1e12, f"{n}^3" * options.toy)
    source, target = (torch.zeros(numbers, device=options.device) for _ in range(2))
    yield make_row("copy, GB/s", 2 * source.nbytes / time_best_of(5, lambda: target.copy_(source)) / 1e9)


def check_descriptors(options: Options) -> Iterator[Row]:
    """Pre-train with many tensors per step under the usual limit of open files, and count the files of the process."""
    run_drtk("chunk documents.jsonl --tokenizer minilm --max-tokens 30 -o chunks.jsonl")
    command = (
        "-m drtk pretrain chunks.jsonl --model minilm --preset cotmae --batch-size 2048 --micro-batch-size 64 --max-length 32"
        f" --max-steps {2 if options.toy else 6} --set held_out=0 --set trainer=dataloader_num_workers=2 -o descriptors --force -q"
    )
    call = ["sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh", sys.executable, *command.split()]
    process, peak = subprocess.Popen(call, stderr=subprocess.PIPE, text=True), 0
    while process.poll() is None:
        with contextlib.suppress(OSError):  # the process has just ended, or this system has no /proc
            peak = max(peak, len(os.listdir(f"/proc/{process.pid}/fd")))
        time.sleep(0.02)
    if process.returncode:
        sys.exit(get_last_line(process.communicate()[1]))
    yield make_row("open files at the peak", peak or "passed", command=command)


def run_gpu_tests(options: Options) -> Iterator[Row]:
    """Run the tests that need a GPU, the short ones first; stop in time to report those that were run."""
    if options.device == "cpu":
        yield make_row("GPU tests", "skipped: no CUDA device")
        return
    yield make_row("GPU tests", *run_tests("gpu", STEPS["tests"][1] - 15))


def run_tests(mark: str, limit: float) -> tuple[str, str]:
    """Run the tests with a mark, and print their output to stderr; return pytest's last line and a note.

    limit: seconds after which pytest is interrupted
    """
    files = [path for path in (HERE.parent / "tests").rglob("test_*.py") if f"mark.{mark}" in path.read_text("utf-8")]
    files.sort(key=lambda path: "slow" in path.parts)
    call = [sys.executable, "-m", "pytest", "-v", "-m", mark, *map(str, files)]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=HERE.parent)
    timer, lines = threading.Timer(limit, process.send_signal, [signal.SIGINT]), list[str]()
    timer.start()
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", file=sys.stderr, flush=True)
        lines.append(line)
    is_stopped = not timer.is_alive()
    timer.cancel()
    failed = process.wait() and not (is_stopped and " FAILED" not in "".join(lines))
    return "failed: " * bool(failed) + get_last_line("".join(lines)), f"stopped after {limit:.0f} s" * is_stopped


def check_rope(options: Options) -> Iterator[Row]:
    """Compare vectors in bfloat16 and float32 at length 2,048, and the rotary angles of both."""
    import torch
    from transformers import AutoModel, LlamaConfig, ModernBertConfig

    from drtk.models.device import move_model

    length, width, layers = (256, 64, 2) if options.toy else (2048, 768, 12)
    shape: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": width // 64}
    shape |= {"num_hidden_layers": layers, "vocab_size": 1000, "max_position_embeddings": length}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    configs = {"ModernBERT": ModernBertConfig(**shape, cls_token_id=1, sep_token_id=2), "Llama": LlamaConfig(**shape)}
    torch.manual_seed(0)
    inputs = torch.randint(3, 1000, (4, length), device=options.device)

    def compute_cosines(model: Any) -> Any:
        found = [each.double().cpu() for name, each in model.named_buffers() if name.endswith("inv_freq")]
        return torch.cat([torch.outer(torch.arange(length), each).cos() for each in found], dim=1)

    for name, config in configs.items():
        exact: Any = AutoModel.from_config(config, dtype=torch.float32).eval()
        half, rounded = deepcopy(exact), deepcopy(exact).to(torch.bfloat16)
        move_model(half, torch.device(options.device), torch.bfloat16)
        exact.to(options.device)
        with torch.inference_mode():
            one, other = (model(inputs).last_hidden_state.float().mean(1) for model in (exact, half))
        cosines = compute_cosines(exact)
        error, unfixed = (float((compute_cosines(model) - cosines).abs().max()) for model in (half, rounded))
        yield make_row(f"RoPE {name}, smallest cosine of vectors", float(torch.cosine_similarity(one, other).min()))
        yield make_row(f"RoPE {name}, largest error of a position's cosine", error, f"{unfixed:.2f} if rounded")


def compare_cross_entropies(options: Options) -> Iterator[Row]:
    """Compare the variants of the vocabulary cross-entropy with float64: gradients, speed and memory."""
    import torch
    import torch.nn.functional as F

    from drtk.losses import language

    n, width, words = (64, 32, 500) if options.toy else (16_384, 768, 30_522)
    torch.manual_seed(0)
    leaves = [torch.randn(n, width), torch.randn(words, width) * 0.05, torch.randn(words) * 0.05]
    inputs = [leaf.to(options.device).requires_grad_() for leaf in leaves]
    labels = torch.randint(words, (n,)).to(options.device)

    def compute_plain(features: Any, weight: Any, bias: Any, labels: Any) -> Any:
        logits = F.linear(features, weight, bias)
        return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels, reduction="sum")

    def compute_gradients(loss: Callable[..., Any], inputs: list[Any]) -> list[Any]:
        with torch.autocast(options.device, dtype=torch.bfloat16, enabled=inputs[0].dtype != torch.float64):
            total = loss(*inputs, labels)
        return [total.detach(), *torch.autograd.grad(total, inputs)]

    exact = compute_gradients(compute_plain, [each.detach().double().requires_grad_() for each in inputs])
    load_liger, ours = language._load_liger_loss, language.linear_cross_entropy
    own: Callable[..., Any] = language._replace_by_gradients
    for name, loss in {"drtk's chunks": ours, "compile": ours, "liger": ours, "plain torch": compute_plain}.items():
        label = f"cross-entropy, {name}, Mtok/s"
        if name in ("compile", "liger") and (reason := find_reason_to_skip(name, options)):
            yield make_row(label, reason)
            continue
        language._load_liger_loss = load_liger if name == "liger" else lambda: None  # type: ignore[assignment]
        language._replace_by_gradients = torch.compile(own, dynamic=True) if name == "compile" else own
        found = compute_gradients(loss, inputs)
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
        del found
        note, before = f"relative error {max(errors):.1e}", 0
        if options.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        seconds = time_best_of(3, partial(compute_gradients, loss, inputs))
        if options.device == "cuda":
            note += f", peak {(torch.cuda.max_memory_allocated() - before) / 2**30:.2f} GiB"
        yield make_row(label, n / seconds / 1e6, note, errors=errors)


def run_benchmark(
    command: str, rows: dict[str, str], options: Options, *, factor: float = 1, note: str = ""
) -> Iterator[Row]:
    """Run another benchmark, and yield a row for each of the named values of its report.

    command: script and arguments; FULL//TOY is the value at full and at toy size
    rows: {name of the row: keys of the value, separated by slashes; a number is the position of a key}
    factor: number to multiply the values by
    """
    command = re.sub(r"(\S+)//(\S+)", r"\2" if options.toy else r"\1", command)
    report = json.loads(run_python(f"{shlex.quote(str(HERE))}/{command}"))
    details = {"command": command, "report": report}
    for name, keys in rows.items():
        values: Any = report
        *parents, last = keys.split("/")
        for key in parents:
            values = list(values.values())[int(key)] if key.isdigit() else values[key]
        notes = [note] * bool(note)
        if "peak_mib" in values:
            notes.append(f"peak {values['peak_mib'] / 1024:.1f} GiB")
        if "share_of_waiting" in values:
            notes.append(f"waits for data {values['share_of_waiting']:.0%} of the time")
        if "drtk" in parents and report.get("share_of_peak"):
            notes.append(f"MFU on real tokens {report['share_of_peak']:.0%}")
        yield make_row(name, values[last] * factor, ", ".join(notes), **details)
        details = {}  # once is enough


def pretrain(preset: str, variant: str, options: Options) -> Iterator[Row]:
    """Time pre-training steps with drtk's own loss, liger-kernel, compiled layers or padding; a textbook loop beside SimLM."""
    name, systems = f"pretrain {preset}{', ' * bool(variant)}{variant}, sequences/s", "drtk"
    if reason := find_reason_to_skip(variant, options):
        yield make_row(name, reason)
        return
    rows = {name: "best/drtk/sequences_per_second"}
    if name == "pretrain simlm, sequences/s":
        systems = "textbook drtk --profile"
        rows["pretrain simlm, textbook loop, sequences/s"] = "best/textbook/sequences_per_second"
    flags = {
        "": "--no-liger",
        "liger": "",
        "compile": "--no-liger --compile --warm 8 --max-steps 20",
        "padded": "--no-liger --padded",
    }[variant]
    sizes = "--batch-size 256//4 --max-steps 14//4 --length 144//32 --rounds 1"
    inputs = "pretrain.py documents.jsonl --model bert-base --folder pretrain"
    yield from run_benchmark(f"{inputs} {sizes} --preset {preset} {flags} --systems {systems}", rows, options)


def encode(name: str, model: str, options: Options) -> Iterator[Row]:
    """Time encoding without and with padding, beside sentence-transformers in float16 with batches of 512 sorted by length."""
    rows = {f"encode {name}, passages/s": "systems/0/texts_per_second"}
    rows[f"encode {name}, sentence-transformers, passages/s"] = "systems/1/texts_per_second"
    rows[f"encode {name}, padded, passages/s"] = "systems/2/texts_per_second"
    sizes = (
        "--padded --texts 32768//64 --repeats 2 --st-batch 512 --precision float16//float32 --st-dtype float16//float32"
    )
    yield from run_benchmark(f"encode.py passages.jsonl --model {model} {sizes}", rows, options)


def time_decoding_steps(options: Options) -> Iterator[Row]:
    """Time decoding steps of T5-base for passages of 76 tokens with five queries each, by the number of queries."""
    import torch

    from drtk.models.config import GenerationSettings
    from drtk.models.device import move_model
    from drtk.models.generation import generate_tokens
    from drtk.models.seq2seq import load_generation_model

    model, length = load_generation_model(Path("t5-base")), 16 if options.toy else 76
    on_gpu = options.device == "cuda"
    move_model(model.model, torch.device(options.device), torch.bfloat16 if on_gpu else torch.float32)
    model = replace(model, ends=(-1,))  # no query ends early
    for rows in DECODED_ROWS:
        passages = rows // 5 // (40 if options.toy else 1)
        ids = torch.randint(5, 400, (passages, length), device=options.device)
        seconds = []
        for steps in (4, 36):  # the difference is without the encoder
            work = partial(
                generate_tokens, model, ids, torch.ones_like(ids), [str(at) for at in range(passages)],
                GenerationSettings(n=5, max_new_tokens=steps), seed=1,
            )  # fmt: skip
            seconds.append(time_best_of(1, work))
        step = max(seconds[1] - seconds[0], 1e-6) / 32
        note = f"{step * 1000:.1f} ms per step"
        yield make_row(f"decoding {rows:,} queries, tokens/s", 5 * passages / step, note, seconds=seconds)


def generate(options: Options, *, batch_tokens: int) -> Iterator[Row]:
    """Time doc2query, by default beside model.generate with batches of 256; else with `batch_tokens` in memory."""
    rows = {"doc2query T5-base, passages/s": "passages a second/drtk"}
    rows["doc2query T5-base, generate at batch 256, passages/s"] = "passages a second/model.generate"
    sizes = "--passages 2048//8 --batch 256 --max-new-tokens 12 --rounds 1"
    command = f"generate.py --model t5-base --corpus passages.jsonl {sizes}"
    if batch_tokens:
        rows = {f"doc2query T5-base, {batch_tokens:,} tokens in memory, passages/s": "passages a second/drtk"}
    flags = f"--batch-tokens {batch_tokens}" if batch_tokens else "--profile"
    yield from run_benchmark(f"{command} {flags}", rows, options, note="5 queries of 12 tokens")


def search(options: Options) -> Iterator[Row]:
    """Time exact search, k = 1000, beside faiss flat on the GPU or torch.topk; times are extrapolated to 8.8M passages.

    Two numbers of passages are searched, since writing the hits of a query takes the same time for any number.
    """
    import torch

    passages, num_queries, peer = 20_000, 16, "torch topk"
    if not options.toy:
        num_queries = 4096
        passages = min(500_000, int(0.1 * torch.cuda.mem_get_info()[0] / (4 * 768)))
        with contextlib.suppress(ImportError):
            import faiss

            peer = "faiss flat" if getattr(faiss, "get_num_gpus", int)() else peer
    name = "exact search of 8.8M passages"
    rows = {
        f"{name}{variant}, queries/s": f"results/{at}/search_s"
        for at, variant in enumerate(("", ", float16", f", {peer}"))
    }
    systems = f"'torch exact float32' 'torch exact float16' '{peer} float32'"
    settings = f"--queries {num_queries} --dimension 768//32 -k 1000//10 --systems {systems}"
    fewer = passages // 5
    small, large = (
        [*run_benchmark(f"search.py --passages {count} {settings}", rows, options)] for count in (fewer, passages)
    )
    for few, many in zip(small, large, strict=True):
        per_passage = max(0.0, many["measured"] - few["measured"]) / (passages - fewer)
        seconds = many["measured"] + (FULL_CORPUS - passages) * per_passage
        fixed = max(0.0, many["measured"] - passages * per_passage) / num_queries
        note = f"extrapolated from {fewer:,} and {passages:,} passages; {1e6 * fixed:,.0f} µs per query for any number"
        yield many | {"measured": num_queries / seconds, "note": note}


TRAIN = "train.py examples.jsonl --corpus passages.jsonl --queries queries.jsonl --model bert-base --rounds 1"


def train_retriever(options: Options, *, padded: bool) -> Iterator[Row]:
    """Time retriever training, plain and with gradient caching, beside sentence-transformers; or plain, with padding."""
    rows = {}
    for flag, form in (("", "plain"), (", gradient caching", "cached")):
        for peer, system in (("", "drtk"), (", sentence-transformers", "sentence-transformers")):
            rows[f"train-retriever{flag}{peer}, passages/s"] = f"{form}/best/{system}/samples_per_second"
    command = f"{TRAIN} --negatives 3 --batch-size 128//4 --max-steps 12//4"
    if padded:
        rows = {"train-retriever, padded, passages/s": "plain/best/drtk/samples_per_second"}
    flags = "--chunk 0 --padded" if padded else "--chunk 64//2"
    yield from run_benchmark(f"{command} {flags}", rows, options, factor=4)


def train_reranker(options: Options, *, padded: bool) -> Iterator[Row]:
    """Time listwise re-ranker training without padding, beside sentence-transformers' CrossEncoder; or with padding."""
    command = f"{TRAIN} --reranker --negatives 15 --batch-size 32//2 --max-steps 22//4"
    rows = {"train-reranker, pairs/s": "reranker/best/drtk-reranker/samples_per_second"}
    rows["train-reranker, CrossEncoder, pairs/s"] = "reranker/best/CrossEncoder/samples_per_second"
    if padded:
        rows = {"train-reranker, padded, pairs/s": "reranker/best/drtk-reranker/samples_per_second"}
    yield from run_benchmark(f"{command}{' --padded' * padded}", rows, options, factor=16)


def weigh_terms(options: Options) -> Iterator[Row]:
    """Time the weighting of passages by attention, as the difference of a long and a short run."""
    lines, seconds = Path("passages.jsonl").read_text(encoding="utf-8").splitlines(keepends=True), []
    sizes = (50, 400) if options.toy else (1024, 9216)
    for size in sizes:
        Path("few.jsonl").write_text("".join(lines[:size]), encoding="utf-8")
        start = time.perf_counter()
        run_drtk("termweight few.jsonl --method bprop --model bert-base -o weights.jsonl")
        seconds.append(time.perf_counter() - start)
    rate = (sizes[1] - sizes[0]) / max(seconds[1] - seconds[0], 0.001)
    yield make_row("termweight bprop, passages/s", rate, seconds=seconds, passages=sizes)


def rerank(options: Options) -> Iterator[Row]:
    """Time reranking in float16, beside sentence-transformers' CrossEncoder with batches of 512."""
    rows = {"rerank BERT-base, pairs/s": "systems/0/pairs_per_second"}
    rows["rerank BERT-base, CrossEncoder, pairs/s"] = "systems/1/pairs_per_second"
    sizes = "--passages 8000//100 --queries 64//2 --depth 200//8 --precision float16//float32 --st-batch 512"
    yield from run_benchmark(f"rerank.py passages.jsonl --model bert-base {sizes}", rows, options)


RATES: dict[str, tuple[Step, int]] = {  # with the time limit in seconds; all limits add up to at most TOTAL
    "prepare": (prepare, 80),
    "ceilings": (measure_ceilings, 15),
    "encode": (partial(encode, "BERT-base", "bert-base"), 50),
    "encode-minilm": (partial(encode, "MiniLM-L6", "minilm"), 40),
    "simlm": (partial(pretrain, "simlm", ""), 60),
    "master": (partial(pretrain, "master", ""), 40),
    "train-retriever": (partial(train_retriever, padded=False), 60),
    "train-reranker": (partial(train_reranker, padded=False), 45),
    "doc2query": (partial(generate, batch_tokens=0), 50),
    "search": (search, 60),
    "termweight": (weigh_terms, 35),
    "rerank": (rerank, 35),
}
STEPS = RATES | {
    "descriptors": (check_descriptors, 60),
    "rope": (check_rope, 40),
    "simlm-liger": (partial(pretrain, "simlm", "liger"), 60),
    "cross-entropy": (compare_cross_entropies, 40),
    "decoding": (time_decoding_steps, 60),
    "simlm-padded": (partial(pretrain, "simlm", "padded"), 90),
    "train-retriever-padded": (partial(train_retriever, padded=True), 60),
    "train-reranker-padded": (partial(train_reranker, padded=True), 60),
    "doc2query-small": (partial(generate, batch_tokens=131_072), 60),
    "tests": (run_gpu_tests, 120),
    "master-liger": (partial(pretrain, "master", "liger"), 60),
    "simlm-compile": (partial(pretrain, "simlm", "compile"), 90),
    "master-compile": (partial(pretrain, "master", "compile"), 90),
}


def run_step(name: str, limit: float, options: Options, work: Path) -> list[Row]:
    """Run a step in its own process group, in the work folder; return its rows, with one more if it fails."""
    call = [sys.executable, __file__, options.corpus, "--run", name, "--device", options.device] + [
        "--toy"
    ] * options.toy
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    log, failure = work / f"{name}.log", ""
    with open(work / f"{name}.rows", "w+", encoding="utf-8") as rows, open(log, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(call, stdout=rows, stderr=errors, cwd=work, env=environment, start_new_session=True)
        try:
            if process.wait(limit):
                failure = f"failed: {get_last_line(log.read_text(encoding='utf-8'))}"
        except subprocess.TimeoutExpired:
            failure = f"failed: stopped after {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # no process of the group is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        rows.seek(0)
        results = [json.loads(line) for line in rows]
    if failure:
        results.append(make_row(name, failure, log=log.read_text(encoding="utf-8")[-4000:]))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = HERE / "passages.jsonl.gz"
    parser.add_argument("corpus", nargs="?", default=str(beside) if beside.exists() else "")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, on a CPU too")
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--out", type=Path, default=Path("runs/on-a-gpu"), metavar="PREFIX")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="folder for models and logs [default: a temporary folder]"
    )
    parser.add_argument("--run", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        for row in STEPS[options.run][0](options):
            print(json.dumps(row), flush=True)
        return
    import torch

    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu" and not options.toy:
        parser.error("no CUDA device; --toy runs at a tiny size on a CPU")
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} CPU cores"
    if options.corpus:
        options.corpus = str(Path(options.corpus).resolve())
    start, rows, seconds = time.perf_counter(), list[Row](), dict[str, float]()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for name in options.steps:
            begin = time.perf_counter()
            patience = 5 if options.toy else 1  # a toy run on a busy CPU is a test, not a measurement
            remaining = patience * TOTAL - (begin - start)
            if remaining < 10:
                found = [
                    {"step": name} | make_row(name, f"skipped: the {TOTAL} s are over; use --steps prepare {name}")
                ]
            else:
                found = run_step(name, min(patience * STEPS[name][1], remaining), options, work)
            seconds[name] = time.perf_counter() - begin
            rows += found
            for row in found:
                print(f"{row['row']}: {row['measured']}", file=sys.stderr, flush=True)
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    table = format_table(rows, device + ", toy size" * options.toy)
    report = {"device": device, "versions": versions, "seconds": seconds, "predicted": PREDICTED, "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_name(f"{options.out.name}.md").write_text(table, encoding="utf-8")
    options.out.with_name(f"{options.out.name}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
