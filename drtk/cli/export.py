"""drtk export: export an encoder to ONNX or OpenVINO, and compare its retrieval quality before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from drtk.cli.decorators import folder_command
from drtk.cli.options import Folder, make_argument, make_option, with_settings
from drtk.config import to_dict
from drtk.models.config import ExportSettings
from drtk.runtime.folder_job import FolderJob


@with_settings(ExportSettings)
@folder_command("model")
def export(
    model: Annotated[str, make_argument("MODEL", "Encoder, a folder or Hub name[@revision].")],
    output: Folder,
    dev: Annotated[
        str | None,
        make_option("--dev DIR", "BEIR folder, irds:ID or hf:NAME to compare nDCG@10 before and after the export."),
    ] = None,
    *,
    settings: ExportSettings,
    job: FolderJob,
) -> None:
    """Export an encoder to ONNX or OpenVINO, by default quantized to int8 for faster encoding on a CPU.

    Writes a model folder with the weights and the exported file, for drtk encode --set model_file=FILE.

    Examples:
    drtk export retriever -o exported
    drtk export sentence-transformers/all-MiniLM-L6-v2 --format openvino --dev scifact -o exported
    """
    from drtk.data.beir import choose_dev_split
    from drtk.errors import MismatchError
    from drtk.models.model_folder import resolve_model_folder, resolve_tower_folder

    folder = resolve_model_folder(model)
    split = choose_dev_split(dev) if dev is not None else ""
    if resolve_tower_folder(folder, "query") != folder:
        raise MismatchError(f"{model}: has two encoders; export {model}/query and {model}/passage")
    from drtk.evaluation.dev_evaluation import compare_encoders
    from drtk.models.checkpoint import load_encoder, save_encoder
    from drtk.models.export import export_backbone
    from drtk.runtime.manifest import find_inputs
    from drtk.runtime.progress import log

    encoder = load_encoder(folder)
    if encoder.encoder.is_sparse:
        raise MismatchError(f"{model}: is a sparse encoder, which cannot be exported; give a dense encoder")
    target = job.begin()
    save_encoder(encoder, target)
    name = export_backbone(encoder, target, format=settings.format, quantize=settings.quantize)
    log(f"export: {name}; drtk encode uses it with --set model_file={name}")
    figures = None
    if dev is not None:
        exported = load_encoder(target, model_file=name, strict=False)
        figures = compare_encoders(
            {"weights": encoder, name: exported},
            Path(dev),
            split=split,
            queries=settings.dev_queries,
            pool=settings.dev_pool,
            tracker=job.tracker,
        )
    job.tracker.inputs += find_inputs({"model": str(folder)})
    job.finish(encoding=to_dict(encoder.encoding), export={"file": name, "figures": figures})
