"""Model cards: README.md of a model folder, with the metadata that the Hugging Face hub reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CARD = "README.md"
_TASKS = {  # task of the hub and what the model does, by command
    "train-retriever": ("sentence-similarity", "maps queries and passages to vectors for dense retrieval"),
    "pretrain": ("sentence-similarity", "is a pre-trained text encoder, to be fine-tuned with `drtk train-retriever`"),
    "init-model": ("fill-mask", "has random weights, to be trained"),
    "export": (
        "sentence-similarity",
        "maps queries and passages to vectors, also by the file in `onnx/` or `openvino/`",
    ),
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
    settings = manifest.get("settings", {})
    base = settings.get("model")
    is_on_hub = isinstance(base, str) and not os.path.exists(base) and base.count("/") <= 1 and not base.startswith(".")
    has_modules = (folder / "modules.json").exists()
    is_sparse = (manifest.get("encoding") or {}).get("pooling") == ["splade"]
    if is_sparse:
        task, purpose = "feature-extraction", "maps queries and passages to term weights for sparse retrieval"
    data = ModelCardData(
        library_name="sentence-transformers" if has_modules or task == "text-ranking" else "transformers",
        pipeline_tag=task,
        base_model=base if is_on_hub else None,
        tags=["drtk", "sparse-retrieval" if is_sparse else "dense-retrieval", program],
    )
    best = manifest.get("best") or {}
    interval = " … ".join(f"{end:.4f}" for end in best.get("interval") or ())
    figures = [
        f"| {name} | {value:.4f} | {interval} |" for name, value in best.items() if name != "step" and _is_number(value)
    ]
    inputs = [
        f"- `{Path(entry['path']).name}`" + (f", digest (blake2b) {entry['digest']}" if entry.get("digest") else "")
        for entry in manifest.get("inputs", [])
    ]
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    lines = [
        *("---", data.to_yaml(), "---", "", f"# Model of drtk {program}", ""),
        *(f"This model {purpose}." + (f" It was trained from `{base}`." if base else ""), ""),
        *_describe_use(folder, program, has_modules, is_sparse),
        *(
            (
                *("## Evaluation during training", ""),
                *("| measure on the dev set | value | 95% interval over queries |", "| --- | ---: | --- |"),
            )
            if figures
            else ()
        ),
        *((*figures, "", f"Best of all evaluations, at step {best.get('step')}.", "") if figures else ()),
        *("## Training", "", "```sh", str(manifest.get("command", "")), "```", ""),
        *(("Inputs:", "", *inputs, "") if inputs else ()),
        *(f"Versions: {versions}. All settings are in `meta.json`.", ""),
        *("## Publish", "", "```sh", "hf upload USER/NAME .", "```", ""),
    ]
    return "\n".join(lines)


def _describe_use(folder: Path, program: str, has_modules: bool, is_sparse: bool) -> list[str]:
    if has_modules:
        loader = "SparseEncoder" if is_sparse else "SentenceTransformer"
        code = [f"from sentence_transformers import {loader}", "", f'model = {loader}("FOLDER")']
        code += ['vectors = model.encode(["a query", "a passage"])']
    elif program == "train-reranker" and (folder / "config.json").exists():
        code = ["from sentence_transformers import CrossEncoder", "", 'model = CrossEncoder("FOLDER")']
        code += ['scores = model.predict([("a query", "a passage")])']
    else:
        return []
    return ["## Use", "", "```python", *code, "```", ""]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
