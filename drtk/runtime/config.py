"""Options of the runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from drtk.config import option


@dataclass(frozen=True)
class RunnerSettings:
    """Commands over records."""

    runner: Literal["local", "ray"] = option(
        "local", "Who does the work: local (this process) or ray (Ray Data: many GPUs, many machines)."
    )
    ray_workers: int | None = option(
        None, "Ray: workers at a time. [default: one a GPU, or one a core where there is none]", at_least=1
    )
    ray_address: str = option(
        "", "Ray: address of a cluster. [default: the one this machine is part of, or a local one]"
    )
