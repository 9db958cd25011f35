"""The program of docs/python.md runs, and its outputs equal those of the commands."""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from drtk.cli.main import app
from drtk.errors import UsageError
from drtk.models.config import EncodeSettings
from drtk.retrieval.encode import encode_corpus
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.integrity import read_json
from tests.bm25_data import skip_without_lucene
from tests.tiny_models import make_collection, save_tiny_encoder

ROOT = Path(__file__).resolve().parents[2]


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_the_ten_calls_run(folder, capsys):
    pytest.importorskip("faiss")
    skip_without_lucene()
    (folder / "data" / "qrels").mkdir(parents=True)
    passages, queries, _ = make_collection(60)
    write_rows(Path("data/documents.jsonl"), passages)
    write_rows(Path("data/queries.jsonl"), queries)
    for split, numbers in (("train", range(40)), ("test", range(40, 60))):
        lines = [f"q{number}\td{number}\t1\n" for number in numbers]
        Path(f"data/qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    save_tiny_encoder(Path("minilm"), max_length=160)
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(program, "docs/python.md", "exec"), {})
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()] == ["run", "bm25", "trained", "fused"]
    for index, run in (("bm25", "bm25.run"), ("index", "trained.run")):
        call = f"search {index} data/queries.jsonl -k 100 -q -o again.run --force"
        app(call.split(), standalone_mode=False)
        assert Path("again.run").read_bytes() == Path(run).read_bytes()
    call = "eval bm25.run trained.run fused.run --by source --qrels data/qrels/test.tsv -q -o table --measures"
    app([*call.split(), "nDCG@10 RR@10 R@100"], standalone_mode=False)
    assert Path("table").read_text() == table


def test_calls_from_python_are_validated_and_record_their_settings(tmp_path):
    corpus, model, out = str(tmp_path / "c.jsonl"), str(save_tiny_encoder(tmp_path / "m")), str(tmp_path / "v")
    write_rows(Path(corpus), make_collection(60)[0])
    for shard_size in (-1, 20):
        job = FolderJob("encode", "embeddings", out)
        with pytest.raises(UsageError, match="must be at least") if shard_size < 1 else nullcontext():
            encode_corpus(corpus, model, EncodeSettings(shard_size=shard_size), job, device="cpu")
        job.release()
    assert read_json(Path(out, "meta.json"))["settings"]["shard_size"] == 20
