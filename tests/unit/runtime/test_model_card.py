"""Model cards: metadata that the hub's parser reads, figures, command, and how the model is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from drtk.runtime.manifest import complete_manifest, create_manifest, read_manifest, write_manifest
from drtk.runtime.model_card import CARD


@pytest.mark.parametrize(
    ("program", "file", "library", "task", "use"),
    [
        ("train-retriever", "modules.json", "sentence-transformers", "sentence-similarity", "SentenceTransformer("),
        ("train-reranker", "config.json", "sentence-transformers", "text-ranking", "CrossEncoder("),
        ("train-generator", "config.json", "transformers", "text-generation", None),
    ],
)
def test_a_model_folder_has_a_card_for_the_hub(
    tmp_path: Path, program: str, file: str, library: str, task: str, use: str | None
) -> None:
    (tmp_path / file).write_text("{}")
    manifest = create_manifest("model", {"model": "google/bert-tiny"}, program=program)
    inputs = [{"path": "/data/train.jsonl", "digest": "ab12"}]
    manifest = complete_manifest(manifest, inputs=inputs, counts={}, seconds=1)
    write_manifest(tmp_path, manifest | {"best": {"step": 40, "RR@10": 0.51239, "interval": [0.4, 0.62478]}})
    card = ModelCard((tmp_path / CARD).read_text(encoding="utf-8"))
    assert card.data.to_dict() == {
        "library_name": library,
        "pipeline_tag": task,
        "base_model": "google/bert-tiny",
        "tags": ["drtk", "dense-retrieval", program],
    }
    assert "| RR@10 | 0.5124 | 0.4000 … 0.6248 |" in card.text
    assert "at step 40" in card.text
    assert manifest["command"] in card.text
    assert "- `train.jsonl`, digest (blake2b) ab12" in card.text
    assert use in card.text if use else "## Use" not in card.text
    assert CARD in read_manifest(tmp_path)["files"]


def test_a_local_model_is_no_base_model_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    manifest = create_manifest("model", {"model": str(tmp_path / "base")}, program="pretrain")
    write_manifest(tmp_path, complete_manifest(manifest, inputs=[], counts={}, seconds=1))
    card = ModelCard((tmp_path / CARD).read_text(encoding="utf-8"))
    assert card.data.base_model is None
    assert "Evaluation" not in card.text
    write_manifest(tmp_path / "base", create_manifest("corpus", {}))
    assert not (tmp_path / "base" / CARD).exists()
