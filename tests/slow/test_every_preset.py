"""Every preset of pre-training, 100 steps from the command line on real passages: all terms fall, and bottlenecks are read.

They begin with MiniLM, after a short common warm-up by `mlm` that gives it the head it lacks; the warm-up is SimLM's and DiffCSE's
generator, too. Steps, batch and learning rates are for this test and two CPU cores, not the papers'.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pytest

from drtk.config import load_preset, preset_names
from tests.squad_passages import PIECES, RealCorpus, read_rows, write_real_passages

pytestmark = pytest.mark.slow
PRESETS = [name for name in preset_names() if load_preset(name).command == "pretrain"]
LENGTH = PIECES + 2
SCHEDULE = [
    "--max-steps",
    "100",
    "--batch-size",
    "16",
    "--max-length",
    str(LENGTH),
    "--set",
    "warmup=0.1",
    "--set",
    "log_steps=1",
]
SCHEDULE += ["--set", "held_out=96", "--eval-steps", "100"]
WITHOUT_BOTTLENECK = {"mlm", "simlm-table7-mlm", "rom", "corom", "simcse", "simcse-roberta", "crop", "ict"}
ENDS = 10  # entries that are averaged at either end
LR = "3e-4"  # SimLM's, which all presets get that are not named here
RATES = {
    # A decoder drawn at random has a hundred steps to learn what a copy of MiniLM's layers can do already.
    **dict.fromkeys(("cotmae", "qac-cotmae", "qac-cotmae-mixed", "qac-cotmae-released", "retromae"), "1e-3"),
    **dict.fromkeys(("master", "master-printed", "condenser", "simlm-table7-condenser"), "1e-3"),
    # Vectors that are compared begin as MiniLM's, which are good at it: larger steps undo that.
    **dict.fromkeys(("cocondenser", "qac-cocondenser", "qac-cocondenser-mixed", "corom", "mixture-example"), "1e-4"),
    **dict.fromkeys((name for name in PRESETS if name.startswith(("simcse", "diffcse", "crop", "ict"))), "5e-5"),
}


@dataclass(frozen=True)
class Start:
    """real: passages and MiniLM; model: MiniLM after the warm-up."""

    real: RealCorpus
    model: Path


def pretrain(*given: str | Path) -> None:
    """drtk pretrain in a process of its own, as users run it."""
    done = subprocess.run(
        [sys.executable, "-m", "drtk", "pretrain", *map(str, given)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    folder = tmp_path_factory.mktemp("real")
    real = write_real_passages(folder, paragraphs=300)
    warm = [
        "--preset",
        "mlm",
        "--max-steps",
        "150",
        "--batch-size",
        "32",
        "--max-length",
        LENGTH,
        "--learning-rate",
        "1e-4",
    ]
    pretrain(real.corpus, "--model", real.model, *warm, "-o", folder / "warm")
    return Start(real, folder / "warm")


@pytest.mark.parametrize("preset", PRESETS)
def test_all_terms_fall_and_the_bottleneck_is_read(
    preset: str, start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = load_preset(preset).content
    weights = {"master": start.real.inv_freq, "master-printed": start.real.tfidf}.get(preset, start.real.bprop)
    given: list[str | Path] = ["--model", start.model, "--preset", preset, "--with", weights, *SCHEDULE]
    given += [
        "--learning-rate",
        RATES.get(preset, LR),
        *(["--generator", start.model] if "generator" in content else []),
    ]
    pretrain(start.real.corpus, *given, "-o", tmp_path / "out")
    entries = [*read_rows(tmp_path / "out" / "log.jsonl")]
    steps, (before, after) = [row for row in entries if "loss" in row], [row for row in entries if "loss" not in row]
    assert [row["step"] for row in steps] == [*range(1, 101)]
    terms = [objective["name"] for objective in content["objective"]]
    ends = {term: (ends_of(steps, term, slice(0, ENDS)), ends_of(steps, term, slice(-ENDS, None))) for term in terms}
    gains = {name: after[name] for name in after if name.startswith("gain_")}
    with capfd.disabled():
        print(f"\n{preset}: {told(ends, before, after)}")
    assert {f"gain_{each['name']}" for each in content["objective"] if "source" in each} <= gains.keys()
    assert bool(gains) == (preset not in WITHOUT_BOTTLENECK)
    for term, (first, last) in ends.items():
        assert last < first, f"{term} did not fall"
    for name, gain in gains.items():
        assert gain > 0, f"{name}: another passage's vector serves as well"


def ends_of(steps: Sequence[Mapping[str, float]], term: str, part: slice) -> float:
    return mean(row[term] for row in steps[part])


def told(ends: Mapping[str, tuple[float, float]], before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Training losses of the first and last steps, held-out losses before and after, and gains."""
    parts = []
    for term, (first, last) in ends.items():
        held = f"held out {before[f'held_out_{term}']:.4f} -> {after[f'held_out_{term}']:.4f}"
        gain = (
            f", gain {before[f'gain_{term}']:+.5f} -> {after[f'gain_{term}']:+.5f}" if f"gain_{term}" in after else ""
        )
        parts.append(f"{term} {first:.4f} -> {last:.4f} ({held}{gain})")
    return "; ".join(parts)
