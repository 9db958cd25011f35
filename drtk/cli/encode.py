"""drtk encode: encode passages or queries as vectors."""

from __future__ import annotations

from typing import Annotated, Literal

from drtk.cli.decorators import folder_command
from drtk.cli.options import Device, Folder, make_argument, make_option, with_settings
from drtk.config import CONTROL
from drtk.models.config import EncodeSettings
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.runners import RunnerSettings


@with_settings(EncodeSettings)
@with_settings(RunnerSettings, name="runner_settings")
@folder_command("embeddings", resume=True, passages=True)
def encode(
    model: Annotated[str, make_option("--model MODEL", "Encoder: a folder, Hub name[@revision] or endpoint URL#NAME.")],
    output: Folder,
    source: Annotated[str, make_argument("INPUT", "Passages or queries to encode; - is stdin.")] = "-",
    role: Annotated[
        Literal["passage", "query"],
        make_option("--role passage|query", "Encode as passages or queries; selects encoder and prompt."),
    ] = "passage",
    shard: Annotated[str, make_option("--shard I/N", "Encode only shard I of N, such as 1/4.", panel=CONTROL)] = "1/1",
    device: Device = "auto",
    *,
    settings: EncodeSettings,
    runner_settings: RunnerSettings,
    job: FolderJob,
) -> None:
    """Encode passages or queries as vectors.

    Writes a folder of embeddings for drtk index and drtk search. --resume continues an interrupted run.

    Examples:
    drtk encode corpus.jsonl --model sentence-transformers/all-MiniLM-L6-v2 -o vectors
    drtk encode queries.jsonl --model model --role query -o query-vectors
    """
    from drtk.data.checks import check_first_record, warn_of_other_kind
    from drtk.data.readers import read_passages, read_queries
    from drtk.models.model_folder import is_endpoint, resolve_model_folder
    from drtk.runtime.sharding import parse_shard

    part = parse_shard(shard)
    if not is_endpoint(model):
        resolve_model_folder(model)
    check_first_record(source, read_queries if role == "query" else read_passages, job.tracker)
    warn_of_other_kind(**{"passages" if role == "passage" else "queries": source})
    from drtk.retrieval.encode import encode_corpus

    encode_corpus(source, model, settings, job, role=role, part=part, device=device, runner_settings=runner_settings)
