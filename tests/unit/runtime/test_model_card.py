"""Model cards: metadata that the hub's parser reads, figures, command, and how the model is used."""

import pytest
from huggingface_hub import ModelCard

from drtk.runtime.manifest import complete_manifest, create_manifest, find_damage, read_manifest, write_manifest
from drtk.runtime.model_card import CARD, format_model_card


@pytest.mark.parametrize(
    ("program", "file", "library", "task", "use"),
    [
        ("train-retriever", "modules.json", "sentence-transformers", "sentence-similarity", "SentenceTransformer("),
        ("train-reranker", "config.json", "sentence-transformers", "text-ranking", "CrossEncoder("),
        ("train-reranker", "list_reranker.json", None, "text-ranking", None),
        ("train-generator", "config.json", "transformers", "text-generation", None),
    ],
)
def test_a_model_folder_has_a_card_for_the_hub(tmp_path, program, file, library, task, use):
    (tmp_path / file).write_text("{}")
    manifest = create_manifest("model", {"model": "google/bert-tiny"}, program=program)
    inputs = [{"path": "/data/train.jsonl", "digest": "ab12"}]
    manifest = complete_manifest(manifest, inputs=inputs, counts={}, seconds=1)
    write_manifest(tmp_path, manifest | {"best": {"step": 40, "RR@10": 0.51239, "interval": [0.4, 0.62478]}})
    card = ModelCard((tmp_path / CARD).read_text(encoding="utf-8"))
    assert card.data.to_dict() == {
        **({"library_name": library} if library else {}),
        "pipeline_tag": task,
        "base_model": "google/bert-tiny",
        "tags": ["drtk", "dense-retrieval", program],
    }
    assert "| RR@10 | 0.5124 | 0.4000 … 0.6248 |" in card.text
    assert "at step 40" in card.text
    assert manifest["command"] in card.text
    assert "- `data/train.jsonl`, digest (blake2b) ab12" in card.text
    assert use in card.text if use else "## Use" not in card.text
    assert CARD in read_manifest(tmp_path)["files"]
    (tmp_path / CARD).write_text("edited", encoding="utf-8")
    assert list(find_damage(tmp_path, read_manifest(tmp_path))) == []
    (tmp_path / "corpus").mkdir()
    write_manifest(tmp_path / "corpus", create_manifest("corpus", {}))
    assert not (tmp_path / "corpus" / CARD).exists()


FIGURES = {"weights": {"nDCG@10": 0.5, "interval": None, "seconds": 2.0}}


@pytest.mark.parametrize(
    ("command", "entries", "metadata", "shown", "not_shown"),
    [
        (
            "train-retriever --data hf:BeIR/scifact@main --dev hf:BeIR/nq --preset splade-max",
            {"settings": {"model": "intfloat/e5-base-v2@main"}},
            {"base_model": "intfloat/e5-base-v2", "datasets": ["BeIR/scifact", "me/pairs"]},
            "trained from `intfloat/e5-base-v2@main`, Preset: `splade-max`, `scifact/corpus.jsonl`, `hf:me/pairs`",
            "Evaluation",
        ),
        (
            "train-retriever --data hf:BeIR/nq --dev hf:BeIR/nq hf:src:train",
            {"settings": {"model": "src"}},  # a local folder
            {"base_model": None, "datasets": ["BeIR/nq", "me/pairs"]},
            "trained from",
            "base_model",
        ),
        (
            "export a/b",
            {"settings": {"model": "a/b"}, "export": {"file": "onnx/model.onnx", "figures": FIGURES}},
            {"base_model": "a/b"},
            "exported from `a/b`, ## Evaluation\n, | nDCG@10 of weights | 0.5000 |  |",
            "trained from, Training, Best of all, seconds",
        ),
        (
            "convert --masked-lm a/b",
            {"settings": {"masked_lm": "a/b", "model": None}},
            {"base_model": "a/b", "pipeline_tag": "fill-mask"},
            "is a masked language model, converted from `a/b`",
            "was made with, Preset",
        ),
    ],
)
def test_a_card_names_where_the_model_is_from(tmp_path, command, entries, metadata, shown, not_shown, monkeypatch):
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    corpus = {"path": "/data/scifact/corpus.jsonl"}
    inputs = [corpus, {"path": "hf:me/pairs", "digest": "9 rows"}, {"path": "/data/scifact/qrels/dev.tsv"}]
    inputs += [corpus | {"digest": "ab"}, corpus]
    manifest = {"program": command.split()[0], "command": f"drtk {command} -o out", "inputs": inputs, **entries}
    card = ModelCard(format_model_card(tmp_path, manifest))
    assert card.text.count("- `scifact/corpus.jsonl`, digest (blake2b) ab") == card.text.count("scifact/corpus") == 1
    assert "- `scifact/qrels/dev.tsv`\n" in card.text
    assert {name: getattr(card.data, name) for name in metadata} == metadata
    assert [text for text in shown.split(", ") if text not in card.text] == []
    assert [text for text in not_shown.split(", ") if text in card.text] == []
