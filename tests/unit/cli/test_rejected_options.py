"""Rejected calls of encode and the training commands: one line, exit status 1 or 2, nothing written, before torch is imported."""

import json
import os
import subprocess
import sys

from tests.contract.run_drtk import make_environment
from tests.run_commands import write_text

TEXTS = "--corpus corpus.jsonl --queries queries.jsonl --model model -o out"
CALLS = {
    "train-retriever": f"examples.jsonl {TEXTS}",
    "train-reranker": f"examples.jsonl {TEXTS}",
    "train-reranker hlatr": "bm25.run --set kind=hlatr --vectors vectors --qrels qrels.tsv -o out",
    "pretrain": "corpus.jsonl --preset cotmae --model model -o out",
    "rerank-queries train": "labeled.jsonl --queries queries.jsonl --model model -o out",
    "train-generator": f"examples.jsonl {TEXTS}",
    "train-generator gar": "queries.jsonl --task gar-title --run bm25.run --corpus corpus.jsonl --model model -o out",
    "train-generator passages": "corpus.jsonl --model model -o out",
    "termweight": f"--method deepct --train examples.jsonl {TEXTS}",
    "encode": "corpus.jsonl --model model -o out",
}
DEV = "requires --dev"
LISTWISE = "requires --set loss=listwise"
REJECTED = {  # additional options and the error message of each command
    "train-retriever": {
        "--corpus hf:x": "hf:x: must be a local file (read repeatedly)",
        "--dev none": "none: no such folder; expected a BEIR folder",
        "--dev model": "model: has neither qrels/dev.tsv nor qrels/train.tsv",
        "--set patience=2": f"--set patience {DEV}",
        "--loss hinge": "unknown retriever loss 'hinge'; choose from infonce",
        "--loss kl --set contrastive=kl": "--set contrastive kl: is a distillation loss",
        "--set contrastive=simlm-full": "--set contrastive requires --loss kl or margin-mse",
        "--loss margin-mse --set mask_false_negatives=true": "--set mask_false_negatives requires --set contrastive_weight",
        "--set temperature_warmup=true --set temperature=1": "--set temperature_warmup requires a --set temperature below 1",
        "--set temperature_warmup=true --set warmup=0": "--set temperature_warmup requires a warm-up, but --set warmup is 0",
        "--set aux=diffcse": "--set aux diffcse requires --set aux_generator",
        "--set aux=diffcse --set aux_generator=./none": "./none: no such folder",
        "--set aux=diffcse --set aux_generator=qrels.tsv": "qrels.tsv: is a file; expected a model folder",
        "--set matryoshka=8 --set matryoshka=8": "--set matryoshka 8: must be given only once",
        "--negatives 0 --set negative_sampling=shuffle": "--set negative_sampling requires hard negatives, but --negatives is 0",
        "--device cuda:1": "--device cuda:1: use auto, cpu, cuda or mps",
        "--epochs 1 --max-steps 2": "--max-steps and --epochs cannot be combined",
        "--batch-size 1 --negatives 0": "--batch-size 1 with --negatives 0 leaves no negatives",
        "--corpus bad.jsonl": "bad.jsonl:1:",
        "--queries bad.jsonl": "bad.jsonl:1:",
        "--set pooling=median": "unknown pooling 'median'",
        "--preset simlm": "preset 'simlm' sets options of drtk pretrain",
    },
    "train-reranker": {
        "--vectors v": "--vectors cannot be combined with --set kind=crossencoder",
        "--set depth=50": "--set depth requires --set kind=hlatr",
        "--set loss=bce --set r_drop=true": f"--set r_drop {LISTWISE}",
        "--negatives 7 --set backward=16": "--set backward 16: must be at most 8",
        "--dev dev": "--dev and --dev-run must be given together",
        "--dev none --dev-run bm25.run": "none: No such file or directory",
        "--dev dev --dev-run none.run": "none.run: No such file or directory",
        "--set patience=2": f"--set patience {DEV}",
        "--set dev_measure=nDCG@10": f"--set dev_measure {DEV}",
        "--corpus hf:x": "hf:x: must be a local file (read repeatedly)",
        "--corpus bad.jsonl": "bad.jsonl:1:",
        "--queries bad.jsonl": "bad.jsonl:1:",
        "--set trainer=gradient_accumulation_steps=2": "gradient_accumulation_steps: cannot be set",
    },
    "train-reranker hlatr": {
        "--skip-corpus-check": "--skip-corpus-check cannot be combined with --set kind=hlatr",
        "--set dev_measure=nDCG@10": f"--set dev_measure {DEV}",
        "--set heads=3": "--set hidden 128: must be a multiple of --set heads 3",
        "--negatives 3": "--negatives requires --set kind=crossencoder",
        "--set dev_vectors=none": "none: No such file or directory",
    },
    "pretrain": {
        "--dev none": "none: no such folder; expected a BEIR folder",
        "--dev-sts none.tsv": "none.tsv: No such file or directory",
        "--dev dev --dev-sts qrels.tsv": "--dev and --dev-sts cannot be combined",
        "--with none.jsonl": "none.jsonl: No such file or directory",
        "--with hf:x": "hf:x: must be a local file (read repeatedly)",
        "--generator model": "--generator: preset 'cotmae' has no generator",
        "--preset diffcse-sts-bert --generator x --drop difference": "needs a generator after --set and --drop",
        "--drop nothing": "--drop nothing: unknown objective or group",
        "--set slots.nowhere.rate=1": "nowhere",
        "--set settings.lr=1": "--set settings.lr: no such setting; choose from",
    },
    "rerank-queries train": {
        "--dev none.jsonl": "none.jsonl: No such file or directory",
        "--dev title=none.jsonl": "none.jsonl: No such file or directory",
        "--dev labeled.jsonl --dev-queries none.jsonl": "none.jsonl: No such file or directory",
        "--dev a=x --dev a=y": "--dev: given twice for kind a; use KIND=NAME for one kind",
        "--dev x --dev a=y": "--dev: give one FILE, or KIND=FILE for each kind",
        "--dev ..=x": "--dev: kind '..' cannot name the folder of its model",
        "--dev a=x --set dev_kind=a": "--set dev_kind requires --dev FILE, without a kind",
        "--set patience=2": f"--set patience {DEV}",
        "--set warmup=0.1": "--set warmup 0.1: --set schedule=inverse-sqrt requires a number of steps",
    },
    "train-generator": {
        "--dev none.jsonl": "none.jsonl: No such file or directory",
        "--dev examples.jsonl --dev-share 0.1": "--dev and --dev-share cannot be combined; give one",
        "--set patience=2": "--set patience requires --dev or --dev-share",
        "--set trainer=label_smoothing_factor=0.1": "label_smoothing_factor: cannot be set",
        "--run bm25.run": "--run requires --task gar-sentence or gar-title",
        "--task gar-answer": "--queries cannot be combined with --task gar-answer",
    },
    "train-generator gar": {
        "--dev queries.jsonl": "--dev and --dev-run must be given together",
        "--queries queries.jsonl": "--queries cannot be combined with --task gar-title",
        "--dev queries.jsonl --dev-run none.run": "none.run: No such file or directory",
    },
    "train-generator passages": {
        "--corpus corpus.jsonl": "--corpus and --queries must be given together",
        "--task gar-answer --corpus corpus.jsonl": "--corpus requires --task gar-sentence or gar-title",
        "--task gar-title --corpus corpus.jsonl": "--run is required with --task gar-title",
    },
    "termweight": {
        "--method nothing": "unknown term weighting method 'nothing'",
        "--method bm25": "--train: --method bm25 has no training",
        "--collect": "",
        "--bare": "--train writes a model; omit --bare and --with",
    },
    "encode": {
        "--pooling median": "unknown pooling 'median'",
        "--device tpu": "--device tpu: use auto, cpu, cuda, cuda:1, mps or xpu",
    },
}
LATE = {  # rejected once torch is imported
    "train-retriever": {
        "--loss kl --negatives 0": "--loss kl requires --negatives above 0",
    },
    "pretrain": {"--preset mlm --set slots.passage.rat=0.4": "has a key 'rat'"},
    "rerank-queries train": {
        "--kind poem": "labeled.jsonl: contains no candidates of kind 'poem'",
        "--set max_rank=50": "--set max_rank 50: must be above the depth of the labels, 100",
    },
}
DRIVER = """
import io, json, sys
from drtk.cli import main
for words in json.load(sys.stdin):
    sys.argv, sys.stderr, status = ["drtk", *words], io.StringIO(), None
    try:
        main.run()
    except SystemExit as done:
        status = done.code
    message, sys.stderr = sys.stderr.getvalue(), sys.__stderr__
    print(json.dumps([status, message, [name for name in ("torch", "transformers") if name in sys.modules]]))
"""


def faulty_calls() -> list[tuple[str, str, str]]:
    """Return (command, arguments, error message) of the calls that are rejected before torch is imported."""
    results = []
    for name, call in CALLS.items():
        words = call.split()
        for at, word in enumerate(words):
            if word.endswith((".jsonl", ".run", ".tsv")) or word == "vectors":
                missing = [*words[:at], "none.file", *words[at + 1 :]]
                results.append((name, " ".join(missing), "none.file: No such file or directory"))
        if "--model" in words:
            results.append((name, call.replace("--model model", "--model ./none"), "./none: no such folder"))
        results.append((name, call.replace("-o out", "-o done"), "done: exists already; --force replaces it"))
        results += rejected_calls(REJECTED, name)
        if name == "encode":
            continue
        results.append(
            (name, f"{call} --set trainer=max_steps=3", "--set trainer max_steps: is set by drtk; use --max-steps")
        )
        results.append((name, f"{call} --device tpu", "--device tpu: use auto, cpu, cuda, cuda:1, mps or xpu"))
        if name in ("train-retriever", "train-reranker"):
            message = "bm25.run: looks like hits of a TREC run; expected training examples"
            results.append((name, call.replace("examples.jsonl", "bm25.run"), message))
            results.append((name, call.replace("examples.jsonl", "torn.jsonl"), "torn.jsonl:1: not a training example"))
        if name != "termweight":
            preset = call.replace("--preset cotmae", "") + " --preset nothing"
            results.append((name, preset, "unknown preset 'nothing'"))
            bare = preset.replace("nothing", f"{command_of(name).replace(' ', '-')}.toml")
            message = "there is no objective; add an" if name == "pretrain" else "unknown key 'batch'; put settings"
            results.append((name, bare, message))
    return results


def rejected_calls(table: dict[str, dict[str, str]], name: str) -> list[tuple[str, str, str]]:
    """Return the calls of a table; an option given again replaces the one before, except --preset."""
    calls = []
    for more, message in table[name].items():
        call = CALLS[name].replace("--preset cotmae", "") if "--preset" in more else CALLS[name]
        calls.append((name, f"{call} {more}", message))
    return calls


def command_of(name: str) -> str:
    return name if name == "rerank-queries train" else name.split()[0]


FILES = {
    "corpus.jsonl": '{"_id": "d1", "title": "", "text": "one"}\n',
    "queries.jsonl": '{"_id": "q1", "text": "which?", "answers": ["one"]}\n',
    "examples.jsonl": '{"query_id": "q1", "positives": ["d1"], "negatives": []}\n',
    "labeled.jsonl": '{"_id": "e1", "query_id": "q1", "kind": "title", "text": "one", "rank": 1, "depth": 100}\n',
    "bad.jsonl": "{}\n",
    "torn.jsonl": '{"query_id": "q1"}\n',
    "bm25.run": "q1 Q0 d1 1 1.0 t\n",
    "qrels.tsv": "q1\td1\t1\n",
}


def test_calls_are_rejected_in_one_line_before_torch_is_imported(tmp_path):
    for name, content in FILES.items():
        write_text(tmp_path / name, content)
    for name in ("train-retriever", "train-reranker", "pretrain", "rerank-queries train", "train-generator"):
        write_text(tmp_path / f"{name.replace(' ', '-')}.toml", f'command = "{name}"\nbatch = 8\n')
    for name in ("model", "vectors", "done", "dev/qrels"):
        (tmp_path / name).mkdir(parents=True)
    write_text(tmp_path / "dev" / "qrels" / "dev.tsv", "q1\td1\t1\n")
    write_text(tmp_path / "done" / "meta.json", '{"kind": "model"}')
    present = sorted(os.listdir(tmp_path))
    early, late = faulty_calls(), [call for name in LATE for call in rejected_calls(LATE, name)]
    given = json.dumps([[*command_of(name).split(), *call.split()] for name, call, _ in early + late])
    driver = [sys.executable, "-c", DRIVER]
    done = subprocess.run(driver, input=given, capture_output=True, text=True, cwd=tmp_path, env=make_environment())
    assert (done.returncode, done.stderr) == (0, "")
    lines = list(map(json.loads, done.stdout.splitlines()))
    for number, ((name, call, message), (status, stderr, heavy)) in enumerate(zip(early + late, lines, strict=True)):
        assert message in stderr, (name, call)
        assert status in (1, 2), (name, call)
        assert stderr.count("\n") == 1, (name, call, stderr)
        assert heavy == [] or number >= len(early), (name, call)
    assert sorted(os.listdir(tmp_path)) == present
