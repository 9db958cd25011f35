"""drtk convert: convert records from one format to another."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Output, make_argument, make_option, with_settings
from drtk.data.config import VECTOR_FILE_SUFFIXES, ConversionSettings
from drtk.errors import UsageError
from drtk.models.config import ImportedVectorSettings
from drtk.runtime.filter_job import FilterJob
from drtk.runtime.folder_job import FolderJob


@with_settings(ConversionSettings)
@with_settings(ImportedVectorSettings, name="vector_settings")
@filter_command(
    "records",
    passages=True,
    model_parameter="masked_lm",
    writes_embeddings=lambda settings, output: (
        settings.get("kind") == "embeddings" and not output.endswith(VECTOR_FILE_SUFFIXES)
    ),
)
def convert(
    sources: Annotated[
        list[str] | None,
        make_argument(
            "[INPUT]…", "Files, a collection, or an embeddings folder; - is stdin. Files of examples are concatenated."
        ),
    ] = None,
    output: Output = "-",
    masked_lm: Annotated[
        str | None,
        make_option(
            "--masked-lm MODEL", "Export this encoder with its LM head as a masked language model, to folder -o."
        ),
    ] = None,
    *,
    settings: ConversionSettings,
    vector_settings: ImportedVectorSettings,
    job: FilterJob | FolderJob,
) -> None:
    """Convert passages, queries, judgments, runs, training examples or vectors to another format.

    The format of the input is detected. Without --to, the output is in drtk's format; for vectors, -o FILE.npy,
    FILE.safetensors or FILE.parquet writes a file of that format.

    Examples:
    drtk convert collection.tsv --as passages -o corpus.jsonl
    drtk convert vectors.npy --as embeddings --ids ids.txt --model MODEL -o vectors
    """
    if settings.kind == "embeddings" and masked_lm is None:
        _convert_vectors(sources or ["-"], settings, vector_settings, job)
        return
    if vector_settings.model is not None:
        raise UsageError("--model requires --as embeddings")
    if isinstance(job, FolderJob):
        assert masked_lm is not None
        _export_masked_lm(sources, masked_lm, settings, job)
        return
    from drtk.data.conversion import convert_records

    convert_records(sources or ["-"], settings, job)


def _convert_vectors(
    sources: list[str],
    settings: ConversionSettings,
    vector_settings: ImportedVectorSettings,
    job: FilterJob | FolderJob,
) -> None:
    from drtk.config import check_effects
    from drtk.data.vector_files import export_vectors, import_vectors

    check_effects(settings)
    if len(sources) > 1 or sources == ["-"] or job.side_files or settings.to is not None:
        raise UsageError("--as embeddings takes one input, a file or folder, without --to and --with")
    if isinstance(job, FolderJob):
        if job.resume:
            raise UsageError("--as embeddings cannot be resumed; omit --resume")
        encoder = None
        if vector_settings.model is not None:
            from drtk.retrieval.encode import identify_encoder

            encoder = identify_encoder(vector_settings)
        import_vectors(sources[0], settings.ids, job, encoder=encoder)
        return
    if settings.ids is not None or vector_settings.model is not None:
        raise UsageError("--ids and --model have no effect when exporting vectors; omit them")
    export_vectors(sources[0], job)


def _export_masked_lm(sources: list[str] | None, model: str, settings: ConversionSettings, job: FolderJob) -> None:
    from drtk.models.checkpoint import load_trained_masked_lm, save_pretrained_model
    from drtk.models.model_folder import resolve_model_folder
    from drtk.runtime.manifest import find_inputs

    if (sources or ["-"]) != ["-"] or settings != ConversionSettings():
        raise UsageError("--masked-lm cannot be combined with input files or options for records; omit them")
    folder = resolve_model_folder(model)
    made = load_trained_masked_lm(folder)
    save_pretrained_model(*made, job.begin())
    job.tracker.inputs += find_inputs({"model": str(folder)})
    job.finish()
