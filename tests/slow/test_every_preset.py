"""Every pre-training preset for 100 steps on real passages: all losses decrease, and decoders use the bottleneck.

All presets start from MiniLM after a short warm-up with `mlm`, which trains a language-model head. The
result is also the generator of SimLM and DiffCSE. Steps, batch size and learning rates are for this test on two CPU cores, not the papers'.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pytest

from drtk.config import list_preset_names, load_preset
from tests.squad_passages import PIECES, RealCorpus, read_rows, write_real_passages

pytestmark = pytest.mark.slow
PRESETS = [name for name in list_preset_names() if load_preset(name).command == "pretrain"]
LENGTH = PIECES + 2
SCHEDULE = f"--max-steps 100 --batch-size 16 --max-length {LENGTH} --set warmup=0.1 --set log_steps=1".split()
SCHEDULE += ["--set", "held_out=96", "--eval-steps", "100"]
WITHOUT_BOTTLENECK = {"mlm", "simlm-table7-mlm", "rom", "corom", "simcse", "simcse-roberta", "crop", "ict"}
ENDS = 10  # log entries to average at the start and end
LR = "3e-4"  # SimLM's, for all presets not in RATES
RATES = {
    # A randomly initialized decoder must learn in 100 steps what a copy of MiniLM's layers does already.
    **dict.fromkeys(("cotmae", "qac-cotmae", "qac-cotmae-mixed", "qac-cotmae-released", "retromae"), "1e-3"),
    **dict.fromkeys(("master", "master-printed", "condenser", "simlm-table7-condenser"), "1e-3"),
    # Contrastive losses start from MiniLM's good vectors; larger steps would destroy them.
    **dict.fromkeys(("cocondenser", "qac-cocondenser", "qac-cocondenser-mixed", "corom", "mixture-example"), "1e-4"),
    **dict.fromkeys((name for name in PRESETS if name.startswith(("simcse", "diffcse", "crop", "ict"))), "5e-5"),
}


@dataclass(frozen=True)
class Start:
    """Real passages, MiniLM, and MiniLM after the warm-up."""

    real: RealCorpus
    model: Path


def pretrain(*given: str | Path) -> None:
    """Run drtk pretrain in a new process, as users do."""
    done = subprocess.run(
        [sys.executable, "-m", "drtk", "pretrain", *map(str, given)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    folder = tmp_path_factory.mktemp("real")
    real = write_real_passages(folder, paragraphs=300)
    warm = f"--preset mlm --max-steps 150 --batch-size 32 --max-length {LENGTH} --learning-rate 1e-4".split()
    pretrain(real.corpus, "--model", real.model, *warm, "-o", folder / "warm")
    return Start(real, folder / "warm")


@pytest.mark.parametrize("preset", PRESETS)
def test_all_losses_decrease_and_the_bottleneck_is_used(preset, start, tmp_path, capfd):
    content = load_preset(preset).content
    weights = {"master": start.real.inv_freq, "master-printed": start.real.tfidf}.get(preset, start.real.bprop)
    given: list[str | Path] = ["--model", start.model, "--preset", preset, "--with", weights, *SCHEDULE]
    given += ["--learning-rate", RATES.get(preset, LR)] + (
        ["--generator", start.model] if "generator" in content else []
    )
    pretrain(start.real.corpus, *given, "-o", tmp_path / "out")
    entries = [*read_rows(tmp_path / "out" / "log.jsonl")]
    steps, (before, after) = [row for row in entries if "loss" in row], [row for row in entries if "loss" not in row]
    assert [row["step"] for row in steps] == [*range(1, 101)]
    terms = [objective["name"] for objective in content["objective"]]
    ends = {
        term: (average_term(steps, term, slice(0, ENDS)), average_term(steps, term, slice(-ENDS, None)))
        for term in terms
    }
    gains = {name: after[name] for name in after if name.startswith("gain_")}
    with capfd.disabled():
        print(f"\n{preset}: {format_losses(ends, before, after)}")
    assert {f"gain_{objective['name']}" for objective in content["objective"] if "source" in objective} <= gains.keys()
    assert bool(gains) == (preset not in WITHOUT_BOTTLENECK)
    for term, (first, last) in ends.items():
        assert last < first, f"{term} did not decrease"
    for name, gain in gains.items():
        assert gain > 0, f"{name}: the vector of another passage gives the same loss"


def average_term(steps: Sequence[Mapping[str, float]], term: str, part: slice) -> float:
    return mean(row[term] for row in steps[part])


def format_losses(
    ends: Mapping[str, tuple[float, float]], before: Mapping[str, float], after: Mapping[str, float]
) -> str:
    """Format training losses of the first and last steps, held-out losses before and after, and gains."""
    parts = []
    for term, (first, last) in ends.items():
        held = f"held out {before[f'held_out_{term}']:.4f} -> {after[f'held_out_{term}']:.4f}"
        gain = (
            f", gain {before[f'gain_{term}']:+.5f} -> {after[f'gain_{term}']:+.5f}" if f"gain_{term}" in after else ""
        )
        parts.append(f"{term} {first:.4f} -> {last:.4f} ({held}{gain})")
    return "; ".join(parts)
