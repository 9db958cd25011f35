"""Language-model heads: logits equal to transformers, tied embeddings, and merging with the encoder."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from drtk.errors import DrtkError, MismatchError
from drtk.models.backbone import BackboneAdapter
from drtk.models.checkpoint import (
    digest_weights,
    load_encoder,
    load_masked_lm,
    load_trained_masked_lm,
    save_encoder,
    save_lm_head,
    save_pretrained_model,
)
from drtk.models.lm_head import LMHead, get_head_path, load_lm_head
from tests.backbone_families import FAMILIES, create_masked_lm, create_padded_batch, save_random_masked_lm
from tests.tiny_models import find_minilm, save_tiny_encoder


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_scores_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = save_random_masked_lm(family, tmp_path / "m")
    backbone, head, tokenizer = load_masked_lm(tmp_path / "m")
    ids, seen = create_padded_batch(model)
    logits = model(input_ids=ids, attention_mask=seen).logits
    hidden = BackboneAdapter(backbone).encode(ids, seen)[-1]
    torch.testing.assert_close(head.compute_logits(hidden), logits)
    features = head.compute_features(hidden)
    assert features.shape[-1] == head.weight.shape[1] == (16 if family == "electra" else 32)
    torch.testing.assert_close(features @ head.weight.T + head.bias, logits)
    assert len(tokenizer) == head.weight.shape[0]
    assert {name.partition(".")[0] for name, _ in head.named_parameters()} == {"dense", "norm", "bias"}  # tied
    assert head.weight is backbone.get_input_embeddings().weight
    assert not head.is_untrained


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_an_encoder_with_its_head_becomes_a_masked_language_model(family: str, tmp_path: Path) -> None:
    model = save_random_masked_lm(family, tmp_path / "m")
    ids, seen = create_padded_batch(model)
    logits = model(input_ids=ids, attention_mask=seen).logits
    text_encoder = load_encoder(tmp_path / "m")
    head = load_lm_head(tmp_path / "m", text_encoder.encoder.backbone)
    head.dense.weight.mul_(1.5)  # as training would change it
    head.bias.add_(0.25)
    save_encoder(text_encoder, tmp_path / "e")
    digest = digest_weights(tmp_path / "e")
    save_lm_head(head, tmp_path / "e")
    assert digest_weights(tmp_path / "e") == digest
    backbone, again, _ = load_masked_lm(tmp_path / "e")
    expected = head.compute_logits(text_encoder.encoder.backbone(input_ids=ids, attention_mask=seen).last_hidden_state)
    assert (expected - logits).abs().max() > 0.1
    torch.testing.assert_close(again.compute_logits(BackboneAdapter(backbone).encode(ids, seen)[-1]), expected)
    save_pretrained_model(*load_trained_masked_lm(tmp_path / "e"), tmp_path / "out")
    whole, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    torch.testing.assert_close(whole.eval()(input_ids=ids, attention_mask=seen).logits, expected)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("rivers")["input_ids"] == text_encoder.tokenizer("rivers")["input_ids"]
    assert AutoModel.from_pretrained(tmp_path / "out").config.model_type == family


def test_untied_output_embeddings_are_loaded(tmp_path: Path) -> None:
    model = save_random_masked_lm("bert", tmp_path / "m", tie_word_embeddings=False)
    with torch.no_grad():
        model.cls.predictions.decoder.weight.normal_()
    model.save_pretrained(tmp_path / "m")
    backbone, head, _ = load_masked_lm(tmp_path / "m")
    assert head.weight is head.own_weight
    ids, seen = create_padded_batch(model)
    with torch.no_grad():
        found = head.compute_logits(BackboneAdapter(backbone).encode(ids, seen)[-1])
        torch.testing.assert_close(found, model(input_ids=ids, attention_mask=seen).logits)


def test_an_encoder_without_a_head_gets_one() -> None:
    folder = Path(find_minilm())
    torch.manual_seed(1)
    backbone, head, _ = load_masked_lm(folder)
    assert head.is_untrained
    assert head.weight is backbone.embeddings.word_embeddings.weight
    assert head.dense.weight.std().item() == pytest.approx(0.02, rel=0.05)
    torch.manual_seed(1)
    torch.testing.assert_close(load_lm_head(folder, backbone).dense.weight, head.dense.weight)


def test_heads_that_are_missing_damaged_or_of_another_model_are_rejected(tmp_path: Path) -> None:
    from transformers import MPNetConfig, MPNetModel

    folder = save_tiny_encoder(tmp_path / "m")
    with pytest.raises(MismatchError, match="has no trained masked-LM head; train one with `drtk pretrain`"):
        load_trained_masked_lm(folder)
    backbone = load_encoder(folder).encoder.backbone
    narrow = create_masked_lm("bert", hidden_size=16)
    save_lm_head(LMHead(narrow, narrow.bert), folder)
    with pytest.raises(MismatchError, match=r"heads/lm_head\.safetensors: does not fit the model \(size mismatch for"):
        load_lm_head(folder, backbone)
    get_head_path(folder, "lm_head").write_bytes(b"no weights")
    with pytest.raises(DrtkError, match=r"heads/lm_head\.safetensors: cannot be read"):
        load_lm_head(folder, backbone)
    get_head_path(folder, "lm_head").unlink()
    config = MPNetConfig(vocab_size=400, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    MPNetModel(config).save_pretrained(folder)
    with pytest.raises(MismatchError, match="masked-LM heads of type mpnet are not supported"):
        load_masked_lm(folder)
