"""Every user of a model in 16 bits keeps the frequencies of rotary embeddings (RoPE) in float32."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import drtk
from drtk.expansion.term_weights.bprop import FirstTokenAttention
from drtk.models.config import CrossEncoderSettings, EncodeSettings, GenerationSettings
from drtk.models.cross_encoder import CrossEncoderScorer, init_cross_encoder, save_cross_encoder
from drtk.models.generation import TextGenerator
from drtk.models.library_embedder import SentenceTransformersEmbedder
from drtk.models.term_weighter import TermWeightPredictor, init_term_weight_model
from drtk.query_expansion.config import ReadSettings
from drtk.query_expansion.fid_reader import AnswerReader
from drtk.retrieval.encode import Embedder
from drtk.runtime.progress import silence_transformers
from tests.backbone_families import save_random_masked_lm
from tests.tiny_models import save_tiny_encoder

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
SIZE |= {"intermediate_size": 32, "max_position_embeddings": 64, "vocab_size": 500}
SETTINGS: Any = {"precision": "bfloat16"}
Folders = dict[str, Path]
pytest.importorskip("sentence_transformers")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Return folders of a ModernBERT, the same for sentence-transformers and as a cross-encoder, a Llama, and a T5Gemma."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import (
        AutoTokenizer,
        LlamaConfig,
        LlamaForCausalLM,
        T5GemmaConfig,
        T5GemmaForConditionalGeneration,
    )

    root = tmp_path_factory.mktemp("rotary")
    folders = {name: root / name for name in ("encoder", "library", "cross-encoder", "generator", "reader")}
    save_random_masked_lm("modernbert", folders["encoder"], max_position_embeddings=2048)
    scorer = init_cross_encoder(str(folders["encoder"]), max_length=None, seed=1, default_length=32)
    save_cross_encoder(scorer, folders["cross-encoder"])
    with silence_transformers():
        modules = [Transformer(str(folders["encoder"])), Pooling(32, "mean")]
        SentenceTransformer(modules=modules, device="cpu").save(str(folders["library"]))
        tokenizer = AutoTokenizer.from_pretrained(save_tiny_encoder(root / "bert"))
        tokenizer.eos_token = "[SEP]"
        part = SIZE | {"layer_types": ["full_attention"] * 2}
        special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        models = {
            "generator": LlamaForCausalLM(LlamaConfig(**SIZE, **special)),
            "reader": T5GemmaForConditionalGeneration(
                T5GemmaConfig(encoder=dict(part), decoder=dict(part), vocab_size=500, **special)
            ),
        }
        for name, model in models.items():
            model.save_pretrained(folders[name])
            tokenizer.save_pretrained(folders[name])
    return folders


def load_library_model(folders: Folders) -> Any:
    settings = EncodeSettings(**SETTINGS)
    return SentenceTransformersEmbedder(
        str(folders["library"]), role="passage", settings=settings, device="cpu"
    )._network


def load_embedder(folders: Folders) -> Any:
    embedder: Any = Embedder(str(folders["encoder"]), role="passage", settings=EncodeSettings(**SETTINGS), device="cpu")
    return embedder._encoder.backbone


def load_term_weight_model(folders: Folders) -> Any:
    model = init_term_weight_model(folders["encoder"], "deepct", seed=1)
    TermWeightPredictor(model, device="cpu", dtype="bfloat16")
    return model.module.backbone


def load_attention(folders: Folders) -> Any:
    sizes: Any = {"max_length": None, "batch_tokens": None}
    return FirstTokenAttention(folders["encoder"], device="cpu", dtype="bfloat16", **sizes)._model


def load_scorer(folders: Folders) -> Any:
    settings = CrossEncoderSettings(**SETTINGS)
    return CrossEncoderScorer(str(folders["cross-encoder"]), settings=settings, device="cpu")._model


def load_generator(folders: Folders) -> Any:
    settings = GenerationSettings(**SETTINGS, max_new_tokens=4)
    return TextGenerator(str(folders["generator"]), settings, seed=1, device="cpu")._model.model


def load_reader(folders: Folders) -> Any:
    settings = ReadSettings(**SETTINGS, max_length=32)
    return AnswerReader(str(folders["reader"]), None, settings, "cpu")._reader.model


LOADERS: dict[str, Callable[[Folders], Any]] = {
    "drtk/retrieval/encode.py": load_embedder,
    "drtk/models/library_embedder.py": load_library_model,
    "drtk/models/cross_encoder.py": load_scorer,
    "drtk/models/generation.py": load_generator,
    "drtk/query_expansion/fid_reader.py": load_reader,
    "drtk/models/term_weighter.py": load_term_weight_model,
    "drtk/expansion/term_weights/bprop.py": load_attention,
}


@pytest.mark.parametrize("file", LOADERS)
def test_weights_are_bfloat16_and_rotary_frequencies_float32(file: str, folders: Folders) -> None:
    model = LOADERS[file](folders)
    frequencies = {buffer.dtype for name, buffer in model.named_buffers() if name.endswith("inv_freq")}
    assert frequencies == {torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_every_file_that_chooses_a_dtype_for_a_model_is_in_the_test_above() -> None:
    package = Path(drtk.__file__).parent
    chosen = {
        f"drtk/{path.relative_to(package)}"
        for path in package.rglob("*.py")
        if re.search(r"from drtk.models.device import .*\bchoose_dtype\b", path.read_text())
    }
    assert chosen == LOADERS.keys()


def test_positions_of_a_library_model_are_those_of_float32_up_to_2048(folders: Folders) -> None:
    from sentence_transformers import SentenceTransformer

    angles: list[Any] = []
    for network in (load_library_model(folders), SentenceTransformer(str(folders["library"]), device="cpu")):
        backbone = network[0].auto_model
        backbone.rotary_emb.register_forward_hook(lambda *call: angles.append(torch.stack(call[-1]).float()))
        with torch.inference_mode():
            backbone(torch.full((1, 2048), 7))
    assert len(angles) == 4  # of layers with full and with local attention
    for found, expected in zip(angles[:2], angles[2:], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0.01)  # of cosines and sines
