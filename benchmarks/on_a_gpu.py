"""Prove and measure drtk's GPU paths in at most 10 minutes, without a network.

    benchmarks/on_a_gpu.sh [CORPUS] [--toy] [--steps NAME ...] [--out PREFIX] [--work DIR]

Each step runs in its own process with a time limit, so the others run even if one fails. Two short checks and the rates of
docs/benchmarks.md come first, with limits that fit into the 10 minutes; a rate may also use the time that earlier ones left. Tests and
variants use the rest. Models have the shapes of BERT-base, MiniLM-L6 and T5-base with random weights, on which speed does not depend. CORPUS is a file of passages or documents,
by default passages.jsonl.gz beside this script, else `drtk sample`. After each step, PREFIX.md has a table of the results so far, and
PREFIX.json all that was measured. --toy runs all steps at a tiny size, on a CPU too. Predictions and limits in the table are derived for an
H200, not measured.
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
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOTAL = 560  # seconds for all steps; the rest of the 10 minutes is for installing wheels
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
    "termweight bprop, passages/s": ("1,400", "30,000"),
    "rerank BERT-base, pairs/s": ("20,000", "54,000"),
    "rerank BERT-base, CrossEncoder, pairs/s": ("12,000", ""),
}
Row = dict[str, Any]
Step = Callable[[argparse.Namespace], Iterator[Row]]  # of the options of main


def make_row(name: str, measured: float | str, note: str = "", **details: Any) -> Row:
    return {"row": name, "measured": measured, "note": note, **details}


def get_last_line(text: str) -> str:
    return next((line.strip("= ") for line in reversed(text.splitlines()) if line.strip("= ")), "no message")


def run_python(command: str) -> str:
    """Run Python with arguments and return its stdout; exit if it fails. Its stderr goes to the log of the step."""
    print("$ python", command, file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *shlex.split(command)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


def run_drtk(command: str) -> str:
    return run_python(f"-m drtk {command} --force -q")


def time_best_of(rounds: int, work: Callable[[], object]) -> float:
    """Return the seconds of the fastest round, after one that is not timed."""
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        work()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def find_reason_to_skip(variant: str) -> str:
    """Return why a variant (compile, liger) cannot run, or an empty string."""
    if variant in ("compile", "liger") and DEVICE == "cpu":
        return "skipped: no CUDA device"
    missing = variant == "liger" and importlib.util.find_spec("liger_kernel") is None
    return "skipped: liger-kernel is not installed" * missing


def prepare(options: argparse.Namespace) -> Iterator[Row]:
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
    write("few.jsonl", ({"_id": f"p{at}", "text": text} for at, text in enumerate(texts[:5120])))  # for pre-training
    write("documents.jsonl", ({"_id": f"d{at}", "text": cut(400)} for at in range(documents)))
    write("queries.jsonl", ({"_id": f"q{at}", "text": " ".join(texts[at].split()[:8])} for at in range(queries)))
    write("examples.jsonl", examples)
    tiny = "--layers 3 --hidden 32 --heads 2 --vocab-size 500" * options.toy
    base = tiny or "--layers 12 --hidden 768 --heads 12"
    small = tiny or "--layers 12 --hidden 256 --heads 4"  # as ELECTRA's generator, which SimLM uses
    shapes = (f"{base} -o bert-base", f"{tiny} -o minilm", f"{small} -o generator", f"{base} --arch t5 -o t5-base")
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda shape: run_drtk(f"init-model passages.jsonl {shape}"), shapes))
    yield make_row("prepare, s", time.perf_counter() - start, f"{len(words):,} words of text")


def measure_ceilings(options: argparse.Namespace) -> Iterator[Row]:
    """Measure the rates of a matrix product and of a copy, which bound all others."""
    n, numbers = (256, 1 << 20) if options.toy else (8192, 1 << 30)
    one, other = (torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * n**3 / time_best_of(5, lambda: one @ other)
    yield make_row("matmul 8192^3 bfloat16, TFLOP/s", rate / 1e12, f"{n}^3" * options.toy)
    source, target = (torch.zeros(numbers, device=DEVICE) for _ in range(2))
    yield make_row("copy, GB/s", 2 * source.nbytes / time_best_of(5, lambda: target.copy_(source)) / 1e9)


def check_descriptors(options: argparse.Namespace) -> Iterator[Row]:
    """Pre-train with many tensors per step under the usual limit of open files, and count the files of the process."""
    run_drtk("chunk documents.jsonl --tokenizer minilm --max-tokens 30 -o chunks.jsonl")
    command = (
        "-m drtk pretrain chunks.jsonl --model minilm --preset cotmae --batch-size 2048 --micro-batch-size 64 --max-length 32"
        f" --max-steps {2 if options.toy else 6} --set held_out=0 --set trainer=dataloader_num_workers=2 -o descriptors --force -q"
    )
    call = ["sh", "-c", 'ulimit -Sn 1024; exec "$@"', "sh", sys.executable, *command.split()]
    process, peak = subprocess.Popen(call), 0
    while process.poll() is None:
        with contextlib.suppress(OSError):  # the process has just ended, or this system has no /proc
            peak = max(peak, len(os.listdir(f"/proc/{process.pid}/fd")))
        time.sleep(0.02)
    if process.returncode:
        sys.exit(process.returncode)
    yield make_row("open files at the peak", peak or "passed", command=command)


def run_gpu_tests(options: argparse.Namespace) -> Iterator[Row]:
    """Run the tests that need a GPU, the short ones first; stop in time to report those that were run."""
    if DEVICE == "cpu":
        yield make_row("GPU tests", "skipped: no CUDA device")
        return
    limit = STEPS["tests"][0] - 15
    files = [path for path in (HERE.parent / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text("utf-8")]
    files.sort(key=lambda path: "slow" in path.parts)
    call = ["timeout", "-s", "INT", str(limit), sys.executable, "-m", "pytest", "-v", "-m", "gpu", *map(str, files)]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, cwd=HERE.parent, check=False)
    print(done.stdout, file=sys.stderr)
    is_stopped = done.returncode == 124
    failed = "FAILED" in done.stdout or (done.returncode and not is_stopped)
    result = "failed: " * bool(failed) + get_last_line(done.stdout)
    yield make_row("GPU tests", result, f"stopped after {limit} s" * is_stopped)


def check_rope(options: argparse.Namespace) -> Iterator[Row]:
    """Compare vectors in bfloat16 and float32 at length 2,048, and the rotary angles of both."""
    from transformers import AutoModel, LlamaConfig, ModernBertConfig

    from drtk.models.device import move_model

    length, width, layers = (256, 64, 2) if options.toy else (2048, 768, 12)
    shape: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": width // 64}
    shape |= {"num_hidden_layers": layers, "vocab_size": 1000, "max_position_embeddings": length}
    shape |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    configs = {"ModernBERT": ModernBertConfig(**shape, cls_token_id=1, sep_token_id=2), "Llama": LlamaConfig(**shape)}
    torch.manual_seed(0)
    inputs = torch.randint(3, 1000, (4, length), device=DEVICE)

    def compute_cosines(model: Any) -> Any:
        found = [each.double().cpu() for name, each in model.named_buffers() if name.endswith("inv_freq")]
        return torch.cat([torch.outer(torch.arange(length), each).cos() for each in found], dim=1)

    for name, config in configs.items():
        exact: Any = AutoModel.from_config(config, dtype=torch.float32).eval()
        half, rounded = deepcopy(exact), deepcopy(exact).to(torch.bfloat16)
        move_model(half, torch.device(DEVICE), torch.bfloat16)
        exact.to(DEVICE)
        with torch.inference_mode():
            one, other = (model(inputs).last_hidden_state.float().mean(1) for model in (exact, half))
        cosines = compute_cosines(exact)
        error, unfixed = (float((compute_cosines(model) - cosines).abs().max()) for model in (half, rounded))
        yield make_row(f"RoPE {name}, smallest cosine of vectors", float(torch.cosine_similarity(one, other).min()))
        yield make_row(f"RoPE {name}, largest error of a position's cosine", error, f"{unfixed:.2f} if rounded")


def compare_cross_entropies(options: argparse.Namespace) -> Iterator[Row]:
    """Compare the variants of the vocabulary cross-entropy with float64: gradients, speed and memory."""
    import torch.nn.functional as F

    from drtk.losses import language

    n, width, words = (64, 32, 500) if options.toy else (16_384, 768, 30_522)
    torch.manual_seed(0)
    leaves = [torch.randn(n, width), torch.randn(words, width) * 0.05, torch.randn(words) * 0.05]
    inputs = [leaf.to(DEVICE).requires_grad_() for leaf in leaves]
    labels = torch.randint(words, (n,)).to(DEVICE)

    def compute_plain(features: Any, weight: Any, bias: Any, labels: Any) -> Any:
        logits = F.linear(features, weight, bias)
        return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), labels, reduction="sum")

    def compute_gradients(loss: Callable[..., Any], inputs: list[Any]) -> list[Any]:
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=inputs[0].dtype != torch.float64):
            total = loss(*inputs, labels)
        return [total.detach(), *torch.autograd.grad(total, inputs)]

    exact = compute_gradients(compute_plain, [each.detach().double().requires_grad_() for each in inputs])
    load_liger, ours = language._load_liger_loss, language.linear_cross_entropy
    own: Callable[..., Any] = language._replace_by_gradients
    for name, loss in {"drtk's chunks": ours, "plain torch": compute_plain, "liger": ours, "compile": ours}.items():
        label = f"cross-entropy, {name}, Mtok/s"
        if reason := find_reason_to_skip(name):
            yield make_row(label, reason)
            continue
        language._load_liger_loss = load_liger if name == "liger" else lambda: None  # type: ignore[assignment]
        language._replace_by_gradients = torch.compile(own, dynamic=True) if name == "compile" else own
        found = compute_gradients(loss, inputs)
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
        del found
        note, before = f"relative error {max(errors):.1e}", 0
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        seconds = time_best_of(3, partial(compute_gradients, loss, inputs))
        if DEVICE == "cuda":
            note += f", peak {(torch.cuda.max_memory_allocated() - before) / 2**30:.2f} GiB"
        yield make_row(label, n / seconds / 1e6, note, errors=errors)


def run_benchmark(
    command: str,
    rows: dict[str, str],
    options: argparse.Namespace,
    *,
    factor: float = 1,
    note: str = "",
    variant: str = "",
) -> Iterator[Row]:
    """Run another benchmark, and yield a row for each of the named values of its report.

    command: script and arguments; FULL//TOY is the value at full and at toy size
    rows: {name of the row: keys of the value, separated by slashes; a number is the position of a key}
    factor: number to multiply the values by    variant: see `find_reason_to_skip`
    """
    if reason := find_reason_to_skip(variant):
        yield from (make_row(name, reason) for name in rows)
        return
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


def time_decoding_steps(options: argparse.Namespace) -> Iterator[Row]:
    """Time decoding steps of T5-base for passages of 76 tokens with five queries each, by the number of queries."""
    from drtk.models.config import GenerationSettings
    from drtk.models.device import move_model
    from drtk.models.generation import generate_tokens
    from drtk.models.seq2seq import load_generation_model

    model, length = load_generation_model(Path("t5-base")), 16 if options.toy else 76
    on_gpu = DEVICE == "cuda"
    move_model(model.model, torch.device(DEVICE), torch.bfloat16 if on_gpu else torch.float32)
    model = replace(model, ends=(-1,))  # no query ends early
    for rows in DECODED_ROWS:
        passages = rows // 5 // (40 if options.toy else 1)
        ids = torch.randint(5, 400, (passages, length), device=DEVICE)
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


def search(options: argparse.Namespace) -> Iterator[Row]:
    """Time exact search, k = 1000, beside faiss flat on the GPU or torch.topk; times are extrapolated to 8.8M passages.

    Two numbers of passages are searched: the time of scoring grows with them, that of the lists of ids and scores does not.
    """
    peer = "torch topk"
    with contextlib.suppress(ImportError):
        import faiss

        peer = "faiss flat" if getattr(faiss, "get_num_gpus", int)() else peer
    rows = {
        f"exact search of 8.8M passages{variant}, queries/s": f"results/{at}/search_s"
        for at, variant in enumerate(("", ", float16", f", {peer}"))
    }
    systems = f"'torch exact float32' 'torch exact float16' '{peer} float32'"
    num_queries, sizes = (16, (10_000, 20_000)) if options.toy else (4096, (1 << 18, 1 << 19))  # a block and two
    settings = f"--queries {num_queries} --dimension 768//32 -k 1000//10 --systems {systems}"
    small, large = ([*run_benchmark(f"search.py --passages {size} {settings}", rows, options)] for size in sizes)
    scoring = [[each["scoring_s"] for each in found[0]["report"]["results"].values()] for found in (small, large)]
    for row, less, more in zip(large, *scoring, strict=True):
        per_passage = max(0.0, more - less) / (sizes[1] - sizes[0])
        seconds = row["measured"] + (FULL_CORPUS - sizes[1]) * per_passage
        lists = 1e6 * max(0.0, row["measured"] - more) / num_queries
        note = f"extrapolated from {sizes[0]:,} and {sizes[1]:,} passages; {lists:,.0f} µs per query for lists"
        yield row | {"measured": num_queries / seconds, "note": note, "scoring_s": [less, more]}


def weigh_terms(options: argparse.Namespace) -> Iterator[Row]:
    """Time the weighting of passages by attention, as the difference of a long and a short run, after one that is not timed."""
    from drtk.cli.main import app

    sizes, seconds = (50, 400) if options.toy else (1024, 17_408), []
    for size in (sizes[0], *sizes):
        with open("passages.jsonl", encoding="utf-8") as lines:
            Path("weighted.jsonl").write_text("".join(islice(lines, size)), encoding="utf-8")
        start = time.perf_counter()
        command = "termweight weighted.jsonl --method bprop --model bert-base -o weights.jsonl --force -q"
        app(command.split(), prog_name="drtk", standalone_mode=False)
        seconds.append(time.perf_counter() - start)
    rate = (sizes[1] - sizes[0]) / max(seconds[2] - seconds[1], 0.001)
    yield make_row("termweight bprop, passages/s", rate, seconds=seconds, passages=sizes)


def make_encoding(name: str, model: str) -> Step:
    """Return the step that times encoding without and with padding, beside sentence-transformers, all sorted by length."""
    systems = ("", "sentence-transformers, ", "padded, ")
    rows = {f"encode {name}, {each}passages/s": f"systems/{at}/texts_per_second" for at, each in enumerate(systems)}
    sizes = "--texts 32768//64 --repeats 2 --st-batch 512 --precision float16//float32 --st-dtype float16//float32"
    return partial(run_benchmark, f"encode.py passages.jsonl --model {model} --padded {sizes}", rows)


def make_pretraining(preset: str, flags: str, variant: str = "") -> Step:
    """Return the step that times pre-training; without a variant, a textbook loop runs beside SimLM."""
    name = f"pretrain {preset}{', ' * bool(variant)}{variant}, sequences/s"
    rows, systems = {name: "best/drtk/sequences_per_second"}, "drtk"
    if name == "pretrain simlm, sequences/s":
        rows["pretrain simlm, textbook loop, sequences/s"] = "best/textbook/sequences_per_second"
        systems = "textbook drtk --profile"
    inputs = "pretrain.py few.jsonl --model bert-base --generator generator --folder pretrain"
    sizes = "--batch-size 256//4 --max-steps 14//4 --length 144//32 --rounds 1"
    command = f"{inputs} {sizes} --preset {preset} {flags} --systems {systems}"
    return partial(run_benchmark, command, rows, variant=variant)


def make_training(flags: str, rows: dict[str, str], factor: int) -> Step:
    """Return the step that times the training of a retriever or re-ranker; factor: passages per query."""
    inputs = "train.py examples.jsonl --corpus passages.jsonl --queries queries.jsonl --model bert-base --rounds 1"
    rows = {name: f"{path}/samples_per_second" for name, path in rows.items()}
    return partial(run_benchmark, f"{inputs} --negatives {factor - 1} {flags}", rows, factor=factor)


COMPILED, PADDED = "--no-liger --compile --warm 8 --max-steps 20//10", "--no-liger --padded"
RETRIEVER, RERANKER = "--batch-size 128//4 --max-steps 12//4", "--reranker --batch-size 32//2 --max-steps 22//4"
TRAINED_RETRIEVERS = {
    "train-retriever, passages/s": "plain/best/drtk",
    "train-retriever, sentence-transformers, passages/s": "plain/best/sentence-transformers",
    "train-retriever, gradient caching, passages/s": "cached/best/drtk",
    "train-retriever, gradient caching, sentence-transformers, passages/s": "cached/best/sentence-transformers",
}
TRAINED_RERANKERS = {
    "train-reranker, pairs/s": "reranker/best/drtk-reranker",
    "train-reranker, CrossEncoder, pairs/s": "reranker/best/CrossEncoder",
}
GENERATED = {
    "doc2query T5-base, passages/s": "passages a second/drtk",
    "doc2query T5-base, generate at batch 256, passages/s": "passages a second/model.generate",
}
GENERATE = (
    "generate.py --model t5-base --corpus passages.jsonl --passages 2048//8 --batch 256 --max-new-tokens 12"
    " --rounds 2 --profile"  # the first round is slower
)
RERANKED = {
    "rerank BERT-base, pairs/s": "systems/0/pairs_per_second",
    "rerank BERT-base, CrossEncoder, pairs/s": "systems/1/pairs_per_second",
}
RERANK = (
    "rerank.py passages.jsonl --model bert-base --passages 8000//100 --queries 64//2 --depth 200//8"
    " --precision float16//float32 --st-batch 512"
)
RATES: dict[str, tuple[int, Step]] = {  # time limits in seconds, which add up to at most TOTAL
    "prepare": (70, prepare),
    "ceilings": (20, measure_ceilings),
    "descriptors": (30, check_descriptors),
    "rope": (20, check_rope),
    "encode": (45, make_encoding("BERT-base", "bert-base")),
    "encode-minilm": (35, make_encoding("MiniLM-L6", "minilm")),
    "simlm": (60, make_pretraining("simlm", "--no-liger")),
    "master": (40, make_pretraining("master", "--no-liger")),
    "train-retriever": (50, make_training(f"{RETRIEVER} --chunk 64//2", TRAINED_RETRIEVERS, 4)),
    "train-reranker": (40, make_training(RERANKER, TRAINED_RERANKERS, 16)),
    "doc2query": (45, partial(run_benchmark, GENERATE, GENERATED, note="5 queries of 12 tokens")),
    "search": (45, search),
    "termweight": (30, weigh_terms),
    "rerank": (30, partial(run_benchmark, RERANK, RERANKED)),
}
STEPS = RATES | {
    "simlm-liger": (60, make_pretraining("simlm", "", "liger")),
    "cross-entropy": (40, compare_cross_entropies),
    "decoding": (60, time_decoding_steps),
    "simlm-padded": (60, make_pretraining("simlm", PADDED, "padded")),
    "train-retriever-padded": (
        60,
        make_training(f"{RETRIEVER} --chunk 0 --padded", {"train-retriever, padded, passages/s": "plain/best/drtk"}, 4),
    ),
    "train-reranker-padded": (
        60,
        make_training(f"{RERANKER} --padded", {"train-reranker, padded, pairs/s": "reranker/best/drtk-reranker"}, 16),
    ),
    "tests": (120, run_gpu_tests),
    "master-liger": (60, make_pretraining("master", "", "liger")),
    "simlm-compile": (90, make_pretraining("simlm", COMPILED, "compile")),
    "master-compile": (90, make_pretraining("master", COMPILED, "compile")),
}


def run_step(name: str, limit: float, options: argparse.Namespace, work: Path) -> list[Row]:
    """Run a step in its own process group, in the work folder; return its rows, with one more if it fails."""
    call = [sys.executable, __file__, options.corpus, "--run", name, *["--toy"] * options.toy]
    log, failure = work / f"{name}.log", ""
    with open(work / f"{name}.rows", "w+", encoding="utf-8") as rows, open(log, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(call, stdout=rows, stderr=errors, cwd=work, start_new_session=True)
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


def write_report(rows: list[Row], seconds: dict[str, float], device: str, out: Path) -> None:
    """Write the table and everything measured to the files `out`.md and `out`.json."""
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    report = {"device": device, "versions": versions, "seconds": seconds, "predicted": PREDICTED, "rows": rows}
    out.with_name(f"{out.name}.md").write_text(format_table(rows, device), encoding="utf-8")
    out.with_name(f"{out.name}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


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
    options = parser.parse_args()
    if options.run:
        for row in STEPS[options.run][1](options):
            print(json.dumps(row), flush=True)
        return
    if DEVICE == "cpu" and not options.toy:
        parser.error("no CUDA device; --toy runs at a tiny size on a CPU")
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{os.cpu_count()} CPU cores"
    device += ", toy size" * options.toy
    options.corpus = options.corpus and str(Path(options.corpus).resolve())
    options.out.parent.mkdir(parents=True, exist_ok=True)
    patience = 20 if options.toy else 1  # a toy run on a busy CPU is a test, not a measurement
    start, rows, seconds, planned = time.perf_counter(), list[Row](), dict[str, float](), 0
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        for name in options.steps:
            begin = time.perf_counter()
            limit: float = patience * STEPS[name][0]
            remaining = patience * TOTAL - (begin - start)
            if name in RATES:  # also the time that earlier rates left
                planned += patience * STEPS[name][0]
                limit = max(limit, planned - (begin - start))
            if remaining < 10:
                message = f"skipped: the {TOTAL} s are over; use --steps prepare {name}"
                found = [{"step": name} | make_row(name, message)]
            else:
                found = run_step(name, min(limit, remaining), options, work)
            seconds[name] = time.perf_counter() - begin
            rows += found
            for row in found:
                print(f"{row['row']}: {row['measured']}", file=sys.stderr, flush=True)
            write_report(rows, seconds, device, options.out)
    print(format_table(rows, device))


if __name__ == "__main__":
    main()
