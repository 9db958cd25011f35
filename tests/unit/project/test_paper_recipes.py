"""docs/cookbook/papers: every expected row is a row of its recipe; results are summarized and compared with expected.toml."""

import gzip
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import click
import pytest

from drtk.cli.main import COMMANDS, app
from drtk.errors import DrtkError, UsageError
from tests.expansion_collection import write_rows
from tests.run_commands import run_command, run_rows

PAPERS = Path(__file__).resolve().parents[3] / "docs" / "cookbook" / "papers"
PRESETS = PAPERS.parents[2] / "drtk" / "presets"
RECIPES = sorted(path.stem for path in PAPERS.glob("*.sh") if path.stem != "common")
RECORDER = """#!/bin/sh
# Replaces drtk and python: records the call and creates its output, a folder where the recipes remove one.
(IFS='	'; echo "$*") >> "$CALLS"
for word in "$@"; do
  case ${before:-}.$word in -o.*vectors | -o.*index) mkdir -p "$word" ;; -o.*) [ -d "$word" ] || { : > "$word"; : > "$word.meta.json"; } ;; esac
  before=$word
done
"""
EXPECTED: dict[str, Any] = {
    "measure": {"mini": "RR@10"},
    "tolerance": {"mini": 0.02},
    "rows": {"new": {"mini": 0.4, "full": 0.9}, "other": {"full": 0.5}},
    "checks": {"mini": ["new > old"], "full": ["old > new"]},
}


def load_script(name: str, folder: Path = PAPERS) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_result(path: Path, *, mean: float = 0.41, significant: bool = True, baseline: str = "old") -> Path:
    system = "new" if baseline == "old" else "old"
    records: list[dict[str, Any]] = [
        {"kind": "system", "system": "new", "measure": "RR@10", "mean": mean, "sd": 0.01, "runs": 3},
        {"kind": "system", "system": "new", "measure": "R@50", "mean": 0.0, "sd": 0.0, "runs": 3},
        {
            "kind": "contrast", "baseline": baseline, "system": system, "measure": "RR@10", "t_p_corrected": 0.01,
            "difference": 0.05 if baseline == "old" else -0.05, "significant": significant,
        },
    ]  # fmt: skip
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_values_outside_the_tolerance_and_wrong_or_uncertain_orders_fail(tmp_path, capsys):
    verify, file = load_script("verify").verify, tmp_path / "a.jsonl"
    for change in ({}, {"baseline": "new"}):
        assert verify(write_result(file, **change), EXPECTED, "mini")
    for change in ({"mean": 0.43}, {"mean": 0.37}, {"significant": False}):
        assert not verify(write_result(file, **change), EXPECTED, "mini")
    for tolerance, holds in {0.04: True, 0.02: False}.items():
        rows = {"rows": {"new": {"mini": 0.4, "tolerance": {"mini": tolerance}}}}
        assert verify(write_result(file, mean=0.43), EXPECTED | rows, "mini") is holds
    untested = {"rows": EXPECTED["rows"] | {"old": {}}, "checks": {"mini": ["new > new"]}}
    for change in ({"rows": {"other": {"mini": 0.4}}}, {"checks": {"mini": ["old > new"]}}, untested):
        assert not verify(write_result(file), EXPECTED | change, "mini")
    capsys.readouterr()
    more = {"rows": EXPECTED["rows"] | {"other": {"mini": 0.4}}, "checks": {"mini": ["other > new"]}}
    assert verify(write_result(file), EXPECTED | more, "mini")  # rows that were not run
    assert capsys.readouterr().out.splitlines()[2:] == ["  --   other: not run; expected 0.4000"]


def summarize(folder: Path, monkeypatch: pytest.MonkeyPatch, baseline: str, *files: Path) -> list[dict[str, Any]]:
    result = folder / "result.jsonl"
    monkeypatch.setattr("sys.argv", ["summarize.py", str(result), baseline, *map(str, files)])
    load_script("summarize").main()
    return [json.loads(line) for line in result.read_text().splitlines()]


def test_values_of_systems_are_summarized_and_tested_over_seeds(tmp_path, monkeypatch):
    values = {"old": [1.0, 2.0, 3.0], "new": [2.0, 3.0, 4.0], "start": [5.0]}
    numbered = [(name, seed, value) for name, of_seeds in values.items() for seed, value in enumerate(of_seeds)]
    rows = [{"system": f"{name}.{seed}", "values": {"STS-B": value}} for name, seed, value in numbered]
    write_rows(tmp_path / "values.jsonl", rows)
    records = summarize(tmp_path, monkeypatch, "old", tmp_path / "values.jsonl")
    averages = {record["system"]: (record["mean"], record["sd"]) for record in records if record["kind"] == "system"}
    assert averages == {"old": (2.0, 1.0), "new": (3.0, 1.0), "start": (5.0, None)}
    (test,) = [record for record in records if record["kind"] == "contrast"]
    # Welch's t = 1 / sqrt(1/3 + 1/3) = 1.2247 with 4 degrees of freedom
    assert (test["system"], test["difference"]) == ("new", 1.0)
    assert test["t_p_corrected"] == pytest.approx(0.2879, abs=2e-4)


def test_values_of_queries_are_summarized_and_tested_as_by_compare(tmp_path, monkeypatch, capfd):
    rng = Random(1)
    qrels = tmp_path / "qrels.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{query}\td{query}\t1\n" for query in range(20)))
    runs = {f"{name}.{seed}": tmp_path / f"{name}.{seed}.run" for name in ("old", "new") for seed in (1, 2)}
    for run in runs.values():
        hits = [(query, *hit) for query in range(20) for hit in enumerate(rng.sample(range(20), 5))]
        run.write_text("".join(f"q{query} Q0 d{doc} {rank} {9 - rank} x\n" for query, rank, doc in hits))
    options = ("--qrels", qrels, "--measures", "RR@10 Success@3", "--format", "jsonl")
    for seed in (1, 2):
        named = [f"{name}={runs[f'{name}.{seed}']}" for name in ("old", "new")]
        run_command(capfd, "eval", *named, *options, "--per-query", "-o", tmp_path / f"{seed}.jsonl.zst")
    named = [f"{name.partition('.')[0]}={run}" for name, run in runs.items()]
    compared = run_rows(capfd, "compare", *named, *options)
    records = summarize(tmp_path, monkeypatch, "old", tmp_path / "1.jsonl.zst", tmp_path / "2.jsonl.zst")
    assert "new minus old" in capfd.readouterr().out
    manifest = json.loads((tmp_path / "result.jsonl.meta.json").read_text())
    assert [Path(entry["path"]).name for entry in manifest["inputs"] if entry["digest"]] == [
        "1.jsonl.zst",
        "2.jsonl.zst",
    ]
    assert records[1:] == [record for record in compared[1:] if record["kind"] != "move"]


def test_orders_are_tested_over_queries_or_else_over_seeds_and_corrected(monkeypatch):
    for name, value in {"COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)  # generate.py sets them, too; this restores them
    monkeypatch.setattr("sys.path", list(sys.path))
    generate = load_script("generate", PAPERS.parents[1])
    means = {"a": 2.0, "b": 3.0, "c": 9.0, "d": 8.0}
    systems = {name: {"mean": mean, "sd": 1.0, "runs": 3} for name, mean in means.items()}
    values = {"a": [0.0, 0.1, 0.1], "b": [0.1, 0.2, 0.4]}
    recorded = {pair: {"t_p": 0.01, "df": 2113} for pair in (("c", "b"), ("d", "c"))}
    orders = generate.test_orders(["a > b", "c > a", "b > c", "c > d"], values, systems, recorded)
    assert [order.is_over_queries for order in orders] == [True, False, True, True]
    # a > b: t = -0.1667 / (0.1155 / sqrt(3)) = -2.5 with 2 degrees of freedom; c > a: Welch's t = 7 / 0.8165 = 8.573 with 4
    assert [order.p for order in orders] == pytest.approx([0.1296, 4 * 0.00102, 3 * 0.01, 3 * 0.01], rel=0.01)
    assert [order.difference for order in orders] == [-1.0, 7.0, -6.0, 1.0]
    assert [order.verdict for order in orders] == ["not significant", "confirmed", "reversed", "not over seeds"]


def run_recipe(recipe: str, scale: str, folder: Path, *options: str) -> list[list[str]]:
    """Run a recipe with RECORDER in place of drtk and python; return the words of their calls."""
    rows = tomllib.loads((PAPERS / "expected.toml").read_text())["second"]["rows"]
    firsts = ("simlm", "master", "rom", "query-as-context")
    for name in (
        *(f"{first}/{row}.1.retriever" for first in firsts for row in rows if recipe == "second"),
        "data/fields.jsonl",
        "data/corpus.jsonl",
        "data/pool.jsonl",
        "data/queries.jsonl",
        "data/qrels/train.tsv",
        "data/qrels/test.tsv",
        "encoders/master.1",
        *(("dpr/nq/dpr.1.retriever", "entityquestions.jsonl") if recipe == "ear" else ()),
        *(f"encoders/simlm.1/step-{step}/config.json" for step in (100, 200, 300, 400) if recipe == "curves"),
    ):
        (folder / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "out" / name).write_text("{}\n")
    for name in ("drtk", "python"):
        (folder / name).write_text(RECORDER)
        (folder / name).chmod(0o755)
    settings = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "CALLS": str(folder / "calls")}
    settings |= {"SENTENCES": "sentences.jsonl", "STS": "sts", "HOLDOUT": "yes", "DRTK_TEST_DATA": str(folder)}
    for name in ("squad/corpus.jsonl.gz", "squad/queries.jsonl.gz", "stsb/dev.tsv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(gzip.compress(b""))
    script = ["sh", PAPERS / f"{recipe}.sh", "--scale", scale, "--seeds", "1", "--out", folder / "out", *options]
    own = {"START", "SET", "PRESET", "METHOD", "ENCODER", "TEST", "DOWNLOADS"}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    subprocess.run(script, env=environment | settings, check=True)
    return [line.split("\t") for line in (folder / "calls").read_text().splitlines()]


def find_policies(calls: list[list[str]]) -> set[tuple[str, str]]:
    """Return the policy and the first letters of the queries of each call of mine-negatives."""
    mined = [words for words in calls if words[0] == "mine-negatives"]
    return {(words[words.index("--policy") + 1], words[words.index("--queries") + 1][:5]) for words in mined}


def find_missing_input(words: list[str], folder: Path) -> None:
    """Run a recorded command, whose inputs do not exist. Fails if it reports wrong options, or nothing."""
    public = r"^(irds|hf):" if words[0] == "convert" else r"^irds:"
    words = [re.sub(public, f"{folder}/", word.replace(str(folder / "out"), str(folder / "none"))) for word in words]
    for word in words:
        if word.startswith(str(folder / "none")):
            Path(word).parent.mkdir(parents=True, exist_ok=True)
    try:
        app(words, standalone_mode=False)
    except (UsageError, click.UsageError) as error:
        pytest.fail(f"{' '.join(words)}: {error}")
    except (DrtkError, OSError):
        return
    pytest.fail(f"{' '.join(words)}: reports no missing input")


POLICIES = {"simlm": "msmarco", "query-as-context": "tevatron"}


@pytest.mark.parametrize("scale", ["mini", "full"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_run_each_expected_row_with_valid_options(recipe, scale, tmp_path, monkeypatch):
    if (recipe, scale) in {("ear", "mini"), ("checkpoints", "mini")}:
        pytest.skip("no such scale, or ear.sh, which requires real data")
    calls = run_recipe(recipe, scale, tmp_path)
    if scale == "full" and recipe in POLICIES:
        assert find_policies(calls) == {(POLICIES[recipe], "irds:")}
    presets = {words[words.index("--preset") + 1] for words in calls if "--preset" in words}
    assert {preset for preset in presets if not (PRESETS / f"{preset}.toml").exists()} == set()
    kinds = {tuple("" if "/" in word else word for word in words): words for words in calls}
    monkeypatch.chdir(tmp_path)
    for words in (words for words in kinds.values() if scale == "full" and words[0] in COMMANDS):
        find_missing_input(words, tmp_path)
    sections = tomllib.loads((PAPERS / "expected.toml").read_text())
    named = " ".join(word for words in calls for word in words)
    rows: dict[str, Any] = {}
    for name in (name for name in sections if sections[name].get("recipe", name) == recipe):
        rows |= sections[name]["rows"]
    for row in (row for row, values in rows.items() if scale in values):
        assert re.search(rf"(?:^|[ /.]|diffcse-){re.escape(row)}(=|\.\d)", named), row


@pytest.mark.parametrize(("row", "policy"), [("master", "msmarco"), ("qac-cotmae", "tevatron")])
def test_negatives_follow_the_recipe_of_each_paper(row, policy, tmp_path):
    assert find_policies(run_recipe("second", "full", tmp_path, "--rows", row)) == {(policy, "irds:")}


@pytest.mark.parametrize(("recipe", "rows"), [("rom", "rom Corom"), ("stages", "bm25")])
def test_an_unknown_row_is_an_error_before_the_first_command(recipe, rows, tmp_path):
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_recipe(recipe, "full", tmp_path, "--rows", rows)
    assert error.value.returncode == 2
    assert not (tmp_path / "calls").exists()


def test_a_row_that_starts_from_another_is_trained_from_it(tmp_path):
    encoders = tmp_path / "out" / "encoders"
    calls = run_recipe("rom", "full", tmp_path, "--rows", "corom", "--seeds", "1 2")
    outputs = {words[words.index("-o") + 1]: words for words in calls if words[0] == "pretrain"}
    assert list(outputs) == [f"{encoders}/{name}.{seed}" for seed in (1, 2) for name in ("rom", "corom")]
    assert f"--model {encoders}/rom.2 " in " ".join(outputs[f"{encoders}/corom.2"])
