"""Settings of the shipped fine-tuning presets."""

from dataclasses import asdict, fields
from typing import Any

import pytest

from drtk.config import list_preset_names, load_preset, merge_settings
from drtk.training.config import RerankerConfig, RetrieverConfig

# lr, batch, epochs (a fraction) or steps, warm-up, negatives, query length, passage length, loss, similarity, temperature, title
INFONCE, SIMLM = ("infonce", "dot", 1.0), ("simlm-full", "cosine", 0.02)
KL = ("kl", "cosine", 0.02)
RETRIEVERS: dict[str, tuple[Any, ...]] = {
    # 6.4, Table 12
    "simlm-r1": (2e-5, 64, 3.0, 1000.0, 15, 32, 144, *SIMLM, "segment"),
    "simlm-r2": (2e-5, 64, 3.0, 1000.0, 15, 32, 144, *SIMLM, "segment"),
    "simlm-distill": (3e-5, 64, 6.0, 1000.0, 23, 32, 144, *KL, "segment"),
    "simlm-r1-official": (2e-5, 64, 3.0, 1000.0, 15, 32, 144, *SIMLM, "segment"),
    "simlm-r2-official": (2e-5, 64, 3.0, 1000.0, 15, 32, 144, *SIMLM, "segment"),
    "simlm-distill-official": (3e-5, 64, 6.0, 1000.0, 23, 32, 144, *KL, "segment"),
    # 6.6: as printed, and as released
    "simlm-nq-r1": (5e-6, 64, 20_000, 1000.0, 15, 32, 192, *SIMLM, "segment"),
    "simlm-nq-r2": (5e-6, 64, 20_000, 1000.0, 15, 32, 192, *SIMLM, "segment"),
    "simlm-nq-distill": (5e-6, 64, 20_000, 1000.0, 23, 32, 192, *KL, "segment"),
    "simlm-nq-r1-official": (1e-5, 64, 20_000, 1000.0, 15, 32, 192, *SIMLM, "segment"),
    "simlm-nq-r2-official": (1e-5, 64, 20_000, 1000.0, 15, 32, 192, *SIMLM, "segment"),
    "simlm-nq-distill-official": (3e-5, 64, 15.0, 1000.0, 15, 32, 192, *KL, "segment"),
    # 6.4: S1's script and the defaults of its code; of distillation 16 queries a device, 8 devices, 4 times: 512
    "master-official-r1": (5e-6, 64, 30_000, 1000.0, 31, 32, 128, *INFONCE, "sep"),
    "master-official-r2": (5e-6, 64, 40_000, 1000.0, 31, 32, 128, *INFONCE, "sep"),
    "master-official-distill": (5e-6, 512, 25_000, 0.1, 41, 32, 128, "kl", "dot", 1.0, "sep"),
    # 6.4 and 6.2: S3 by Tevatron; 5.9: coCondenser's figures
    "qac-r1": (2e-5, 64, 3.0, 0.1, 15, 32, 144, *INFONCE, "sep"),
    "qac-r2": (2e-5, 64, 3.0, 0.1, 15, 32, 144, *INFONCE, "sep"),
    "rom-ft": (5e-6, 64, 3.0, 0.1, 15, 32, 144, *INFONCE, "sep"),
    # 6.6: DPR
    "dpr-nq": (2e-5, 128, 40.0, 1237.0, 1, 256, 256, *INFONCE, "sep"),
    "dpr-nq-roberta-shared": (2e-5, 128, 40.0, 1237.0, 1, 256, 256, *INFONCE, "sep"),
    # naver/splade, conf/config_splade++_max.yaml and conf/config_splade++_cocondenser_ensembledistil.yaml
    "splade-max": (2e-5, 128, 150_000, 6000.0, 1, 256, 256, "infonce", None, 1.0, None),
    "splade-ensembledistil": (2e-5, 128, 150_000, 6000.0, 1, 256, 256, "margin-mse", None, 1.0, None),
    # no paper's: what docs/methods/fine-tuning.md says of it
    "quickstart": (2e-5, 16, 60, 0.1, 1, 32, 144, "infonce", "cosine", 0.05, None),
}
# no script of SimLM's passes a weight decay, and transformers' default is 0; DPR's and dpr-scale's files and MASTER's code say 0
NO_DECAY = {f"simlm-{where}{stage}-official" for where in ("", "nq-") for stage in ("r1", "r2", "distill")}
NO_DECAY |= {"dpr-nq", "dpr-nq-roberta-shared", *(f"master-official-{stage}" for stage in ("r1", "r2", "distill"))}
# what else they say; all that is named nowhere is the default of the command
DISTILLED = {"contrastive": "simlm-full", "contrastive_weight": 0.2}
# 6.6: a new order, gold passage, clip 2
DPR = {"negative_sampling": "shuffle", "positive_sampling": "first", "trainer": ("max_grad_norm=2.0",)}
MASTER = {"untied": True, "negative_sampling": "shuffle", "trainer": ("max_grad_norm=2.0",)}  # by lot; clip 2
SPLADE = {"head": "sparse", "flops_warmup": 50_000.0, "negative_sampling": "shuffle", "trainer": ("max_grad_norm=0.0",)}
BESIDES: dict[str, dict[str, Any]] = {
    "splade-max": SPLADE | {"query_flops_weight": 3e-4, "passage_flops_weight": 1e-4},
    "splade-ensembledistil": SPLADE | {"query_flops_weight": 0.5, "passage_flops_weight": 0.4},
    "simlm-distill": DISTILLED,
    "simlm-distill-official": DISTILLED,
    "simlm-nq-distill": DISTILLED,
    "simlm-nq-distill-official": {
        "contrastive": "simlm-full",
        "contrastive_weight": 1.0,
        "positive_sampling": "first",
        "temperature_warmup": True,
    },
    "simlm-nq-r1-official": {"temperature_warmup": True, "positive_sampling": "first"},
    "simlm-nq-r2-official": {"temperature_warmup": True, "positive_sampling": "first"},
    "master-official-r1": MASTER,
    "master-official-r2": MASTER,
    "master-official-distill": MASTER
    | {"contrastive": "infonce", "contrastive_weight": 0.2, "teacher_temperature": 1.0},
    "qac-r1": {"negative_sampling": "replacement"},
    "qac-r2": {"negative_sampling": "replacement"},
    "rom-ft": {"negative_sampling": "replacement"},
    "dpr-nq": DPR | {"untied": True},
    # 5.11: DiffCSE's figures, for whoever adds --aux diffcse
    "dpr-nq-roberta-shared": DPR | {"aux_generator": "distilroberta-base", "aux_rate": 0.30, "aux_weight": 0.005},
    "quickstart": {"log_steps": 5},
}

# lr, batch, epochs or steps, warm-up, weight decay, negatives, length of a pair, loss, title
RERANKERS: dict[str, tuple[Any, ...]] = {
    "simlm-reranker": (3e-5, 64, 3.0, 1000.0, 0.01, 63, 192, "listwise", "colon"),  # 6.4, Table 12, and 6.7
    "simlm-reranker-official": (3e-5, 64, 3.0, 1000.0, 0.0, 63, 192, "listwise", "colon"),
    "simlm-nq-reranker": (5e-6, 64, 20_000, 1000.0, 0.01, 63, 192, "listwise", "colon"),  # 6.6
    "simlm-nq-reranker-official": (3e-5, 32, 20_000, 1000.0, 0.0, 31, 224, "listwise", "colon"),
    "master-official-reranker": (1e-5, 64, 33_000, 2000.0, 0.0, 63, 160, "listwise", "colon"),  # 6.4
    "bert-passage-reranker": (5e-5, 128, 3.0, 10_000.0, 0.01, None, None, "bce", "none"),  # 7.10
    "hlatr": (1e-3, 256, 30.0, 0.1, 0.01, None, None, "listwise", None),  # 6.9
}
RERANKERS_BESIDES: dict[str, dict[str, Any]] = {
    "simlm-reranker-official": {"r_drop": True, "backward": 16},  # 6.7: the positive and the 15 highest negatives
    "simlm-nq-reranker-official": {"r_drop": True, "backward": 16, "first_positive": True},
    "master-official-reranker": {"trainer": ("max_grad_norm=2.0",)},
    "hlatr": {"kind": "hlatr", "depth": 100, "layers": 4, "hidden": 128, "heads": 2, "feedforward": 768, "dropout": 0.1}
    | {"dev_depth": 100, "dev_measure": "RR@10"},
}


def list_presets(command: str) -> list[str]:
    return [name for name in list_preset_names() if load_preset(name).command == command]


def check_settings(kind: type, name: str, values: dict[str, Any], length: float, besides: dict[str, Any]) -> None:
    """Check that a preset changes exactly these settings, and otherwise has the defaults of its command."""
    usual = {item.name: item.default for item in fields(kind)}
    values = values | ({"epochs": length} if isinstance(length, float) else {"max_steps": length}) | besides
    assert asdict(merge_settings(kind, load_preset(name).settings, {})) == usual | values


@pytest.mark.parametrize("name", list_presets("train-retriever"))
def test_retriever_presets_have_the_published_settings(name: str) -> None:
    lr, batch, length, warmup, negatives, query, passage, loss, similarity, temperature, title = RETRIEVERS[name]
    values = {"learning_rate": lr, "batch_size": batch, "warmup": warmup, "negatives": negatives, "query_length": query}
    values |= {"passage_length": passage, "loss": loss, "similarity": similarity, "temperature": temperature}
    values |= {"title": title, "weight_decay": 0.0 if name in NO_DECAY else 0.01}
    check_settings(RetrieverConfig, name, values, length, BESIDES.get(name, {}))


@pytest.mark.parametrize("name", list_presets("train-reranker"))
def test_reranker_presets_have_the_published_settings(name: str) -> None:
    lr, batch, length, warmup, decay, negatives, longest, loss, title = RERANKERS[name]
    values = {"learning_rate": lr, "batch_size": batch, "warmup": warmup, "weight_decay": decay, "negatives": negatives}
    values |= {"max_length": longest, "loss": loss, "title": title}
    check_settings(RerankerConfig, name, values, length, RERANKERS_BESIDES.get(name, {}))


def test_defaults_equal_table_12() -> None:
    usual, pairs = RetrieverConfig(), RerankerConfig()
    expected = (2e-5, 64, 3.0, 15, 0.01)
    assert (usual.learning_rate, usual.batch_size, usual.epochs, usual.negatives, usual.weight_decay) == expected
    expected = (3e-5, 64, 3.0, 0.01, 100)
    assert (pairs.learning_rate, pairs.batch_size, pairs.epochs, pairs.weight_decay, pairs.depth) == expected
