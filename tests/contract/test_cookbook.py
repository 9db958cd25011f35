"""The scripts and pages of docs/cookbook run with small data and models."""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from drtk.data.checks import find_origins
from drtk.runtime.streams import digest_file
from tests.contract.run_drtk import run_shell
from tests.expansion_collection import read_rows, write_rows

COOKBOOK = Path(__file__).resolve().parents[2] / "docs" / "cookbook"
STEPS = "--max-steps 2 --batch-size 4 --set warmup=0 --set log_steps=1"
LENGTHS = "--query-length 12 --passage-length 24"
SMALL = {
    "BM25": "bm25s",
    "INDEX": "exact",
    "DEPTH": "10",
    "K": "20",
    "RERANK": "5",
    "BASELINES": "start pretrained",
    "MINE": "--set min_negatives=0",
    "SCORED": "--set min_negatives=0 --negatives 3",
    "SCORED_QUERIES": "8",
    "UNION": "yes",
    "MEASURES": "RR@10 R@20",
    "WARM": f"{STEPS} --max-length 24",
    "PRETRAIN": f"{STEPS} --max-length 24 --set held_out=4 --set objective.decoder.decoder.layers=1",
    "R1": f"{STEPS} {LENGTHS} --negatives 1",
    "R2": f"{STEPS} {LENGTHS} --negatives 1",
    "RERANKER": f"{STEPS} --max-length 40 --negatives 2",
    "DISTILL": f"{STEPS} {LENGTHS} --negatives 2",
}


def run_simlm(workplace: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run simlm.sh with ten training queries; the others are for evaluation."""
    header, *judged = (workplace / "qrels.tsv").read_text().splitlines(keepends=True)
    for name, part in {"some.tsv": judged[:10], "others.tsv": judged[10:]}.items():
        if not (workplace / name).exists():
            (workplace / name).write_text(header + "".join(part))
    inputs = ("corpus.jsonl", "queries.jsonl", "some.tsv", "others.tsv", "model", "out")
    done = run_shell(str(COOKBOOK / "simlm.sh"), *inputs, folder=workplace, **SMALL | settings)
    assert done.returncode == 0, done.stderr
    return done


def list_outputs(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the outputs that a run wrote, without those that were up to date."""
    return [line.rpartition("/")[2] for line in done.stderr.splitlines() if " -> " in line]


def read_settings(folder: Path) -> dict[str, str]:
    return json.loads((folder / "meta.json").read_text())["settings"]


@pytest.mark.slow
def test_simlm_runs_and_skips_finished_stages(workplace, monkeypatch):
    monkeypatch.chdir(workplace)  # manifests have the relative paths of the script
    first = run_simlm(workplace)
    out = workplace / "out"
    systems = ("bm25", "start", "pretrained", "retriever1", "retriever2", "distilled", "reranked")
    assert [line.split()[0] for line in first.stdout.splitlines() if line.split()[:1] and line.split()[0] in systems]
    query_ids = {name: {line.split()[0] for line in (out / f"{name}.run").read_text().splitlines()} for name in systems}
    assert set(map(frozenset, query_ids.values())) == {frozenset(f"q{number}" for number in range(10, 20))}
    # Each stage starts from the pre-trained encoder, not from the retriever before it.
    settings = [read_settings(out / name) for name in ("retriever1", "retriever2", "reranker", "distilled")]
    assert {each["model"] for each in settings} == {"out/pretrained"}
    # All but the first are trained on both files, and all derived examples record their corpus.
    unions = {"union": ("bm25", "mined1"), "union2": ("bm25", "mined2"), "teacher-union": ("teacher-bm25", "teacher")}
    for name, parts in unions.items():
        assert (out / f"{name}.jsonl").read_bytes() == b"".join((out / f"{part}.jsonl").read_bytes() for part in parts)
    examples = {each["examples"] for each in settings}
    assert examples == {f"out/{name}.jsonl" for name in ("bm25", "union", "union2", "scored")}
    for name in examples:
        origins = find_origins(name)
        assert {origin.digest for origin in origins} == {digest_file(workplace / "corpus.jsonl")}, name
    scored = read_rows(out / "scored.jsonl")
    teacher = read_rows(out / "teacher-union.jsonl")
    assert len(teacher) == 20  # ten queries twice; the 8 at 2, 4, 7, 9, 12, 14, 17, 19 are sampled
    chosen = [teacher[at] for at in (2, 4, 7, 9, 12, 14, 17, 19)]
    for row, other in zip(scored, chosen, strict=True):
        assert (row["query_id"], row["negatives"]) == (other["query_id"], other["negatives"])
    assert all(len(row["scores"]["negatives"]) == len(row["negatives"]) <= 3 for row in scored)

    again = run_simlm(workplace)
    assert list_outputs(again) == []
    assert again.stdout == first.stdout

    changed = run_simlm(workplace, R2=SMALL["R2"] + " --learning-rate 1e-3")
    assert "out/retriever1 is up to date" in changed.stderr
    assert {"retriever2", "reranker", "distilled"} <= set(list_outputs(changed))
    assert read_settings(out / "retriever2")["learning_rate"] == 1e-3


RECORDER = """#!/bin/sh
# Replaces drtk: records the call and creates its output.
echo "$*" >> "$CALLS"
for word in "$@"; do
  if [ "${before:-}" = -o ]; then : > "$word"; fi
  before=$word
done
"""


def record_calls(folder: Path, **settings: str) -> dict[str, list[list[str]]]:
    """Return the drtk calls of simlm.sh by command."""
    (folder / "drtk").write_text(RECORDER)
    (folder / "drtk").chmod(0o755)
    inputs = ("corpus.jsonl", "queries.jsonl", "train.tsv", "test.tsv")
    for name in inputs:
        (folder / name).touch()
    place = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "CALLS": str(folder / "calls")}
    script = ["sh", COOKBOOK / "simlm.sh", *inputs, "MODEL", "out"]
    subprocess.run(script, cwd=folder, env=os.environ | place | settings, check=True)
    calls: dict[str, list[list[str]]] = {}
    for line in (folder / "calls").read_text().splitlines():
        words = shlex.split(line)
        calls.setdefault(words[0], []).append(words[1:])
    return calls


def test_simlm_reports_missing_inputs_first(folder):
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv"):
        Path(name).touch()
    texts = "corpus.jsonl queries.jsonl"
    for words, message in {
        texts: "expected CORPUS QUERIES QRELS TEST_QRELS MODEL [OUT], got 2 arguments",
        f"{texts} qrels.tsv nosuch.tsv m": "nosuch.tsv: No such file or directory",
        f"{texts} qrels.tsv qrels.tsv ./m": "./m: no such model",
    }.items():
        script = ["sh", COOKBOOK / "simlm.sh", *words.split()]
        done = subprocess.run(script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, f"simlm.sh: {message}\n")
    assert not Path("runs").exists()


def get_option(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words else None


@pytest.mark.slow
def test_seed_title_and_judgments_of_documents_reach_all_stages(tmp_path):
    calls = record_calls(tmp_path, BY="source", SEED="3", R2="--epochs 2", TEACHER="TEACHER")
    assert all("title=segment" in words for words in calls["pretrain"])  # the title format of the fine-tuning presets
    assert {get_option(words, "--model") for words in calls["train-reranker"]} == {"TEACHER"}
    assert {get_option(words, "--by") for words in calls["mine-negatives"] + calls["compare"]} == {"source"}
    assert [get_option(words, "--epochs") for words in calls["train-retriever"]] == [None, "2", None]
    for name in ("pretrain", "mine-negatives", "train-retriever", "train-reranker"):
        assert {get_option(words, "--seed") for words in calls[name]} == {"3"}, name


@pytest.mark.slow
def test_beir_evaluates_an_encoder_on_every_collection(workplace):
    names = ("one", "forums/first", "forums/second")
    for place in (workplace / "beir" / name for name in names):
        (place / "qrels").mkdir(parents=True)
        (place / "corpus.jsonl.gz").write_bytes(gzip.compress((workplace / "corpus.jsonl").read_bytes()))
        shutil.copy(workplace / "queries.jsonl", place)
        shutil.copy(workplace / "qrels.tsv", place / "qrels" / "test.tsv")
    settings = {"BM25": "bm25s", "INDEX": "exact", "K": "20", "MEASURES": "RR@10"}

    def beir(output: str, *, fails: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
        model = more.pop("MODEL", "model")
        done = run_shell(str(COOKBOOK / "beir.sh"), "beir", model, output, folder=workplace, **settings | more)
        assert (done.returncode == 1) == fails, done.stderr
        return done

    def read_table(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
        return {row[1]: row[2:] for row in map(str.split, done.stdout.splitlines()) if row}

    done = beir("out")
    out = workplace / "out"
    for system in ("bm25", "dense"):
        made_runs = sorted(path.name for path in (out / "runs" / system).glob("*.run"))
        assert made_runs == ["forums-first.run", "forums-second.run", "one.run"]
    table = read_table(done)
    assert table.keys() == {"collection", *names, "forums", "average"}
    assert table["one"] == table["forums"]  # the mean of two equal collections
    assert done.stdout == (out / "figures.txt").read_text()
    again = beir("out")
    assert [name for name in list_outputs(again) if name != "figures.txt"] == []
    assert again.stdout == done.stdout
    assert "out: has results of model; choose another OUT for other" in beir("out", fails=True, MODEL="other").stderr

    few = beir("few", SETS="one/", BM25="none")
    assert read_table(few).keys() == {"collection", "one", "average"}
    more = beir("few", SETS="forums/first")  # no BM25 run for `one`, so BM25 is not in the table
    assert [line.split()[0] for line in more.stdout.splitlines()] == ["run", *["dense"] * 4]
    (workplace / "beir" / "one" / "corpus.jsonl.gz").rename(workplace / "beir" / "one" / "corpus.jsonl.gz.bak")
    assert "beir/one: has no corpus.jsonl" in beir("few", fails=True, SETS="one").stderr


def test_negatives_of_the_first_retriever_can_come_from_a_file(tmp_path):
    triples = tmp_path / "triples.jsonl"
    triples.touch()
    settings = {"NEGATIVES": str(triples), "UNION": "yes", "MINE": "--depth 7", "SCORED": "--negatives 3"}
    calls = record_calls(tmp_path, **settings)["mine-negatives"]
    sources = [words[0].rpartition("/")[2] for words in calls]
    assert sources == ["triples.jsonl", "retriever1.index", *["retriever2.index"] * 2, "triples.jsonl"]
    assert {[number for option, number in pairwise(words) if option == "--depth"][-1] for words in calls} == {"7"}


@pytest.mark.parametrize(
    ("recipe", "title"),
    [
        ("docs/cookbook/beir.md", "sep"),
        ("docs/methods/rom.md", "sep"),
        ("bin/quickstart", "join"),
    ],
)
def test_pre_training_and_fine_tuning_of_a_script_use_the_same_title_format(recipe, title):
    text = (COOKBOOK.parents[1] / recipe).read_text(encoding="utf-8")
    commands = re.findall(r"drtk pretrain (?:\S+ )*?--(?:batch-size|preset) .*", text)
    assert [re.findall(r"--set \"?title=([^\s\"`]+)", each) for each in commands] == [[title]]


@pytest.mark.slow
def test_mine_from_official_triples_and_candidates(workplace):
    page = (COOKBOOK / "msmarco.md").read_text(encoding="utf-8").splitlines()
    commands = [line for line in page if re.search(r"--as examples|top1000\.train|candidates\.run", line)]
    triples, *candidates = [line for line in commands if line[0] != "#"]
    assert len(candidates) == 2
    lines = "".join(f"{query}\t10{query}0\t{id}\r\n" for query in (1, 2) for id in range(1021, 1060))
    (workplace / "qidpidtriples.train.full.2.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    lists = "".join(f"{query}\t{id}\tquery {query}\tpassage {id}\n" for id in range(1010, 1060) for query in (1, 2))
    (workplace / "top1000.train.txt").write_text(lists)
    with tarfile.open(workplace / "top1000.train.tar.gz", "w:gz") as archive:
        archive.add(workplace / "top1000.train.txt", "top1000.train.txt")
    for name, ids in {"c.jsonl": range(1010, 1060), "q.jsonl": (1, 2)}.items():
        write_rows(workplace / name, [{"_id": str(id), "text": f"text {id}"} for id in ids])
    (workplace / "train.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1010\t1\n2\t1020\t1\n2\t1021\t1\n")
    (workplace / "msmarco").mkdir()
    inputs = "--queries q.jsonl --qrels train.tsv --corpus c.jsonl --by passage --set min_negatives=0 --depth 1000"
    names = ("triples.jsonl.zst", "top1000.run")
    mining = [f"drtk mine-negatives msmarco/{name} {inputs} -o {name}.mined" for name in names]
    (workplace / "mine.sh").write_text("set -e\n" + "\n".join([triples, *candidates, *mining]) + "\n")
    done = run_shell(str(workplace / "mine.sh"), folder=workplace)
    assert done.returncode == 0, done.stderr
    expected = {"triples.jsonl.zst": ({*range(1021, 1060)}, {*range(1022, 1060)})}
    expected["top1000.run"] = ({*range(1011, 1060)}, {*range(1010, 1060)} - {1020, 1021})
    for name, (one, two) in expected.items():
        examples = read_rows(workplace / f"{name}.mined")
        positives = {row["query_id"]: sorted(row["positives"]) for row in examples}
        assert positives == {"1": ["1010"], "2": ["1020", "1021"]}
        assert [{int(id) for id in row["negatives"]} for row in examples] == [one, two]

    archive_bytes = (workplace / "top1000.train.tar.gz").read_bytes()
    (workplace / "top1000.train.tar.gz").write_bytes(archive_bytes[:-20])  # a truncated download
    (workplace / "msmarco" / "top1000.run").unlink()
    (workplace / "mine.sh").write_text("\n".join(candidates) + "\n")
    assert run_shell(str(workplace / "mine.sh"), folder=workplace).returncode == 1
    assert not (workplace / "msmarco" / "top1000.run").exists()


@pytest.mark.slow
def test_train_on_published_hard_negatives(workplace):
    # docs/cookbook/beir.md: the hard negatives of sentence-transformers, for query-as-context's BEIR models
    corpus = [row["_id"] for row in read_rows(workplace / "corpus.jsonl")]
    rows = []
    for line in (workplace / "qrels.tsv").read_text().splitlines()[1:]:
        query, positive, _ = line.split("\t")
        wrong = [id for id in corpus if id != positive][:14]
        # limit 9 - 3 = 6: every other of each system's seven negatives is dropped
        negatives = [{"pid": id, "ce-score": 6.5 if at % 2 else 1.0} for at, id in enumerate(wrong)]
        systems = {"bm25": negatives[:7], "tas-b": negatives[7:]}
        rows.append({"qid": query, "pos": [{"pid": positive, "ce-score": 9.0}], "neg": systems})
    (workplace / "hard.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    script = workplace / "mine.sh"
    script.write_text(
        "set -e\ndrtk mine-negatives hard.jsonl.gz --policy sbert --corpus corpus.jsonl --report sbert.html -o sbert.jsonl\n"
        "drtk train-retriever sbert.jsonl --corpus corpus.jsonl --queries queries.jsonl --model model --preset qac-r1 --set negative_sampling=shuffle -o zero-shot "
        f"{STEPS} {LENGTHS} --negatives 3\n"
    )
    done = run_shell(str(script), folder=workplace)
    assert done.returncode == 0, done.stderr
    examples = read_rows(workplace / "sbert.jsonl")
    assert len(examples) == len(rows)
    for example, row in zip(examples, rows, strict=True):
        kept = [each["pid"] for system in row["neg"].values() for each in system if each["ce-score"] == 1.0]
        assert example["negatives"] == kept
    assert read_settings(workplace / "zero-shot")["similarity"] == "dot"
