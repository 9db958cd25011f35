"""Tiny models and datasets under the names that the pages use, in the layouts of the hub and of ir_datasets."""

import json
import zipfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.contract.collection import make_documents, make_qrels, make_queries
from tests.generation_backbones import SIZE, save, save_causal_reranker, save_monot5, train_tokenizer


def save_library_model(
    folder: Path, modules: list[tuple[str, str, dict[str, object] | None]], **config: object
) -> None:
    """Write the files with which sentence-transformers describes a model. modules: (class, folder, configuration)"""
    places = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path, _) in enumerate(modules)
    ]
    files = {"modules.json": places, "config_sentence_transformers.json": config}
    files |= {f"{path}/config.json": settings for _, path, settings in modules if settings is not None}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def save_qwen3_embedding(folder: Path) -> None:
    save(folder, "Qwen3Model", train_tokenizer(end="</s>"), **SIZE, head_dim=8)
    pooling = {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True, "include_prompt": True}
    save_library_model(
        folder,
        [("Transformer", "", None), ("Pooling", "1_Pooling", pooling), ("Normalize", "2_Normalize", None)],
        prompts={"query": "Instruct: find passages\nQuery:", "document": ""},
        similarity_fn_name="cosine",
    )


def save_static_embedding(folder: Path) -> None:
    save_library_model(folder, [("StaticEmbedding", "0_StaticEmbedding", None)], similarity_fn_name="cosine")
    (folder / "0_StaticEmbedding").mkdir()
    tokenizer = train_tokenizer().backend_tokenizer
    tokenizer.save(str(folder / "0_StaticEmbedding" / "tokenizer.json"))
    weights = np.random.default_rng(1).normal(size=(tokenizer.get_vocab_size(), 16)).astype(np.float32)
    save_file({"embedding.weight": weights}, folder / "0_StaticEmbedding" / "model.safetensors")


def save_beir_dataset(folder: Path) -> None:
    """Save the tiny collection in the layout of BEIR's datasets on the hub."""
    folder.mkdir(parents=True)
    judgments = [{"query-id": f"q{number}", "corpus-id": f"d{number}", "score": 1} for number in range(20)]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judgments))
    (folder / "corpus.jsonl").write_bytes(make_documents(40))
    (folder / "queries.jsonl").write_bytes(make_queries(20))
    files = {"default": "test", "corpus": "corpus", "queries": "queries"}
    configs = (
        f"- config_name: {name}\n  data_files: [{{split: {split}, path: {split}.jsonl}}]\n"
        for name, split in files.items()
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(configs)}---\n")


HUB = {
    "mteb/scifact": save_beir_dataset,
    "Qwen/Qwen3-Embedding-0.6B": save_qwen3_embedding,
    "Qwen/Qwen3-Reranker-0.6B": save_causal_reranker,
    "castorini/monot5-base-msmarco": save_monot5,
    "sentence-transformers/static-retrieval-mrl-en-v1": save_static_embedding,
}


def save_scifact(home: Path) -> None:
    """Save the tiny collection where ir_datasets, with IR_DATASETS_HOME=`home`, keeps its download of SciFact."""
    (home / "beir" / "scifact").mkdir(parents=True)
    with zipfile.ZipFile(home / "beir" / "scifact" / "source.zip", "w") as archive:
        archive.writestr("scifact/corpus.jsonl", make_documents(40))
        archive.writestr("scifact/queries.jsonl", make_queries(20))
        for split in ("train", "test"):
            archive.writestr(f"scifact/qrels/{split}.tsv", make_qrels(20))
