"""Files of other programs that are read: the output is complete and stable, and a truncated file is one line and keeps the old output."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.contract.run_drtk import run_in_process, run_successfully
from tests.run_commands import read_files

VECTORS = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
TRIPLETS = [{"anchor": f"what is {at}", "positive": f"it is {at}", "negative": f"not {at}"} for at in range(20)]


def write_npy(path: Path) -> None:
    np.save(path.open("wb"), VECTORS)


def write_safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"vectors": VECTORS}, path)


def write_parquet(path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": [f"d{at}" for at in range(40)], "vector": list(VECTORS)}), path)


def write_faiss(path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(8)
    index.add(VECTORS)
    faiss.write_index(index, str(path))


def write_lines(*rows: object) -> Callable[[Path], None]:
    """Return a function that writes the rows, strings or JSON objects, as gzip-compressed lines."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]

    def write(path: Path) -> None:
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))

    return write


def write_docx(path: Path) -> None:
    body = "".join(f"<w:p><w:r><w:t>Paragraph {at}</w:t></w:r></w:p>" for at in range(20))
    namespace = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{namespace}"><w:body>{body}</w:body></w:document>')


def write_notebook(path: Path) -> None:
    cells = [{"cell_type": "markdown", "source": [f"# Part {at}\n", "text"]} for at in range(20)]
    path.write_text(json.dumps({"cells": cells, "nbformat": 4}))


def write_table(path: Path) -> None:
    path.write_text("title,text\n" + "".join(f'T{at},"a ""quoted"" text, {at}"\n' for at in range(20)))


def write_parquet_table(path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"_id": ["a", "b"], "title": ["", ""], "text": ["one", "two"]}), path)


EXAMPLES = "convert {input} --as examples --corpus-out {folder}/c.jsonl --queries-out {folder}/q.jsonl -o {output}"
DOORS: dict[str, tuple[str, Callable[[Path], None], str]] = {  # name -> file name, function that writes it, call
    "npy": ("v.npy", write_npy, "convert {input} --ids {ids} --as embeddings -o {output}"),
    "safetensors": ("v.safetensors", write_safetensors, "convert {input} --ids {ids} --as embeddings -o {output}"),
    "vectors in Parquet": ("v.parquet", write_parquet, "convert {input} --as embeddings -o {output}"),
    "faiss": ("v.faiss", write_faiss, "index {input} --ids {ids} -o {output}"),
    "triplets": ("t.jsonl.gz", write_lines(*TRIPLETS), EXAMPLES),
    "FlagEmbedding": (
        "f.jsonl.gz",
        write_lines(*({"query": f"q {at}", "pos": [f"p {at}"], "neg": [f"n {at}"]} for at in range(20))),
        EXAMPLES,
    ),
    "MS MARCO's triples": ("t.tsv.gz", write_lines(*(f"query {at}\tp {at}\tn {at}" for at in range(20))), EXAMPLES),
    "corpus in Parquet": ("c.parquet", write_parquet_table, "convert {input} --as passages -o {output}"),
    "Word": ("a.docx", write_docx, "import {input} -o {output}"),
    "notebook": ("a.ipynb", write_notebook, "import {input} -o {output}"),
    "CSV": ("a.csv", write_table, "import {input} -o {output}"),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_truncated_file_is_one_line_and_keeps_the_old_output(door: str, tmp_path: Path) -> None:
    name, write, call = DOORS[door]
    file, output = tmp_path / name, tmp_path / "output"
    ids = tmp_path / "the.ids"
    ids.write_text("".join(f"d{at}\n" for at in range(40)))
    write(file)
    arguments = call.format(input=file, output=output, ids=ids, folder=tmp_path).split()
    run_successfully(*arguments)
    before = read_files(output) if output.is_dir() else output.read_bytes()
    run_successfully(*arguments, "--force")
    assert (read_files(output) if output.is_dir() else output.read_bytes()) == before
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    outcome = run_in_process(*arguments, "--force")
    assert outcome.status == 1
    assert outcome.err.splitlines()[-1].startswith(f"drtk: {file}")
    assert "Traceback" not in outcome.err
    assert (read_files(output) if output.is_dir() else output.read_bytes()) == before
