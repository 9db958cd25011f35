"""Presets agree with slow references, term by term, on texts of random lengths with gaps."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from drtk.pretraining import masking
from drtk.pretraining.dataset import Batch
from drtk.pretraining.decoders import build_visible_mask
from drtk.pretraining.masking import delete_tokens_at
from drtk.pretraining.network import EncodedBatch
from tests.pretraining_setup import MAX_LENGTH, PretrainingFiles, PretrainingSetup, compute_gradients, wrap_masked_lm
from tests.reference.bert import hidden_states
from tests.reference.cocondenser import cocondenser
from tests.reference.condenser import condenser
from tests.reference.cotmae import cotmae, cotmae_causal
from tests.reference.diffcse import Edited, deletion_labels, diffcse, difference_labels, insertion_labels
from tests.reference.master import Tasks, master
from tests.reference.means import in_batch_losses, token_mean, with_total
from tests.reference.mlm import mlm
from tests.reference.retromae import retromae
from tests.reference.simcse import simcse
from tests.reference.simlm import simlm, simlm_ae, simlm_joint, simlm_mlm, simlm_rtd
from tests.reference.text import Text

Terms = dict[str, Tensor]
ROWS = 6
CHANGED = ("changed_one", "changed_two")


class Scene:
    """A preset on a batch, in the form of the references: texts as lists, modules by the names of transformers."""

    def __init__(self, stage: PretrainingSetup) -> None:
        self.stage, self.network = stage, stage.network
        self.removed: dict[tuple[tuple[int, ...], ...], list[list[int]]] = defaultdict(list)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(masking, "delete_tokens_at", self._delete)
            self.batch: Batch = stage.batch(*range(ROWS))
        self.views: EncodedBatch = stage.views(self.batch)
        for token_loss in self.network.recoveries.values():
            token_loss.target.chunk = 5  # of corrective LM
        self.model: Any = wrap_masked_lm(self.network.backbone, self.network.head)

    def _delete(self, text: Any, removed: Any) -> Any:
        """Delete tokens, and record the positions."""
        results = delete_tokens_at(text, removed)
        self.removed[tuple(text.ids.tolist()), tuple(results.text.ids.tolist())].append(removed.nonzero()[0].tolist())
        return results

    def edits(self, name: str, row: int, inputs: list[int]) -> list[int]:
        """Return the labels of an edited slot, computed from the original and the edited passage."""
        wanted, slot = self.network.composition.slots[name], self.batch[name]
        room = MAX_LENGTH - 2 if wanted.corruption == "deleted" else int((MAX_LENGTH - 2) / (1 + wanted.rate))
        first, *content, last = self.texts("one", [row])[0].original
        before = [first, *content[:room], last]
        size = int(slot.attention[row].sum())
        if size < len(before):
            return deletion_labels(len(before), self.removed[tuple(before), tuple(inputs)].pop(0))
        if size > len(before):
            added = [place for place in range(size) if slot.masked[row, place]]
            assert [token for place, token in enumerate(inputs) if place not in added] == before
            return insertion_labels(size, added)
        return difference_labels(before, inputs)

    def rows(self, *slots: str) -> list[int]:
        """Return the examples that have all these slots."""
        return [row for row in range(ROWS) if all(bool(self.batch[name].present[row]) for name in slots)]

    def texts(self, name: str, rows: list[int] | None = None) -> list[Text]:
        """Return the texts of a slot as lists without padding. rows: examples; by default all with the slot"""
        slot, ids = self.batch[name], self.views.get_ids(name)
        results = []
        for row in self.rows(name) if rows is None else rows:
            size = int(slot.attention[row].sum())
            places = range(size)
            results.append(
                Text(
                    slot.original_ids[row, :size].tolist(),
                    ids[row, :size].tolist(),
                    [place for place in places if slot.masked[row, place]],
                    [place for place in places if not slot.content[row, place]],
                    [] if slot.types is None else slot.types[row, :size].tolist(),
                )
            )
        return results

    def pairs(self, first: str, second: str) -> list[tuple[Text, Text]]:
        """Return the texts of two slots for the examples that have both."""
        rows = self.rows(first, second)
        return list(zip(self.texts(first, rows), self.texts(second, rows), strict=True))

    def layers(self, term: str) -> list[nn.Module]:
        """Return the decoder layers of an objective."""
        return list(self.network.recoveries[term].reader.layers)

    def target(self, term: str) -> Any:
        """Return the target of an objective."""
        return self.network.recoveries[term].target


def compute_cocondenser(scene: Scene) -> Terms:
    head = scene.layers("head") if "head" in scene.network.recoveries else None
    results = cocondenser(scene.model, head, scene.pairs("a", "b"), skip=2)
    if scene.rows("a") == scene.rows("b"):
        return results
    texts = [*scene.texts("a"), *scene.texts("b")]
    terms = mlm(scene.model, texts) if head is None else condenser(scene.model, head, texts, skip=2)
    return add_terms(terms, {"contrast": results["contrast"]})


def compute_cotmae(scene: Scene) -> Terms:
    reader, pairs = scene.network.recoveries["context"].reader, scene.pairs("passage", "context")
    if hasattr(reader, "blocks"):  # the causal decoder
        blocks = [convert_to_gpt2(block, heads=2) for block in reader.blocks]
        terms = cotmae_causal(scene.model, blocks, pairs, width=3, norm=reader.norm)
    else:
        terms = cotmae(scene.model, scene.layers("context"), pairs)
    return add_terms(mlm(scene.model, scene.texts("passage")), {"context": terms["context"]})


def convert_to_gpt2(block: Any, *, heads: int) -> GPT2Block:
    """Return a block of the causal decoder as a GPT-2 block of transformers, whose matrices are transposed."""
    width, inner = block.out.in_features, block.up.out_features
    config = GPT2Config(n_embd=width, n_head=heads, n_inner=inner)
    config._attn_implementation = "eager"
    made = GPT2Block(config, layer_idx=0).eval()
    names = {"attn.c_attn": "qkv", "attn.c_proj": "out", "mlp.c_fc": "up", "mlp.c_proj": "down"}
    with torch.no_grad():
        for theirs, ours in names.items():
            made.get_submodule(theirs).weight.copy_(block.get_submodule(ours).weight.T)
            made.get_submodule(theirs).bias.copy_(block.get_submodule(ours).bias)
    made.ln_1, made.ln_2 = block.first_norm, block.second_norm
    return made


def compute_retromae(scene: Scene) -> Terms:
    slot = scene.batch["decoder"]
    assert slot.attention_mask is not None
    visible = build_visible_mask(slot.attention_mask, slot.attention)
    texts = scene.texts("encoder")
    seen = []
    for row, text in enumerate(texts):
        size = len(text.original)
        seen.append([[column for column in range(size) if visible[row, place, column]] for place in range(size)])
    reader = scene.network.recoveries["decoder"].reader
    return retromae(scene.model, reader.layer, texts, seen)


def compute_condenser(scene: Scene) -> Terms:
    return condenser(scene.model, scene.layers("head"), scene.texts("passage"), skip=2)  # half of 4 layers


def compute_simlm(reference: Callable[..., Terms]) -> Callable[[Scene], Terms]:
    return lambda scene: reference(scene.model, scene.layers("decoder"), scene.pairs("encoder", "decoder"))


def compute_simlm_rtd(scene: Scene) -> Terms:
    heads = {f"{term}_head": scene.target(term).head for term in ("encoder", "decoder")}
    return simlm_rtd(scene.model, scene.layers("decoder"), scene.pairs("encoder", "decoder"), **heads)


def compute_simlm_ae(scene: Scene) -> Terms:
    return simlm_ae(
        scene.model, scene.layers("decoder"), scene.texts("encoder"), mask=scene.stage.tokenizer.mask_token_id
    )


def compute_simlm_joint(scene: Scene) -> Terms:
    inputs = scene.batch["encoder"].input_ids
    masked = [
        Text(text.original, inputs[row, : len(text.original)].tolist(), text.hidden, text.special, text.types)
        for row, text in enumerate(scene.texts("encoder"))
    ]
    generator = wrap_masked_lm(scene.network.generator.backbone, scene.network.generator.head)
    pairs = scene.pairs("encoder", "decoder")
    return simlm_joint(scene.model, scene.layers("decoder"), pairs, generator=generator, masked=masked)


def compute_master(scene: Scene) -> Terms:
    passes = {"mlm": "passage", "mlm_cmp": "half", "mlm_npr": "before"}
    targets = {"mkp": "keywords", "cmp": "complement", "npr": "next", "dor": "queries", "gor": "continuation"}
    examples = [
        Tasks(
            {task: scene.texts(slot, [row])[0] for task, slot in passes.items()},
            {task: scene.texts(slot, [row])[0] for task, slot in targets.items() if row in scene.rows(slot)},
        )
        for row in range(ROWS)
    ]
    return master(scene.model, {task: scene.layers(task) for task in targets}, examples)


def compute_simcse(scene: Scene) -> Terms:
    return simcse(scene.model, wrap_modules(scene), get_ids(scene, "one", "two"), running=True)


def wrap_modules(scene: Scene) -> list[nn.Module]:
    """Return the layers of the projector."""
    return list(scene.network.projectors["head"].layers)


def get_ids(scene: Scene, *slots: str) -> Any:
    """Return the input ids of the texts of each slot."""
    return tuple([text.inputs for text in scene.texts(name)] for name in slots)


def compute_diffcse(scene: Scene, *, slots: Sequence[str] = CHANGED, **options: Any) -> Terms:
    edited = []
    for number, name in enumerate(slots):
        view = number % 2
        is_edited = scene.network.composition.slots[name].corruption in ("inserted", "deleted", "any")
        for row, text in zip(scene.rows(name), scene.texts(name), strict=True):
            edits = scene.edits(name, row, text.inputs) if is_edited else difference_labels(text.original, text.inputs)
            edited.append(Edited(text.inputs, edits, row, view))
    return diffcse(
        scene.model,
        wrap_modules(scene),
        get_ids(scene, "one", "two"),
        discriminator=scene.network.recoveries["difference"].reader.encoder,
        head=scene.target("difference").head,
        edited=edited,
        augmented=get_ids(scene, "other")[0] if "other" in scene.batch else None,
        weight=0.005,
        length=MAX_LENGTH,
        running=True,
        **options,
    )


def compute_words(scene: Scene, *, corrected: bool) -> Terms:
    """Return the terms of conditional masked LM or corrective LM."""
    target = scene.target("difference")
    edited = []
    for view, name in enumerate(("changed_one", "changed_two")):
        for row, text in enumerate(scene.texts(name)):
            predict = text.content() if corrected else text.hidden
            edited.append(Edited(text.inputs, text.original, row, view, predict))
    return diffcse(
        scene.model,
        wrap_modules(scene),
        get_ids(scene, "one", "two"),
        discriminator=scene.network.recoveries["difference"].reader.encoder,
        head=target.head.compute_logits,
        edited=edited,
        task="clm" if corrected else "mlm",
        copy_head=target.gate if corrected else None,
        weight=0.005,
        running=True,
    )


def compute_ict(scene: Scene) -> Terms:
    left, right = (
        [encode_text(scene, text) for text in side] for side in zip(*scene.pairs("query", "context"), strict=True)
    )
    return with_total({"contrast": token_mean([in_batch_losses(left, right, temperature=1.0, dot=True)])})


def encode_text(scene: Scene, text: Text) -> Tensor:
    return hidden_states(scene.model.bert, text.inputs, [])[-1][0]


def compute_mixture(scene: Scene) -> Terms:
    query = cotmae(scene.model, scene.layers("query"), scene.pairs("passage", "query"))["context"]
    pairs = scene.pairs("passage", "query")
    left, right = ([encode_text(scene, text) for text in side] for side in zip(*pairs, strict=True))
    terms = {
        "mlm": mlm(scene.model, scene.texts("passage"))["mlm"],
        "query": query,
        "contrast": token_mean([in_batch_losses(left, right, temperature=0.05)]),
    }
    return terms | {"total": terms["mlm"] + terms["query"] + 0.1 * terms["contrast"]}


def add_terms(terms: Terms, more: Terms) -> Terms:
    return with_total({name: value for name, value in terms.items() if name != "total"} | more)


OTHERS = ('slots.other={view="passage", corruption="deleted", rate=0.3}', 'projectors.head.slots=["one","two","other"]')
ANY = tuple(f"slots.{slot}.corruption=any" for slot in CHANGED)
BOTH = (
    *(f'slots.{slot}={{view="next", masking="bernoulli", rate=0.3, corruption="replaced"}}' for slot in ("n1", "n2")),
    'objective.2.slot=["changed_one","changed_two","n1","n2"]',
    'objective.2.source=["one","two","one","two"]',
)
JOINT = ("generator.mode=joint", "generator.slot=encoder")
TOKENS = ("objective.2.classes=1", "objective.2.reduction=mean")
MASKED = (*(f"slots.{slot}.corruption=bert" for slot in CHANGED), "objective.2.target=masked", *TOKENS)
SHARED = ('decoders.one={use="decoder"}', *(f"objective.{number}.decoder=one" for number in range(4, 9)))

STS = "diffcse-sts-bert"
CASES: dict[str, tuple[str, tuple[str, ...], Callable[[Scene], Terms]]] = {
    "mlm": ("mlm", (), lambda scene: mlm(scene.model, scene.texts("passage"))),
    "condenser": ("condenser", (), compute_condenser),
    "cocondenser": ("cocondenser", (), compute_cocondenser),
    "qac-cocondenser": ("qac-cocondenser", (), compute_cocondenser),
    "cotmae": ("cotmae", (), compute_cotmae),
    "qac-cotmae-released": ("qac-cotmae-released", (), compute_cotmae),
    "retromae": ("retromae", (), compute_retromae),
    "simlm": ("simlm", (), compute_simlm(simlm)),
    "simlm-rtd": ("simlm-rtd", (), compute_simlm_rtd),
    "simlm-ae": ("simlm-ae", (), compute_simlm_ae),
    "simlm, joint generator": ("simlm", JOINT, compute_simlm_joint),
    "master": ("master", (), compute_master),
    "simcse": ("simcse", (), compute_simcse),
    "diffcse": (STS, (), compute_diffcse),
    "diffcse, corrective": (STS, ("objective.2.target=corrected", *TOKENS), partial(compute_words, corrected=True)),
    "diffcse, same and next sentence": (STS, BOTH, partial(compute_diffcse, slots=(*CHANGED, "n1", "n2"))),
    "diffcse, sum": (STS, ("objective.2.reduction=sum",), partial(compute_diffcse, reduction="sum")),
    "diffcse, all": (STS, ANY, compute_diffcse),
    "ict": ("ict", (), compute_ict),
    "mixture-example": ("mixture-example", (), compute_mixture),
}
# Variants of the above in views, rates, titles or reductions.
VARIANTS: dict[str, tuple[str, tuple[str, ...], Callable[[Scene], Terms]]] = {
    "simlm-mlm": ("simlm-mlm", (), compute_simlm(simlm_mlm)),
    "retromae, titles": ("retromae", ("title=segment",), compute_retromae),
    "master, one decoder": ("master", SHARED, compute_master),
    "diffcse, only masked": (STS, ("generator.scope=masked", "generator.decode=sample"), compute_diffcse),
    "diffcse, conditional mlm": (STS, MASKED, partial(compute_words, corrected=False)),
    **{
        f"diffcse, as {role}": (
            STS,
            (*OTHERS, f'objective.1.extra_{role}s=["other"]'),
            partial(compute_diffcse, augmented_as=role),
        )
        for role in ("negative", "positive")
    },
}
WITH_GAPS = {"qac-cocondenser": "b", "cotmae": "context", "qac-cotmae-released": "context", "master": "next"}
WITH_GAPS |= {"mixture-example": "query", "ict": "query", "diffcse, same and next sentence": "n1"}


def assert_terms_agree(found: Terms, expected: Terms) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].item() == pytest.approx(expected[name].item(), abs=2e-5, rel=5e-5), name


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in VARIANTS)])
def test_losses_of_presets_equal_reference_implementations(case: str, files: PretrainingFiles):
    preset, changes, reference = (CASES | VARIANTS)[case]
    scene = Scene(files.prepare(preset, *changes).randomize_weights())
    gap = WITH_GAPS.get(case) or WITH_GAPS.get(preset)
    assert gap is None or 0 < len(scene.rows(gap)) < ROWS  # some examples lack it, and not all
    assert len({len(text.original) for text in scene.texts(next(iter(scene.batch)))}) > 2
    with torch.no_grad():
        assert_terms_agree(scene.stage.terms(scene.batch), reference(scene))


def test_batch_norm_in_training_uses_statistics_of_both_views(files: PretrainingFiles):
    """DiffCSE's released code projects both views as one batch; without dropout, only their texts differ here."""
    changes = ('slots.two={view="passage", corruption="deleted", rate=0.3}', "projectors.head.kind=bn")
    scene = Scene(files.prepare("simcse", *changes).randomize_weights().disable_dropout())
    scene.network.train()
    expected = simcse(scene.model, wrap_modules(scene), get_ids(scene, "one", "two"))
    assert_terms_agree(scene.stage.terms(scene.batch), expected)


@pytest.mark.parametrize("case", ["simlm", "cocondenser"])
def test_gradients_equal_those_of_the_reference(case: str, files: PretrainingFiles):
    preset, changes, reference = CASES[case]
    scene = Scene(files.prepare(preset, *changes).randomize_weights())
    actual = compute_gradients(scene.stage, scene.stage.terms(scene.batch)["total"])
    expected = compute_gradients(scene.stage, reference(scene)["total"])
    assert sum(float(slope.abs().sum()) > 0 for slope in expected.values()) > 60
    for name, slope in expected.items():
        scale = max(1.0, float(slope.abs().max()))
        assert float((actual[name] - slope).abs().max()) < 1e-4 * scale, name
