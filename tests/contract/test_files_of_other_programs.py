"""Files of other programs that are read: the output is complete and stable, and a truncated file is one line and keeps the old output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.contract.run_drtk import run_in_process, run_successfully
from tests.run_commands import read_files

VECTORS = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)


def write_npy(path: Path) -> None:
    np.save(path.open("wb"), VECTORS)


def write_safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"vectors": VECTORS}, path)


def write_parquet(path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"id": [f"d{at}" for at in range(40)], "vector": list(VECTORS)}), path)


def write_parquet_table(path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"_id": ["a", "b"], "title": ["", ""], "text": ["one", "two"]}), path)


VECTORS_CALL = "convert {input} --ids {ids} --as embeddings -o {output}"
DOORS: dict[str, tuple[str, Callable[[Path], None], str]] = {  # name -> file name, function that writes it, call
    "npy": ("v.npy", write_npy, VECTORS_CALL),
    "safetensors": ("v.safetensors", write_safetensors, VECTORS_CALL),
    "vectors in Parquet": ("v.parquet", write_parquet, "convert {input} --as embeddings -o {output}"),
    "corpus in Parquet": ("c.parquet", write_parquet_table, "convert {input} --as passages -o {output}"),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_truncated_file_is_one_line_and_keeps_the_old_output(door: str, tmp_path: Path) -> None:
    name, write, call = DOORS[door]
    file, output = tmp_path / name, tmp_path / "output"
    ids = tmp_path / "the.ids"
    ids.write_text("".join(f"d{at}\n" for at in range(40)))
    write(file)
    arguments = call.format(input=file, output=output, ids=ids).split()
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
