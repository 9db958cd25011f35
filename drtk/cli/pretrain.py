"""drtk pretrain: an encoder learns from passages alone."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from drtk.cli.jobs import folder_maker
from drtk.cli.options import Device, Folder, Seed, with_settings
from drtk.io.folders import FolderJob
from drtk.settings.pretraining import PretrainSettings

Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change the preset: slots.encoder.rate=0.4; repeatable."),
]
Dropped = Annotated[
    list[str] | None, typer.Option("--drop", metavar="GROUP", help="Leave out the objectives of a group; repeatable.")
]


@with_settings(PretrainSettings, preset=True, required=True)
@folder_maker("model", resume=True, passages=True)
def pretrain(
    passages: Annotated[list[str], typer.Argument(metavar="PASSAGES", help="Corpus of passages; - is stdin.")],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Encoder to start from: a folder, or hub name[@revision].")
    ],
    output: Folder,
    generator: Annotated[
        str | None, typer.Option("--generator", metavar="MODEL", help="Masked language model that proposes tokens.")
    ] = None,
    changes: Changes = None,
    drop: Dropped = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be trained, and how large it is; train nothing.")
    ] = False,
    seed: Seed = 42,
    device: Device = "auto",
    *,
    settings: PretrainSettings,
    recipe: dict[str, Any],
    job: FolderJob,
) -> None:
    """Pre-train an encoder: SimLM, MASTER, ROM, CoT-MAE, coCondenser, DiffCSE, or a mixture of your own.

    Makes a model folder that train-retriever, transformers and sentence-transformers load; log.jsonl in it has every loss.
    """
