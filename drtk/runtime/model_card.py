"""Model cards: README.md of a model folder, with the metadata that the Hugging Face hub reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CARD = "README.md"
_TASKS: dict[str, tuple[str | None, str]] = {  # task of the hub and what the model does, by command
    "train-retriever": ("sentence-similarity", "maps queries and passages to vectors for dense retrieval"),
    "pretrain": ("sentence-similarity", "is a pre-trained text encoder, to be fine-tuned with `drtk train-retriever`"),
    "init-model": (None, "has random weights, to be trained"),
    "convert": ("fill-mask", "is a masked language model: an encoder of `drtk pretrain` with its head"),
    "export": ("sentence-similarity", "maps queries and passages to vectors"),
    "train-reranker": ("text-ranking", "scores pairs of a query and a passage"),
    "rerank-queries": ("text-ranking", "scores expansions of a query (EAR)"),
    "train-generator": ("text-generation", "generates queries, answers or expansions"),
    "termweight": ("feature-extraction", "weights the terms of a passage"),
}


def format_model_card(folder: Path, manifest: Mapping[str, Any]) -> str:
    """Return the text of a model card: YAML metadata, use, evaluation, training data and versions."""
    from huggingface_hub import ModelCardData

    program = str(manifest.get("program") or "drtk").split(" ")[0]
    task, purpose = _TASKS.get(program, ("feature-extraction", "was made with drtk"))
    settings, command = manifest.get("settings", {}), str(manifest.get("command", ""))
    base = settings.get("masked_lm") or settings.get("model")
    is_on_hub = isinstance(base, str) and _may_be_on_hub(base)
    origin = {"export": "exported", "convert": "converted"}.get(program, "trained")
    preset = manifest.get("preset") or next(iter(re.findall(r"--preset[ =](\S+)", command)), None)
    inputs: dict[str, str | None] = {}  # path -> digest
    for entry in manifest.get("inputs", []):
        inputs[str(entry["path"])] = entry.get("digest") or inputs.get(str(entry["path"]))
    has_modules = (folder / "modules.json").exists()
    is_sparse = (manifest.get("encoding") or {}).get("pooling") == ["splade"]
    if is_sparse:
        task, purpose = "feature-extraction", "maps queries and passages to term weights for sparse retrieval"
    data = ModelCardData(
        library_name="sentence-transformers" if has_modules else _find_library(folder, program),
        pipeline_tag=task,
        base_model=base.partition("@")[0] if is_on_hub else None,
        datasets=_find_datasets(command, inputs) or None,
        tags=["drtk", "sparse-retrieval" if is_sparse else "dense-retrieval", program],
    )
    exported = manifest.get("export") or {}
    lines = ["---", data.to_yaml(), "---", "", f"# Model of drtk {program}", ""]
    lines += [f"This model {purpose}." + (f" It was {origin} from `{base}`." if base else ""), ""]
    lines += _describe_use(folder, program, has_modules, is_sparse, exported.get("file"))
    lines += _describe_evaluation(manifest.get("best") or {}, exported.get("figures") or {})
    lines += ["## Training" if origin == "trained" else "## Origin", "", "```sh", command, "```", ""]
    if preset:
        lines += [f"Preset: `{preset}`", ""]
    if inputs:
        lines += ["Inputs:", ""]
        for path, digest in inputs.items():
            lines.append(f"- `{_name_input(path)}`" + (f", digest (blake2b) {digest}" if digest else ""))
        lines.append("")
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    lines += [f"Versions: {versions}. All settings are in `meta.json`.", ""]
    lines += ["## Publish", "", "```sh", "hf upload USER/NAME .", "```", ""]
    return "\n".join(lines)


def _describe_evaluation(best: Mapping[str, Any], exported: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a section with the measures of the best checkpoint, and of each exported file.

    best: measures of the best checkpoint, with its `step`; {} for a model that was not trained
    exported: measures by file
    """
    rows = []
    for suffix, entry in {"": best, **{f" of {file}": entry for file, entry in exported.items()}}.items():
        interval = " … ".join(f"{end:.4f}" for end in entry.get("interval") or ())
        measures = {name: value for name, value in entry.items() if name not in ("step", "seconds", "interval")}
        rows += [f"| {name}{suffix} | {value:.4f} | {interval} |" for name, value in measures.items()]
    if not rows:
        return []
    lines = ["## Evaluation during training" if best else "## Evaluation", ""]
    lines += ["| measure on the dev set | value | 95% interval over queries |", "| --- | ---: | --- |", *rows, ""]
    return [*lines, f"Best of all evaluations, at step {best.get('step')}.", ""] if best else lines


def _may_be_on_hub(name: str) -> bool:
    return not os.path.exists(name) and name.count("/") <= 1 and not name.startswith(".")


def _find_datasets(command: str, paths: Iterable[str]) -> list[str]:
    """Return the training datasets of the hub, without revision, configuration and split."""
    table, dev = r"\bhf:([\w./-]+)", r"--dev[ =]\S+"
    used_in_dev = re.findall(table, " ".join(re.findall(dev, command)))
    names = [name for name in re.findall(table, " ".join(paths)) if name not in used_in_dev]
    names = re.findall(table, re.sub(dev, "", command)) + names
    return [name for name in dict.fromkeys(names) if _may_be_on_hub(name)]


def _name_input(path: str) -> str:
    """Return the end of a path, with the folder that names the collection: data/train.jsonl, scifact/qrels/dev.tsv."""
    parts = Path(path).parts
    return "/".join(parts[-3 if "qrels" in parts[-2:-1] else -2 :]).lstrip("/")


def _find_library(folder: Path, program: str) -> str | None:
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
