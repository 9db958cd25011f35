"""What the methods that learn have in common: the trained model, and which choices are not theirs to take."""

from __future__ import annotations

from pathlib import Path

from drtk.enrichment.termweights.choices import check_settings
from drtk.errors import UsageError
from drtk.models.hub import locate
from drtk.models.termweighter import Weigher, Weighing, load_weigher
from drtk.settings.weighting import WeightingSettings


def weighing(model: str | None, method: str, settings: WeightingSettings, device: str) -> tuple[Weigher, Weighing]:
    """The trained model of a folder, and what runs it.

    Raises UsageError without a folder, and for choices that training has made, MismatchError for a folder that holds
    no such model.
    """
    if model is None:
        raise UsageError(f"--method {method} needs --model: a folder that --train made")
    check_settings(method, settings, "weigh")
    weigher = load_weigher(Path(locate(model)), method)
    run = Weighing(
        weigher,
        device=device,
        dtype=settings.dtype,
        max_length=settings.max_length,
        batch_tokens=settings.batch_tokens,
    )
    return weigher, run
