"""What the cookbook says of parts: joined by its own shell function, they stand in the order of the input again."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from drtk.cli.doc2query import WINDOW
from tests.contract.collection import Collection, documents
from tests.contract.running import done

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cookbook" / "machines.md"


@pytest.mark.parametrize("count", [300, 1100])  # 2 and 5 windows: with three parts, the last has none, or one
def test_parts_are_put_back_into_order_by_the_function_of_the_cookbook(
    count: int, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_bytes(documents(count))
    call = ["doc2query", "in", "--model", str(collection["writer"]), "--n", "1", "--max-new-tokens", "2", "--bare"]
    done(*call, "-o", "whole")
    for number in (1, 2, 3):
        done(*call, "-o", f"part.{number}", "--shard", f"{number}/3")
    found = re.search(r"```sh in-order\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    script = f"{found[1]}\nin_order {WINDOW} part.1 part.2 part.3 > joined"
    assert subprocess.run(["sh", "-eu", "-c", script], check=False).returncode == 0
    whole = Path("whole").read_bytes()
    assert Path("joined").read_bytes() == whole
    parts = b"".join(Path(f"part.{number}").read_bytes() for number in (1, 2, 3))
    assert (parts == whole) == (count == 300)  # two windows in parts of one each are in order as they are
