"""Devices, and models in 16 bits."""

import copy

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaModel, ModernBertConfig, ModernBertModel

from drtk.errors import DrtkError
from drtk.models.device import choose_device, copy_to_device, is_out_of_memory, move_model

CPU, LENGTH = torch.device("cpu"), 2048
SIZE = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SIZE |= {"max_position_embeddings": LENGTH, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (LlamaModel, LlamaConfig(**SIZE)),
        (ModernBertModel, ModernBertConfig(**SIZE, cls_token_id=2, sep_token_id=3)),
    ],
)
def test_positions_up_to_2048_are_equal_in_bfloat16_and_float32(model_class: type, config: object) -> None:
    torch.manual_seed(3)
    exact = model_class(config).eval()
    half = copy.deepcopy(exact)
    move_model(half, CPU, torch.bfloat16)
    assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
    ids = torch.randint(4, 50, (1, LENGTH))
    states, angles = [], []
    for model in (exact, half):
        model.rotary_emb.register_forward_hook(lambda *call: angles.append(torch.stack(call[-1]).float()))
        with torch.no_grad():
            states.append(model(input_ids=ids).last_hidden_state[0].float())
    assert torch.cosine_similarity(*states).min() > 0.999
    torch.testing.assert_close(angles[1], angles[0], rtol=0, atol=0.01)  # of cosines and sines


def test_auto_prefers_cuda_then_apple_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert choose_device("auto").type == expected


def test_out_of_memory_on_a_gpu_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    for message in (
        "MPS backend out of memory (MPS allocated: 8.00 GB, max allowed: 9.07 GB).",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    ):
        assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError("shapes differ"))

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 MiB.")

    model = torch.nn.Linear(2, 2)
    monkeypatch.setattr(model, "to", fail)
    message = "^cpu: out of memory; free memory, or use another `device` or a smaller model$"
    with pytest.raises(DrtkError, match=message):
        move_model(model, CPU, torch.float32)


@pytest.mark.parametrize("name", ["cuda:7", "mps", "gpu"])
def test_unavailable_device_is_one_line(name: str) -> None:
    with pytest.raises(DrtkError, match=f"^`device` {name}: not available; use auto or cpu$"):
        choose_device(name)


def test_arrays_are_copied_from_pinned_memory_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("drtk.models.device._ASYNCHRONOUS", ("cpu",))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: calls.append("pinned") or tensor)
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, **options: calls.append(options) or tensor)
    copied = copy_to_device({"ids": np.arange(3)}, torch.device("cpu"))
    assert copied["ids"].tolist() == [0, 1, 2]
    assert calls == ["pinned", {"non_blocking": True}]
