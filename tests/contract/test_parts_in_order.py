"""What the cookbook says of parts: joined by its own shell function, they stand in the order of the input again."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import orjson
import pytest

from drtk.cli.doc2query import WINDOW
from drtk.expansion.term_weights import weigh as passes
from tests.contract.collection import Collection, documents
from tests.contract.running import done

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cookbook" / "machines.md"


def joined(window: int) -> bytes:
    """The three parts in the order of the input, by the function that the page has."""
    found = re.search(r"```sh in-order\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    script = f"{found[1]}\nin_order {window} part.1 part.2 part.3 > joined"
    assert subprocess.run(["sh", "-eu", "-c", script], check=False).returncode == 0
    return Path("joined").read_bytes()


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
    whole = Path("whole").read_bytes()
    assert joined(WINDOW) == whole
    parts = b"".join(Path(f"part.{number}").read_bytes() for number in (1, 2, 3))
    assert (parts == whole) == (count == 300)  # two windows in parts of one each are in order as they are


WEIGHED = {"tfidf --tokenizer": 1000, "bprop --model": 512}  # windows, as the page has them


@pytest.mark.parametrize("method", WEIGHED)
def test_parts_that_are_counted_then_weighed_are_what_one_run_makes(
    method: str, collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(passes, "_COUNTED", 700)  # 10,000 would put all of them into one part
    window = WEIGHED[method]
    count = 2 * window + 200  # 3 windows: one a part
    Path("in").write_bytes(documents(count))
    call = ["termweight", "--method", *method.split(), str(collection["model"])]
    done(*call, "in", "--bare", "-o", "whole")
    for number in (1, 2, 3):
        done(*call, "in", "--collect", "--shard", f"{number}/3", "-o", f"counts.{number}")
    named = [word for number in (1, 2, 3) for word in ("--collection", f"counts.{number}")]
    done(*call, "--merge", *named, "-o", "counts")
    for number in (1, 2, 3):
        done(*call, "in", "--bare", "--collection", "counts", "--shard", f"{number}/3", "-o", f"part.{number}")
    found, whole = (list(map(orjson.loads, text.splitlines())) for text in (joined(window), Path("whole").read_bytes()))
    assert [row["_id"] for row in found] == [row["_id"] for row in whole]
    for one, other in zip(found, whole, strict=True):  # attention adds up in another order; six digits are printed
        assert one["weights"] == pytest.approx(other["weights"], rel=2e-5, abs=2e-6)
