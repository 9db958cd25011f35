"""Every user of a model in 16 bits keeps the frequencies of rotary embeddings (RoPE) in float32."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, T5GemmaConfig, T5GemmaForConditionalGeneration

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
HALF: Any = {"precision": "bfloat16"}
library = pytest.importorskip("sentence_transformers")
parts = pytest.importorskip("sentence_transformers.sentence_transformer.modules")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a ModernBERT, the same for sentence-transformers and as a cross-encoder, a Llama, and a T5Gemma."""
    root = tmp_path_factory.mktemp("rotary")
    save_random_masked_lm("modernbert", root / "encoder", max_position_embeddings=2048)
    scorer = init_cross_encoder(f"{root}/encoder", max_length=None, seed=1, default_length=32)
    save_cross_encoder(scorer, root / "cross-encoder")
    with silence_transformers():
        modules = [parts.Transformer(f"{root}/encoder"), parts.Pooling(32, "mean")]
        library.SentenceTransformer(modules=modules, device="cpu").save(f"{root}/library")
        tokenizer = AutoTokenizer.from_pretrained(save_tiny_encoder(root / "bert"))
        tokenizer.eos_token = "[SEP]"
        part = SIZE | {"layer_types": ["full_attention"] * 2}
        special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        both = T5GemmaConfig(encoder=dict(part), decoder=dict(part), vocab_size=500, **special)
        models = {
            "generator": LlamaForCausalLM(LlamaConfig(**SIZE, **special)),
            "reader": T5GemmaForConditionalGeneration(both),
        }
        for name, model in models.items():
            model.save_pretrained(root / name)
            tokenizer.save_pretrained(root / name)
    return root


def load_term_weighter(folder: Path) -> Any:
    model = init_term_weight_model(folder, "deepct", seed=1)
    TermWeightPredictor(model, device="cpu", dtype="bfloat16")
    return model.module.backbone


ENCODE: Any = {"role": "passage", "settings": EncodeSettings(**HALF), "device": "cpu"}
SCORE: Any = {"settings": CrossEncoderSettings(**HALF), "device": "cpu"}
GENERATE = GenerationSettings(**HALF, max_new_tokens=4)
READ = ReadSettings(**HALF, max_length=32)
ATTEND: Any = {"device": "cpu", "dtype": "bfloat16", "max_length": None, "batch_tokens": None}
LOADERS: dict[str, Callable[[Path], Any]] = {
    "drtk/retrieval/encode.py": lambda root: Embedder(f"{root}/encoder", **ENCODE)._encoder.backbone,
    "drtk/models/library_embedder.py": lambda root: SentenceTransformersEmbedder(f"{root}/library", **ENCODE)._network,
    "drtk/models/cross_encoder.py": lambda root: CrossEncoderScorer(f"{root}/cross-encoder", **SCORE)._model,
    "drtk/models/generation.py": lambda root: TextGenerator(f"{root}/generator", GENERATE, seed=1, device="cpu")._model.model,
    "drtk/query_expansion/fid_reader.py": lambda root: AnswerReader(f"{root}/reader", None, READ, "cpu")._reader.model,
    "drtk/models/term_weighter.py": lambda root: load_term_weighter(root / "encoder"),
    "drtk/expansion/term_weights/bprop.py": lambda root: FirstTokenAttention(root / "encoder", **ATTEND)._model,
}  # fmt: skip


@pytest.mark.parametrize("file", LOADERS)
def test_weights_are_bfloat16_and_rotary_frequencies_float32(file: str, root: Path) -> None:
    model = LOADERS[file](root)
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
