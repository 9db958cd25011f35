"""Chunked cross-entropy over a vocabulary: value and gradients of the plain cross-entropy, with less memory."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from drtk.losses import language
from drtk.losses.language import linear_cross_entropy


def make_inputs(n: int = 37, *, width: int = 8, vocabulary: int = 53, seed: int = 0, **to: torch.dtype) -> list[Tensor]:
    """Return features, weight and bias with requires_grad, and labels."""
    draw = torch.Generator().manual_seed(seed)
    shapes = (n, width), (vocabulary, width), (vocabulary,)
    leaves = [torch.randn(*shape, generator=draw).to(**to).requires_grad_() for shape in shapes]
    labels = torch.randint(vocabulary, (n,), generator=draw)
    return [*leaves, labels]


def compute_plain_loss(features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(features, weight, bias).float(), labels, reduction="sum")


def compute_gradients(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, leaves))


def limit_chunk(monkeypatch: pytest.MonkeyPatch, tokens: int, *, vocabulary: int = 53) -> None:
    """Compute the logits of at most `tokens` tokens at once on the CPU."""
    monkeypatch.setattr(language, "_CPU_LOGITS", tokens * vocabulary)


@pytest.mark.parametrize("chunk", [4, 37, 1000])
def test_value_and_gradients_are_those_of_plain_cross_entropy(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_chunk(monkeypatch, chunk)
    *leaves, labels = make_inputs()
    loss, plain = linear_cross_entropy(*leaves, labels), compute_plain_loss(*leaves, labels)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    found, expected = (compute_gradients(each / 29, leaves) for each in (loss, plain))  # a mean has such a factor
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_loss_of_no_tokens_is_0() -> None:
    features, weight, bias, _ = make_inputs(0)
    loss = linear_cross_entropy(features, weight, bias, torch.empty(0, dtype=torch.long))
    assert loss.item() == 0.0
    assert all((gradient == 0).all() for gradient in compute_gradients(loss, [features, weight, bias]))


def test_confident_and_impossible_labels_have_exact_losses_in_half_precision() -> None:
    # gradients are p - 1, which rounded probabilities do not give; the loss of an impossible label is finite
    features = torch.tensor([[8.0], [-200.0]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16)
    loss = linear_cross_entropy(features, weight, None, torch.tensor([0, 0]))
    exact = torch.tensor([8.0, -200.0], dtype=torch.float64)
    assert loss.item() == pytest.approx(float(-F.logsigmoid(exact).sum()), rel=1e-6)
    (gradient,) = torch.autograd.grad(loss, [features])
    assert gradient[0, 0].item() == pytest.approx(-float(torch.sigmoid(-exact[0])), rel=0.01)
    assert gradient[1, 0].item() == -1.0


@pytest.mark.parametrize("how", ["autocast", "weights"])
def test_half_precision_is_summed_in_float32(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_chunk(monkeypatch, 64)
    *leaves, labels = make_inputs(400, dtype=torch.bfloat16 if how == "weights" else torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
        loss, plain = linear_cross_entropy(*leaves, labels), compute_plain_loss(*leaves, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(plain.item(), rel=2e-3)
    for actual, expected in zip(compute_gradients(loss, leaves), compute_gradients(plain, leaves), strict=True):
        assert actual.dtype == expected.dtype
        assert (actual - expected).float().norm() < 0.01 * expected.float().norm()  # bfloat16 has 8 bits: .4%


class CudaTensor(Tensor):
    """Tensor on the CPU that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("autocast", [True, False])
def test_liger_kernel_gets_the_compute_dtype(autocast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes: list[torch.dtype] = []

    class FakeLoss:
        def __init__(self, **settings: object) -> None:
            assert settings == {"reduction": "sum", "accum_dtype": torch.float32}

        def __call__(self, weight: Tensor, features: Tensor, labels: Tensor, bias: Tensor) -> Tensor:
            dtypes.extend(each.dtype for each in (weight, features, bias))
            return compute_plain_loss(features.as_subclass(Tensor), weight, bias, labels)

    name = "liger_kernel.transformers.fused_linear_cross_entropy"
    module: Any = ModuleType(name)
    module.LigerFusedLinearCrossEntropyLoss = FakeLoss
    for parent in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(language, "_load_liger_loss", language._load_liger_loss.__wrapped__)  # without its cache
    features, weight, bias, labels = make_inputs()
    expected = compute_plain_loss(features, weight, bias, labels).item()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = linear_cross_entropy(features.as_subclass(CudaTensor), weight, bias, labels)
    assert dtypes == [torch.bfloat16 if autocast else torch.float32] * 3
    assert loss.item() == pytest.approx(expected, rel=0.01)


class LargestTensor(TorchDispatchMode):
    """Context manager that records the number of values of the largest tensor."""

    values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.values = max(self.values, result.numel())
        return result


def test_memory_does_not_grow_with_tokens_times_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_chunk(monkeypatch, 10, vocabulary=500)
    *leaves, labels = make_inputs(300, vocabulary=500)
    saved: list[int] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.numel()) or tensor, lambda x: x)
    with hooks, LargestTensor() as largest:
        linear_cross_entropy(*leaves, labels).backward()
    assert sum(saved) == 300 * 8 + 500 * 8 + 500  # gradients of features, weight and bias
    assert largest.values == 10 * 500  # the logits of a chunk


def test_evaluation_computes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_chunk(monkeypatch, 4)
    *leaves, labels = make_inputs()
    with torch.no_grad():
        loss = linear_cross_entropy(*leaves, labels)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(compute_plain_loss(*leaves, labels).item(), rel=1e-5)
