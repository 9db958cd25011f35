"""Model cards: README.md of a model folder, with the metadata that the Hugging Face hub reads."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CARD = "README.md"
_TASKS = {  # task of the hub and what the model does, by command
    "train-retriever": ("sentence-similarity", "maps queries and passages to vectors for dense retrieval"),
    "pretrain": ("sentence-similarity", "is a pre-trained text encoder, to be fine-tuned with `drtk train-retriever`"),
    "init-model": ("fill-mask", "has random weights, to be trained"),
    "convert": ("fill-mask", "is a masked language model: an encoder of `drtk pretrain` with its head"),
    "export": ("sentence-similarity", "maps queries and passages to vectors"),
    "train-reranker": ("text-ranking", "scores pairs of a query and a passage"),
    "rerank-queries": ("text-ranking", "scores expansions of a query (EAR)"),
    "train-generator": ("text-generation", "generates queries, answers or expansions"),
    "termweight": ("feature-extraction", "weights the terms of a passage"),
}


def write_model_card(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write README.md into a model folder, from its manifest."""
    (folder / CARD).write_text(format_model_card(folder, manifest), encoding="utf-8")


def format_model_card(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Return the text of a model card: YAML metadata, use, evaluation, training data and versions."""
    from huggingface_hub import ModelCardData

    program = str(manifest.get("program") or "drtk").split(" ")[0]
    task, purpose = _TASKS.get(program, ("feature-extraction", "was made with drtk"))
    settings, command = manifest.get("settings", {}), str(manifest.get("command", ""))
    base = settings.get("masked_lm") or settings.get("model")
    is_on_hub = isinstance(base, str) and not os.path.exists(base) and base.count("/") <= 1 and not base.startswith(".")
    origin = {"export": "exported", "convert": "converted"}.get(program, "trained")
    preset = manifest.get("preset") or next(iter(re.findall(r"--preset[ =](\S+)", command)), None)
    paths = [str(entry["path"]) for entry in manifest.get("inputs", [])]
    # Tables of the hub, with or without revision, configuration and split; a dev set is no training data.
    dev = re.findall(r"--dev[ =]hf:([\w./-]+)", command)
    datasets = [name for name in re.findall(r"\bhf:([\w./-]+)", " ".join([command, *paths])) if name not in dev]
    has_modules = (folder / "modules.json").exists()
    is_sparse = (manifest.get("encoding") or {}).get("pooling") == ["splade"]
    if is_sparse:
        task, purpose = "feature-extraction", "maps queries and passages to term weights for sparse retrieval"
    data = ModelCardData(
        library_name=_find_library(folder, program),
        pipeline_tag=task,
        base_model=base.partition("@")[0] if is_on_hub else None,
        datasets=list(dict.fromkeys(datasets)) or None,
        tags=["drtk", "sparse-retrieval" if is_sparse else "dense-retrieval", program],
    )
    best = manifest.get("best") or {}
    exported = manifest.get("export") or {}
    compared = {f" of {file}": entry for file, entry in (exported.get("figures") or {}).items()}
    figures = [
        f"| {name}{suffix} | {value:.4f} | {' … '.join(f'{end:.4f}' for end in entry.get('interval') or ())} |"
        for suffix, entry in {"": best, **compared}.items()
        for name, value in entry.items()
        if name not in ("step", "seconds") and _is_number(value)
    ]
    inputs = [  # with their folder, which names the collection
        f"- `{'/'.join(Path(path).parts[-2:]).lstrip('/')}`"
        + (f", digest (blake2b) {entry['digest']}" if entry.get("digest") else "")
        for path, entry in zip(paths, manifest.get("inputs", []), strict=True)
    ]
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    lines = [
        *("---", data.to_yaml(), "---", "", f"# Model of drtk {program}", ""),
        *(f"This model {purpose}." + (f" It was {origin} from `{base}`." if base else ""), ""),
        *_describe_use(folder, program, has_modules, is_sparse, exported.get("file")),
        *(
            (
                *("## Evaluation during training" if best else "## Evaluation", ""),
                *("| measure on the dev set | value | 95% interval over queries |", "| --- | ---: | --- |"),
            )
            if figures
            else ()
        ),
        *((*figures, "") if figures else ()),
        *((f"Best of all evaluations, at step {best.get('step')}.", "") if best else ()),
        *("## Training" if origin == "trained" else "## Origin", "", "```sh", command, "```", ""),
        *((f"Preset: `{preset}`", "") if preset else ()),
        *(("Inputs:", "", *inputs, "") if inputs else ()),
        *(f"Versions: {versions}. All settings are in `meta.json`.", ""),
        *("## Publish", "", "```sh", "hf upload USER/NAME .", "```", ""),
    ]
    return "\n".join(lines)


def _find_library(folder: Path, program: str) -> str | None:
    if (folder / "modules.json").exists():
        return "sentence-transformers"
    if not (folder / "config.json").exists():  # a list re-ranker, or two encoders
        return None
    return "sentence-transformers" if program == "train-reranker" else "transformers"


def _describe_use(
    folder: Path, program: str, has_modules: bool, is_sparse: bool, exported_file: str | None
) -> list[str]:
    if has_modules:
        loader = "SparseEncoder" if is_sparse else "SentenceTransformer"
        code = [f"from sentence_transformers import {loader}", "", f'model = {loader}("FOLDER")']
        code += ['vectors = model.encode(["a query", "a passage"])']
    elif program == "train-reranker" and (folder / "config.json").exists():
        code = ["from sentence_transformers import CrossEncoder", "", 'model = CrossEncoder("FOLDER")']
        code += ['scores = model.predict([("a query", "a passage")])']
    else:
        return []
    lines = ["## Use", "", "```python", *code, "```", ""]
    if exported_file:
        lines += ["drtk runs the exported file:", "", "```sh"]
        lines += [f"drtk encode corpus.jsonl --model FOLDER --set model_file={exported_file} -o vectors", "```", ""]
    return lines


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
