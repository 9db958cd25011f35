"""Evaluation on held-out passages: losses and bottleneck gain."""

import pytest
import torch

from drtk.pretraining.evaluation import evaluate_network, regroup_rows
from drtk.pretraining.network import EncodedBatch
from tests.pretraining_setup import PretrainingFiles

CPU = torch.device("cpu")


def test_held_out_losses_are_means_over_all_batches(files: PretrainingFiles):
    stage = files.prepare("master").randomize_weights()
    whole, parts = stage.batch(*range(8)), [stage.batch(*range(3)), stage.batch(*range(3, 8))]
    with torch.no_grad():
        expected = stage.terms(whole)
    actual = evaluate_network(stage.network, parts, CPU)
    for name in ("mlm", "mkp", "npr", "dor"):
        assert actual[f"held_out_{name}"] == pytest.approx(expected[name].item(), abs=1e-5)


def test_gain_is_loss_with_other_vectors_minus_loss_with_own(files: PretrainingFiles):
    stage = files.prepare("simlm").randomize_weights()
    batch = stage.batch()
    encoded = stage.views(batch)
    with torch.no_grad():
        others = EncodedBatch(stage.network, batch, {"encoder": encoded.get_vectors("encoder").roll(1, dims=0)})
        token_loss = stage.network.recoveries["decoder"]
        gain = (token_loss(others) - token_loss(encoded)) / token_loss.count_labels(batch)
    actual = evaluate_network(stage.network, [batch], CPU)
    assert actual["gain_decoder"] == pytest.approx(gain.item(), abs=1e-5)
    assert abs(actual["gain_decoder"]) > 1e-3
    assert "gain_encoder" not in actual


def test_held_out_contrastive_loss_does_not_depend_on_batch_sizes(files: PretrainingFiles):
    stage = files.prepare("qac-cocondenser").randomize_weights()
    whole = evaluate_network(stage.network, [stage.batch(*range(8))], CPU)
    parts = evaluate_network(stage.network, [stage.batch(0, 1, 2), stage.batch(3, 4), stage.batch(5, 6, 7)], CPU)
    assert whole["held_out_contrast"] > 0.1
    assert parts["held_out_contrast"] == pytest.approx(whole["held_out_contrast"], abs=1e-5)


@pytest.mark.parametrize(("counts", "groups"), [([32] * 4 + [2], [64, 64, 2]), ([100, 29], [64, 64]), ([1], [])])
def test_regroup_drops_a_single_last_row(counts: list[int], groups: list[int]):
    batches, first = [], 0
    for count in counts:
        rows = torch.arange(first, first + count)
        batches.append(({"(a)": rows[:, None].float()}, {"a": rows % 2 == 0}))
        first += count
    actual = list(regroup_rows(batches))
    assert [len(present["a"]) for _, present in actual] == groups
    numbers = [number for vectors, _ in actual for number in vectors["(a)"][:, 0].tolist()]
    assert numbers == list(range(sum(groups)))
    assert all(torch.equal(vectors["(a)"][:, 0] % 2 == 0, present["a"]) for vectors, present in actual)


def test_gain_of_condenser_replaces_the_last_cls_state(files: PretrainingFiles):
    stage = files.prepare("condenser").randomize_weights()
    batch = stage.batch()
    encoded = stage.views(batch)
    token_loss = stage.network.recoveries["head"]
    with torch.no_grad():
        late = encoded.get_states("passage")[-1]
        own, other = token_loss(encoded), token_loss(encoded, other_sources=True)
        swapped = stage.views(batch)
        states = list(encoded.get_states("passage"))
        states[-1] = torch.cat([late[:, :1].roll(1, dims=0), late[:, 1:]], dim=1)
        swapped._states["passage"] = states
        assert other.item() == pytest.approx(token_loss(swapped).item(), abs=1e-4)
    actual = evaluate_network(stage.network, [batch], CPU)
    assert actual["gain_head"] == pytest.approx(((other - own) / token_loss.count_labels(batch)).item(), abs=1e-5)
    assert abs(actual["gain_head"]) > 1e-3
    assert "gain_mlm" not in actual
