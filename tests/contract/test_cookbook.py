"""The recipes of docs/cookbook, in miniature."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from drtk.io.lineage import origins_of
from drtk.io.streams import digest_file
from tests.contract.running import shell

COOKBOOK = Path(__file__).resolve().parents[2] / "docs" / "cookbook"
STEPS = "--steps 2 --batch 4 --warmup 0 --log-every 1"
LENGTHS = "--query-length 12 --passage-length 24"
SMALL = {
    "BM25": "bm25s",
    "INDEX": "exact",
    "DEPTH": "10",
    "K": "20",
    "RERANK": "5",
    "BASELINES": "start pretrained",
    "MINE": "--floor 0",
    "SCORED": "--floor 0 --keep 3",
    "SCORED_QUERIES": "8",
    "UNION": "yes",
    "WARM": f"{STEPS} --max-length 24",
    "PRETRAIN": f"{STEPS} --max-length 24 --held-out 4 --set objective.decoder.reader.layers=1",
    "R1": f"{STEPS} {LENGTHS} --negatives 1",
    "R2": f"{STEPS} {LENGTHS} --negatives 1",
    "RERANKER": f"{STEPS} --max-length 40 --negatives 2",
    "DISTILL": f"{STEPS} {LENGTHS} --negatives 2",
    "MEASURES": "RR@10 R@20",
}


def simlm(workplace: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """The recipe, with ten queries to train with and the others to evaluate with."""
    header, *judged = (workplace / "qrels.tsv").read_text().splitlines(keepends=True)
    for name, part in {"some.tsv": judged[:10], "others.tsv": judged[10:]}.items():
        if not (workplace / name).exists():
            (workplace / name).write_text(header + "".join(part))
    inputs = ("corpus.jsonl", "queries.jsonl", "some.tsv", "others.tsv", "model", "out")
    done = shell(str(COOKBOOK / "simlm.sh"), *inputs, folder=workplace, **SMALL | settings)
    assert done.returncode == 0, done.stderr
    return done


def made(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The outputs that a run of the recipe made, others being up to date."""
    return [line.rpartition("/")[2] for line in done.stderr.splitlines() if " -> " in line]


def settings_of(folder: Path) -> dict[str, str]:
    return json.loads((folder / "meta.json").read_text())["settings"]


def test_simlms_pipeline_runs_from_one_command_and_skips_what_is_done(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workplace)  # manifests name what they were made from as the recipe does
    first = simlm(workplace)
    out = workplace / "out"
    systems = ("bm25", "start", "pretrained", "retriever1", "retriever2", "distilled", "reranked")
    assert [line.split()[0] for line in first.stdout.splitlines() if line.split()[:1] and line.split()[0] in systems]
    asked = {name: {line.split()[0] for line in (out / f"{name}.run").read_text().splitlines()} for name in systems}
    assert set(map(frozenset, asked.values())) == {frozenset(f"q{number}" for number in range(10, 20))}
    # Each stage begins with the pre-trained encoder, not with the retriever before it.
    assert {settings_of(out / name)["model"] for name in ("retriever1", "retriever2", "reranker", "distilled")} == {
        "out/pretrained"
    }
    # The second retriever learns from both files, and everything that examples became still tells which corpus it is of.
    parts = [(out / f"{name}.jsonl").read_bytes() for name in ("bm25", "mined1")]
    assert (out / "union.jsonl").read_bytes() == b"".join(parts)
    examples = {settings_of(out / name)["examples"] for name in ("retriever1", "retriever2", "reranker", "distilled")}
    assert examples == {f"out/{name}.jsonl" for name in ("bm25", "union", "mined2", "scored")}
    for name in examples:
        found = origins_of(name)
        assert {origin.digest for origin in found} == {digest_file(workplace / "corpus.jsonl")}, name
    scored = [json.loads(line) for line in (out / "scored.jsonl").read_text().splitlines()]
    assert len(scored) == 8
    teacher = [json.loads(line)["query_id"] for line in (out / "teacher.jsonl").read_text().splitlines()]
    assert len(teacher) == 10
    assert [row["query_id"] for row in scored] == [
        id for at, id in enumerate(teacher) if at not in (0, 5)
    ]  # at 8 in 10
    assert all(len(row["scores"]["negatives"]) == len(row["negatives"]) <= 3 for row in scored)

    again = simlm(workplace)
    assert made(again) == []
    assert again.stdout == first.stdout

    changed = simlm(workplace, R2=SMALL["R2"] + " --lr 1e-3")
    assert "out/retriever1 is up to date" in changed.stderr
    assert {"retriever2", "reranker", "distilled"} <= set(made(changed))
    assert settings_of(out / "retriever2")["lr"] == 1e-3
