"""Decoder-only encoders and generative rerankers: equal to sentence-transformers; monoT5 as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drtk.errors import MismatchError
from drtk.models.config import CrossEncoderSettings
from drtk.models.cross_encoder import CrossEncoderScorer
from drtk.retrieval.encode import Embedder
from drtk.runtime.progress import silence_transformers
from tests.tiny_models import make_collection

SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
PASSAGES, QUERIES, _ = make_collection(30)
TEMPLATE = """{% for message in messages if message.role == 'system' %}<i>{{ message.content }}{% endfor %}<q>\
{{ (messages | selectattr('role', 'eq', 'query') | first).content }}<d>\
{{ (messages | selectattr('role', 'eq', 'document') | first).content }}<e>{{ tail | default('') }}"""


def train_tokenizer(*, end: str = "", side: str = "left", metaspace: bool = False) -> Any:
    """Return a BPE tokenizer. end: token after every text    metaspace: words begin with ▁, as in SentencePiece"""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace() if metaspace else pre_tokenizers.ByteLevel()
    special = ["<pad>", "<unk>", "</s>", "<q>", "<d>", "<e>", "<i>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [f"{row['title']} {row['text']}" for row in make_collection()[0]]
    tokenizer.train_from_iterator([*texts, *["Query: Document: Relevant: true false"] * 20], trainer)
    if end:
        at = tokenizer.token_to_id(end)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, at)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>", padding_side=side,
        model_max_length=96,
    )  # fmt: skip


def save(folder: Path, architecture: str, tokenizer: Any, **settings: Any) -> Path:
    """Save an untrained model of transformers, such as Qwen3Model, with its tokenizer."""
    import transformers

    kind = getattr(transformers, architecture)
    with torch.random.fork_rng(devices=[]), silence_transformers():
        torch.manual_seed(1)
        config = kind.config_class(**settings, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
        kind(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


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
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    save(tmp_path / "plain", architecture, train_tokenizer(end=end, side=side), **SIZE, **settings)
    with silence_transformers():
        modules = [Transformer(str(tmp_path / "plain")), Pooling(32, pooling, include_prompt=include_prompt)]
        prompts = {"query": "Instruct: find passages\nQuery: ", "document": ""}
        library.SentenceTransformer(modules=[*modules, Normalize()], prompts=prompts).save(str(tmp_path / "m"))
        model = library.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    queries, passages = ([row["text"] for row in rows] for rows in (QUERIES, PASSAGES))
    for role, texts, encode in (
        ("query", [*queries, ""], model.encode_query),
        ("passage", [*passages, "mill " * 200], model.encode_document),
    ):
        vectors = Embedder(str(tmp_path / "m"), role=role, device="cpu")(texts)  # type: ignore[arg-type]
        np.testing.assert_allclose(vectors, encode(texts), atol=1e-5)


def make_pairs() -> list[tuple[str, str]]:
    pairs = [(query["text"], passage["text"]) for query, passage in zip(QUERIES, PASSAGES, strict=True)]
    return [*pairs, ("mill", "mill " * 200), ("", "")]


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a decoder-only reranker with a chat template, in the layout of transformers."""
    tokenizer = train_tokenizer()
    tokenizer.add_tokens(["yes", "no"])
    tokenizer.chat_template = TEMPLATE
    return save(tmp_path_factory.mktemp("causal"), "Qwen3ForCausalLM", tokenizer, **SIZE, head_dim=8)


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
    tokenizer = train_tokenizer()
    tokenizer.add_tokens(["yes", "no"])
    tokenizer.chat_template = template
    save(tmp_path, "Qwen3ForCausalLM", tokenizer, **SIZE, head_dim=8)
    with pytest.raises(MismatchError, match="its chat template has no roles query and document"):
        CrossEncoderScorer(str(tmp_path), device="cpu")


def test_monot5_scores_are_the_logits_of_true_and_false(tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    tokenizer = train_tokenizer(end="</s>", side="right", metaspace=True)
    size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    save(tmp_path, "T5ForConditionalGeneration", tokenizer, **size, decoder_start_token_id=0, eos_token_id=2)
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
