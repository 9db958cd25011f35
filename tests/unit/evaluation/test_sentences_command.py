"""drtk eval-sentences: hand-computed values, agreement with sentence-transformers on STS-B, and rejected input."""

import json
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from drtk.errors import DrtkError, RecordError
from drtk.evaluation import transfer
from drtk.evaluation.sentence_data import SPLITS, TRANSFER, read_pairs
from drtk.evaluation.sentences import TaskResult, format_sentence_results
from drtk.runtime.inputs import InputTracker
from tests.expansion_collection import write_rows
from tests.run_commands import Capture, run_command, write_text
from tests.shared_data import find_shared_data
from tests.tiny_models import find_minilm

HEADER = "sentence1\tsentence2\tscore\n"


def write_pairs(folder: Path, path: str, pairs: list[tuple[float, float]], name: str) -> list[dict[str, Any]]:
    """Write a table of pairs (cosine, rating); return vectors that have these cosines."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{name} {n} first\t{name} {n} second\t{rating}\n" for n, (_, rating) in enumerate(pairs)]
    write_text(folder / path, HEADER + "".join(rows))
    first = [{"text": f"{name} {n} first", "vector": [1, 0]} for n in range(len(pairs))]
    vectors = [[cosine, (1 - cosine**2) ** 0.5] for cosine, _ in pairs]
    return first + [{"text": f"{name} {n} second", "vector": vector} for n, vector in enumerate(vectors)]


def eval_as_json(capfd: Capture, *arguments: str) -> dict[str, dict[str, Any]]:
    printed = run_command(capfd, "eval-sentences", "-q", *arguments, "--format", "jsonl")
    return {row["task"]: row for row in map(json.loads, printed.splitlines())}


def test_eval_sentences_computes_all_and_mean_over_subsets(folder: Path, capfd: Capture) -> None:
    # subset A .9 .5 .1 rated 5 3 1, subset B .95 .85 .80 rated 2 1 0: each 1, their mean 1, all together .347863
    vectors = write_pairs(folder, "data/STS12/A.tsv", [(0.9, 5), (0.5, 3), (0.1, 1)], "a")
    vectors += write_pairs(folder, "data/STS12/B.tsv", [(0.95, 2), (0.85, 1), (0.80, 0)], "b")
    write_rows(folder / "v.jsonl", vectors)
    table = folder / "data" / "STS12" / "A.tsv"
    write_text(table, table.read_text() + "a 0 first\ta 1 first\t\n")  # a pair nobody rated
    result = eval_as_json(capfd, "v.jsonl", "--data", "data")["STS12"]
    assert (result["pairs"], result["unrated"]) == (6, 1)
    assert result["values"]["STS12"] == pytest.approx(0.347863, abs=2e-6)
    assert result["mean of subsets"] == pytest.approx(1)
    assert result["subsets"] == {"A": pytest.approx(1), "B": pytest.approx(1)}
    result = eval_as_json(capfd, "v.jsonl", "--data", "data", "--set", "aggregation=mean")["STS12"]
    assert result["values"]["STS12"] == pytest.approx(1)
    table = run_command(capfd, "eval-sentences", "-q", "mine=v.jsonl", "--data", "data").splitlines()
    assert table == ["system   STS12", "mine    0.3479"]


def test_eval_sentences_computes_alignment_and_uniformity(folder: Path, capfd: Capture) -> None:
    # the pair rated 5 is (1, 0) (.8, .6): alignment .4. The other pair is (0, 1) twice: squared distances .4, then 2 2 and
    # .8 .8, and 0 between the two copies
    (folder / "data" / "STS-B").mkdir(parents=True)
    write_text(folder / "data" / "STS-B" / "test.tsv", HEADER + "one\ttwo\t5\nthree\tthree\t4\n")
    texts = {"one": [1, 0], "two": [0.8, 0.6], "three": [0, 1]}
    write_rows(folder / "v.jsonl", [{"text": text, "vector": vector} for text, vector in texts.items()])
    result = eval_as_json(capfd, "v.jsonl", "--data", "data", "--tasks", "alignment uniformity retrieval")
    assert result["alignment"]["values"]["alignment"] == pytest.approx(0.4)
    assert result["alignment"]["pairs"] == 1
    expected = log((exp(-0.8) + 2 * exp(-4) + 2 * exp(-1.6) + 1) / 6)
    assert result["uniformity"]["values"]["uniformity"] == pytest.approx(expected)
    assert result["uniformity"]["sentences"] == 4
    # from "one" the partner "two" (.8) is first; from "two", "one" (.8) comes before "three" (.6)
    assert result["retrieval"]["values"] == {"R@1": 1.0, "R@5": 1.0, "R@10": 1.0}
    assert result["retrieval"]["queries"] == 2


def test_averages_need_all_seven_tasks(folder: Path, capfd: Capture) -> None:
    # one task after the other in perfect order (1), the last in the opposite one (-1): (6 - 1)/7
    vectors = []
    names = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
    for name in names:
        cosines = [0.9, 0.5, 0.1] if name == "SICK-R" else [0.1, 0.5, 0.9]
        vectors += write_pairs(folder, f"data/{name}/test.tsv", list(zip(cosines, [0, 3, 5], strict=True)), name)
    write_rows(folder / "v.jsonl", vectors)
    call = ["v.jsonl", "--data", "data", "--tasks"]
    result = eval_as_json(capfd, *call, " ".join(names))
    assert result["STS average"]["values"]["STS average"] == pytest.approx(5 / 7)
    table = run_command(capfd, "eval-sentences", "-q", *call, " ".join(names))
    assert table.splitlines()[0].split() == ["system", *names, "STS", "average"]
    assert "STS average" not in eval_as_json(capfd, *call, " ".join(names[:6]))


def test_best_system_is_marked_also_where_lower_is_better(folder: Path, capfd: Capture) -> None:
    for name, pairs in (("good", [(0.95, 5), (0.5, 3), (0.1, 1)]), ("bad", [(0.2, 5), (0.5, 3), (0.9, 1)])):
        write_rows(folder / f"{name}.jsonl", write_pairs(folder, "data/STS-B/test.tsv", pairs, "s"))
    arguments = ["good.jsonl", "bad.jsonl", "--data", "data", "--tasks", "STS-B alignment"]
    printed = [line.split() for line in run_command(capfd, "eval-sentences", "-q", *arguments).splitlines()]
    assert printed == [["system", "STS-B", "alignment"], ["good", "1.0000*", "0.1000*"], ["bad", "-1.0000", "1.6000"]]


def test_eval_sentences_evaluates_transfer_tasks(folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    # the vectors encode the labels, so every accuracy is 1
    for name, value in (("FOLDS", 2), ("BATCH", 4), ("PENALTIES", (1e-5,))):  # steps enough for so few examples
        monkeypatch.setattr(transfer, name, value)
    vectors: list[dict[str, Any]] = []
    for task in TRANSFER:
        (folder / "data" / task).mkdir(parents=True)
        is_pairs = task == "MRPC"
        for split in SPLITS[task]:
            lines = ["sentence1\tsentence2\tlabel\n" if is_pairs else "label\ttext\n"]
            for n in range(40):
                first, second, label = f"{task} {split} {n}", f"{task} {split} {n} again", n % 2
                lines.append(f"{first}\t{second}\t{label}\n" if is_pairs else f"{label}\t{first}\n")
                vectors.append({"text": first, "vector": [9.0, 0.5] if is_pairs or label else [-9.0, 0.5]})
                vectors.append({"text": second, "vector": [9.0, 0.5] if label else [-9.0, 0.5]})
            write_text(folder / "data" / task / f"{split}.tsv", "".join(lines))
    write_rows(folder / "v.jsonl", vectors)
    result = eval_as_json(capfd, "v.jsonl", "--data", "data", "--seed", "1111")  # starts near the optimum
    assert {name: result[name]["values"][name] for name in TRANSFER} == dict.fromkeys(TRANSFER, 1.0)
    assert result["transfer average"]["values"]["transfer average"] == 1.0
    assert result["MRPC"]["f1"] == 1.0
    assert result["SST2"]["examples"] == {"train": 40, "dev": 40, "test": 40}


def test_rated_pairs_can_be_written_with_their_cosines(folder: Path, capfd: Capture) -> None:
    write_rows(folder / "v.jsonl", write_pairs(folder, "data/STS-B/test.tsv", [(0.9, 5), (0.5, 3)], "s"))
    call = [*"eval-sentences -q v.jsonl --data data --pairs-out p.jsonl --tasks".split(), "STS-B uniformity"]
    run_command(capfd, *call)
    first, second = map(json.loads, (folder / "p.jsonl").read_text().splitlines())
    assert (first["task"], second["task"]) == ("STS-B", "STS-B")
    assert first == {
        "system": "v", "task": "STS-B", "subset": "test", "sentence1": "s 0 first", "sentence2": "s 0 second",
        "score": 5.0, "cosine": pytest.approx(0.9),
    }  # fmt: skip
    with pytest.raises(DrtkError, match=r"p\.jsonl: exists already"):
        run_command(capfd, *call)


def test_average_of_transfer_dev_accuracies() -> None:
    # tested .9 each; chosen by .1, .2, … .7: 2.8 / 7 = .4
    result = [TaskResult(name, {name: 0.9}, {"dev": at / 10}) for at, name in enumerate(TRANSFER, start=1)]
    header, row = format_sentence_results({"s": result}, "csv", digits=4)
    assert header == "system,MR,CR,SUBJ,MPQA,SST2,TREC,MRPC,transfer average,transfer dev average"
    assert [float(value) for value in row.split(",")[-2:]] == pytest.approx([0.9, 0.4])
    assert "transfer dev average" not in "".join(format_sentence_results({"s": result[1:]}, "csv", digits=4))


def test_stsb_of_minilm_equals_sentence_transformers(
    folder: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, model = find_shared_data("stsb"), find_minilm()
    # the counts of the method page: 1,379 pairs of 2,758 sentences, 97 pairs rated 5
    pairs = read_pairs(str(data / "test.tsv"), InputTracker()).pairs
    assert (len(pairs), sum(pair.score == 5 for pair in pairs)) == (1379, 97)
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    (folder / "data" / "STS-B").mkdir(parents=True)
    lines = (data / "test.tsv").read_text(encoding="utf-8").splitlines(keepends=True)[:41]
    write_text(folder / "data" / "STS-B" / "test.tsv", "".join(lines))
    result = eval_as_json(capfd, model, "--data", "data")
    first, second, ratings = zip(*pairs[:40], strict=True)
    theirs = EmbeddingSimilarityEvaluator(first, second, ratings)(SentenceTransformer(model, device="cpu"))
    assert result["STS-B"]["spearman"] == pytest.approx(theirs["spearman_cosine"], abs=1e-4)
    assert result["STS-B"]["pearson"] == pytest.approx(theirs["pearson_cosine"], abs=1e-4)
    assert result["uniformity"]["sentences"] == result["retrieval"]["sentences"] == 80


def test_invalid_files_and_tasks_are_rejected(folder: Path, capfd: Capture) -> None:
    (folder / "data" / "STS-B").mkdir(parents=True)
    tables: list[tuple[str, type[DrtkError], str]] = [
        (HEADER + "a\tb\thigh\n", RecordError, r"test\.tsv:2: score 'high' is not a number"),
        (HEADER + "a\tb\tnan\n", RecordError, r"test\.tsv:2: score 'nan' is not a number"),
        (HEADER + "a\tb\n", RecordError, r"test\.tsv:2: expected 3 columns, got 2"),
        (HEADER + "a\tb\0\t1\n", RecordError, r"test\.tsv:2: contains a NUL byte"),
        ("sentence1\tsentence2\na\tb\n", RecordError, r"test\.tsv:1: the header lacks 'score'"),
        (HEADER + "a\tb\t\n", DrtkError, "no rated pair found"),
        (HEADER + "a\tb\t1\n", DrtkError, "a correlation requires at least two pairs, got 1"),
        (HEADER + "a\tb\t1\nb\tc\t1\n", DrtkError, "all ratings are equal"),
        (HEADER + "a\tb\t1\na\tz\t2\n", DrtkError, "has no vector for the sentence 'z'"),
    ]
    vectors = {"a": [1, 0], "b": [0, 1], "c": [1, 1]}
    write_rows(folder / "v.jsonl", [{"text": text, "vector": vector} for text, vector in vectors.items()])
    call = ["eval-sentences", "v.jsonl", "--data", "data"]
    for content, fault, problem in tables:
        write_text(folder / "data" / "STS-B" / "test.tsv", content)
        with pytest.raises(fault, match=problem):
            run_command(capfd, *call, "--tasks", "STS-B")
    for options, problem in (
        (["--tasks", "mr"], "has no folder for the task MR"),
        (["--tasks", "STS99"], "'STS99' is not a task; choose from STS12"),
        (["--split", "dev"], r"dev\.tsv: No such file or directory; available splits: test"),
        (["--data", "data/STS-B"], "contains no task"),
        (["--data", "nowhere"], "nowhere: No such file"),
    ):
        with pytest.raises(DrtkError, match=problem):
            run_command(capfd, *call, *options)
    a, b = {"text": "a", "vector": [1, 0]}, {"text": "b", "vector": [1]}
    for rows, problem in (
        ([a, b], "2: expected a vector of 2 numbers, got 1"),
        ([{"text": "a"}], "1: 'vector' is missing"),
    ):
        write_rows(folder / "v.jsonl", rows)
        with pytest.raises(RecordError, match=rf"v\.jsonl:{problem}"):
            run_command(capfd, *call)
