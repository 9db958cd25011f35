"""Decoder-only encoders and generative rerankers: equal to sentence-transformers; monoT5 as published."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drtk.errors import MismatchError
from drtk.models.config import CrossEncoderSettings, EncodeSettings
from drtk.models.cross_encoder import CrossEncoderScorer
from drtk.retrieval.encode import Embedder
from drtk.runtime.progress import silence_transformers
from tests.generation_backbones import SIZE, TEMPLATE, save, save_causal_reranker, save_monot5, train_tokenizer
from tests.tiny_models import make_collection

PASSAGES, QUERIES, _ = make_collection(30)


@pytest.mark.parametrize(
    ("architecture", "end", "side", "pooling", "include_prompt", "settings"),
    [
        ("Qwen3Model", "</s>", "left", "lasttoken", True, {"head_dim": 8}),
        ("MistralModel", "</s>", "right", "lasttoken", True, {"sliding_window": None}),
        ("LlamaModel", "", "left", "mean", False, {}),
        ("Gemma3TextModel", "</s>", "right", "mean", True, {"head_dim": 8, "use_bidirectional_attention": True}),
    ],
    ids=["Qwen3-Embedding", "E5-Mistral", "mean, prompt excluded", "EmbeddingGemma"],
)
def test_decoder_only_encoders_compute_the_vectors_of_sentence_transformers(
    tmp_path: Path, architecture: str, end: str, side: str, pooling: Any, include_prompt: bool, settings: dict[str, Any]
) -> None:
    library = pytest.importorskip("sentence_transformers")
    parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    save(tmp_path / "plain", architecture, train_tokenizer(end=end, side=side), **SIZE, **settings)
    with silence_transformers():
        transformer = parts.Transformer(str(tmp_path / "plain"))
        modules = [transformer, parts.Pooling(32, pooling, include_prompt=include_prompt), parts.Normalize()]
        prompts = {"query": "Instruct: find passages\nQuery: ", "document": ""}
        library.SentenceTransformer(modules=modules, prompts=prompts).save(str(tmp_path / "m"))
        model = library.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    queries, passages = ([row["text"] for row in rows] for rows in (QUERIES, PASSAGES))
    for role, texts, encode in (
        ("query", [*queries, ""], model.encode_query),
        ("passage", [*passages, "mill " * 200], model.encode_document),
    ):
        vectors = Embedder(str(tmp_path / "m"), role=role, device="cpu")(texts)  # type: ignore[arg-type]
        np.testing.assert_allclose(vectors, encode(texts), atol=1e-5)


def test_the_default_pooling_of_decoder_only_models_is_the_last_token(tmp_path: Path) -> None:
    save(tmp_path / "causal", "Qwen3Model", train_tokenizer(end="", side="right"), **SIZE, head_dim=8)
    texts = [row["text"] for row in PASSAGES]

    def embed(model: str, **settings: Any) -> np.ndarray:
        return Embedder(str(tmp_path / model), role="passage", settings=EncodeSettings(**settings), device="cpu")(texts)

    np.testing.assert_array_equal(embed("causal"), embed("causal", pooling="lasttoken"))
    settings: Any = {"head_dim": 8, "use_bidirectional_attention": True}
    save(tmp_path / "bidirectional", "Gemma3TextModel", train_tokenizer(end="", side="right"), **SIZE, **settings)
    np.testing.assert_array_equal(embed("bidirectional"), embed("bidirectional", pooling="cls"))


def make_pairs() -> list[tuple[str, str]]:
    pairs = [(query["text"], passage["text"]) for query, passage in zip(QUERIES, PASSAGES, strict=True)]
    return [*pairs, ("mill", "mill " * 200), ("", "")]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a decoder-only reranker with a chat template, in the layout of transformers."""
    return save_causal_reranker(tmp_path_factory.mktemp("causal"))


def test_decoder_only_rerankers_compute_the_scores_of_sentence_transformers(causal: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    with silence_transformers():
        plain = library.CrossEncoder(str(causal), device="cpu")
        model = library.CrossEncoder(
            str(causal), device="cpu", prompts={"a": "judge"}, default_prompt_name="a",
            activation_fn=torch.nn.Identity(),
        )  # fmt: skip
        model[0].processing_kwargs = {"chat_template": {"tail": "<d>"}}
        model.save_pretrained(str(tmp_path / "m"))
        expected = {str(causal): plain.predict(make_pairs()), str(tmp_path / "m"): model.predict(make_pairs())}
    for folder, scores in expected.items():
        scorer = CrossEncoderScorer(folder, device="cpu")
        np.testing.assert_allclose(scorer(make_pairs()), scores, atol=1e-5)
        assert scores.std() > 0.01
    with pytest.raises(MismatchError, match="has no encoder to take vectors from"):
        scorer.compute_scores_and_vectors(scorer.tokenize(make_pairs()))


@pytest.mark.parametrize("template", [TEMPLATE.replace("'document'", "'query'"), "{{ raise_exception('roles') }}"])
def test_a_chat_template_without_the_document_is_rejected(template: str, tmp_path: Path) -> None:
    save_causal_reranker(tmp_path, template)
    with pytest.raises(MismatchError, match="its chat template has no roles query and document"):
        CrossEncoderScorer(str(tmp_path), device="cpu")


def test_monot5_scores_are_the_logits_of_true_and_false(tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(save_monot5(tmp_path))
    scorer = CrossEncoderScorer(str(tmp_path), device="cpu", settings=CrossEncoderSettings(max_length=40), logits=True)
    query, passage = QUERIES[0]["text"], "mill"
    with silence_transformers(), torch.inference_mode():
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
        inputs = tokenizer(f"Query: {query} Document: {passage} Relevant:", return_tensors="pt")
        logits = model(**inputs, decoder_input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, 0]
    expected = logits[tokenizer.convert_tokens_to_ids("▁true")] - logits[tokenizer.convert_tokens_to_ids("▁false")]
    assert scorer([(query, passage), ("mill", "mill " * 99)])[0] == pytest.approx(float(expected), abs=1e-5)
    ids = scorer.tokenize([("mill", "mill " * 99)]).tokens.ids.tolist()
    assert len(ids) == 40
    assert tokenizer.convert_ids_to_tokens(ids[-2:]) == ["▁Relevant:", "</s>"]
