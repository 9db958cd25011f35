"""The program of docs/python.md runs, and its outputs are those of the commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from drtk.cli.main import app
from tests.tiny import collection, tiny_model

ROOT = Path(__file__).resolve().parents[2]


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_the_ten_calls_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faiss")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "qrels").mkdir(parents=True)
    passages, queries, _ = collection(60)
    write_rows(Path("data/documents.jsonl"), passages)
    write_rows(Path("data/queries.jsonl"), queries)
    for split, numbers in (("train", range(40)), ("test", range(40, 60))):
        lines = [f"q{number}\td{number}\t1\n" for number in numbers]
        Path(f"data/qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    tiny_model(Path("minilm"), max_length=160)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(program, "docs/python.md", "exec"), {})
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()] == ["run", "bm25", "dense", "fused"]
    for name in ("bm25", "dense"):
        app(
            ["search", name, "data/queries.jsonl", "-k", "100", "-q", "-o", "again.run", "--force"],
            standalone_mode=False,
        )
        assert Path("again.run").read_bytes() == Path(f"{name}.run").read_bytes()
    call = "eval bm25.run dense.run fused.run --by source --qrels data/qrels/test.tsv -q -o table --measures"
    app([*call.split(), "nDCG@10 RR@10 R@100"], standalone_mode=False)
    assert Path("table").read_text() == table
