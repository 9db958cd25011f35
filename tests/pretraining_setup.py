"""Set up pre-training runs of shipped presets, with a tiny encoder and a synthetic corpus."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from drtk.config import load_preset
from drtk.pretraining.assembly import build_network
from drtk.pretraining.composition import Composition
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.dataset import Batch, PretrainingData, PretrainingExample
from drtk.pretraining.example_builder import list_corpus_fields
from drtk.pretraining.network import EncodedBatch, PretrainingNetwork, compute_contrastive_losses
from drtk.pretraining.parse import apply_changes, parse_composition
from drtk.pretraining.trainer import Pretrainer
from drtk.text.token_dataset import TokenCorpus
from drtk.text.word_pieces import WordPieceTokenizer
from drtk.training.arguments import Schedule, build_training_arguments
from tests.enriched_corpus import write_enriched_corpus
from tests.tiny_models import save_tiny_encoder

MAX_LENGTH = 24


def write_corpus_with_gaps(path: Path, model: Path, *, documents: int = 12, seed: int = 3) -> Path:
    """Write an irregular `write_enriched_corpus`: passages and fields are missing, and lengths vary."""
    draw, tokenizer = random.Random(seed), WordPieceTokenizer(str(model))
    rows = [
        json.loads(line) for line in write_enriched_corpus(path, model, documents=documents).read_text().splitlines()
    ]
    kept = []
    for number, row in enumerate(rows):
        if number % 7 == 4 or number % 12 in (6, 8):
            continue  # documents have one to three passages, and some passages no successor
        if number % 3 == 1:
            row["queries"] = []
        if number % 6 == 2:
            row["continuations"] = []
        if number % 5 == 3:  # of one sentence, and short
            first = row["metadata"]["sentences"][0]
            row["text"] = row["text"][: first[1]]
            row["metadata"]["sentences"] = [first]
        row["queries"] = [" ".join(query.split()[: draw.randint(1, 3)]) for query in row["queries"]]
        row["weights"] = [round(draw.random(), 3) for _ in tokenizer([row["text"]])[0].ids]
        kept.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    return path


@dataclass(frozen=True)
class PretrainingFiles:
    """Input files of a pre-training run.

    model, generator: folders of encoders with the same vocabulary; corpus: a file with all fields that presets use
    """

    model: Path
    generator: Path
    corpus: Path

    @classmethod
    def create(cls, folder: Path) -> PretrainingFiles:
        """Write the files to an empty folder. The encoder has 4 layers and hidden size 16."""
        size = {"layers": 4, "hidden": 16, "heads": 2}
        model = save_tiny_encoder(folder / "model", **size)
        generator = save_tiny_encoder(folder / "generator", seed=5, layers=1, hidden=16, heads=2)
        _add_lm_head(model)
        _add_lm_head(generator)
        return cls(model, generator, write_corpus_with_gaps(folder / "corpus.jsonl", model))

    def content(self, preset: str, *changes: str) -> dict[str, Any]:
        """Return the content of a shipped preset with changes, and with `generator` if the preset uses a generator."""
        content = dict(load_preset(preset).content)
        if "generator" in content:
            changes = (f"generator.model={self.generator}", *changes)
        return apply_changes(content, changes)

    def prepare(
        self, preset: str, *changes: str, drop: Sequence[str] = (), seed: int = 7, **settings: Any
    ) -> PretrainingSetup:
        """Build the network and training data of a preset."""
        plan = parse_composition(self.content(preset, *changes), preset)
        return self.prepare_composition(plan.drop_objectives(drop) if drop else plan, seed=seed, **settings)

    def prepare_composition(self, plan: Composition, *, seed: int = 7, **settings: Any) -> PretrainingSetup:
        """Build the network and training data of a composition."""
        network, tokenizer = build_network(plan, self.model, seed=1)
        corpus = TokenCorpus.open(str(self.corpus), str(self.model), fields=list_corpus_fields(plan))
        chosen = PretrainSettings(**{"max_length": MAX_LENGTH, "batch_size": 6, "max_steps": 4} | settings)
        return PretrainingSetup(network.eval(), tokenizer, PretrainingData(corpus, plan, chosen, tokenizer, seed))


def create_files_without_dropout(folder: Path) -> PretrainingFiles:
    """Write files with a larger corpus and models without dropout, which depends on device, process and micro-batch."""
    files = PretrainingFiles.create(folder)
    for model in (files.model, files.generator):
        config = json.loads((model / "config.json").read_text())
        config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        (model / "config.json").write_text(json.dumps(config))
    write_corpus_with_gaps(files.corpus, files.model, documents=30)
    return files


def _add_lm_head(folder: Path) -> None:
    from drtk.models.checkpoint import load_masked_lm, save_lm_head

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        _, head, _ = load_masked_lm(folder)
    randomize_weights(head, seed=4)
    save_lm_head(head, folder)


@dataclass
class PretrainingSetup:
    """A network and its training data."""

    network: PretrainingNetwork
    tokenizer: Any
    data: PretrainingData

    @cached_property
    def rows(self) -> Any:
        """Return the examples of all training steps."""
        return self.data.build_dataset()

    def get_examples(self, *numbers: int) -> list[PretrainingExample]:
        """Return examples by their position in the training order."""
        return [self.rows[number] for number in numbers]

    def batch(self, *numbers: int) -> Batch:
        """Return a batch of examples; by default the first six."""
        return self.data.build_collator(10**6).collate(self.get_examples(*(numbers or range(6))))

    def randomize_weights(self, *, seed: int = 0) -> PretrainingSetup:
        """Randomize all weights widely, so that no term is 0 or 1 by chance; return self."""
        randomize_weights(self.network, seed=seed)
        if self.network.generator is not None:
            randomize_weights(self.network.generator, seed=seed + 1)
        return self

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss terms by name, and "total", their weighted sum, with gradients."""
        output = self.network(batch, self.network.count_labels(batch))
        present = {name: slot.present for name, slot in batch.items()}
        terms = output.losses | compute_contrastive_losses(self.network.composition, output.vectors, present)
        weights = self.network.loss_weights
        return terms | {"total": torch.stack([weights[name] * value for name, value in terms.items()]).sum()}

    def disable_dropout(self) -> PretrainingSetup:
        """Set all dropout probabilities to 0; return self."""
        for part in self.network.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        return self

    def trainer(self, folder: Path, micro: int = 10**6) -> Pretrainer:
        """Return the trainer of the command, on the CPU; checkpoints and log are written to `folder`."""
        settings, data = self.data.settings, self.data
        plain = {"learning_rate": 1e-3, "warmup": 0, "weight_decay": 0.0, "precision": "float32", "log_steps": 1}
        config, schedule = replace(settings, **plain, trainer=()), Schedule(settings.batch_size, data.schedule.steps, 1)
        arguments = build_training_arguments(config, schedule, folder, seed=data.seed, device="cpu")
        return Pretrainer(
            log=folder / "log.jsonl",
            steps_per_epoch=1,
            model=self.network,
            args=arguments,
            data_collator=self.data.build_collator(micro),
        )

    def step(self, trainer: Pretrainer, numbers: Sequence[int], *, micro: int) -> tuple[float, dict[str, Tensor]]:
        """Return loss and gradients of one training step on these examples, with micro-batches of `micro`."""
        self.network.zero_grad()
        loss = trainer.training_step(self.network, self.data.build_collator(micro)(self.get_examples(*numbers)))
        found = {
            name: weight.grad.clone() for name, weight in self.network.named_parameters() if weight.grad is not None
        }
        return float(loss), found

    def views(self, batch: Batch) -> EncodedBatch:
        """Encode a batch for the objectives."""
        return EncodedBatch(self.network, batch)


def randomize_weights(module: nn.Module, *, seed: int) -> None:
    """Set weights and running statistics to normal(0, .3), and the scales of norms to normal(1, .3)."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(module.named_parameters()):
            middle = 1.0 if weight.dim() == 1 and name.endswith("weight") else 0.0
            weight.copy_(middle + 0.3 * torch.randn(weight.shape, generator=draw))
        for name, buffer in sorted(module.named_buffers()):
            if name.endswith("running_mean"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=draw))
            if name.endswith("running_var"):
                buffer.copy_(1 + 0.3 * torch.rand(buffer.shape, generator=draw))


def compute_gradients(stage: PretrainingSetup, loss: Tensor) -> dict[str, Tensor]:
    """Return the gradients of a loss by parameter; zeros for parameters without gradient."""
    names, weights = zip(*[pair for pair in stage.network.named_parameters() if pair[1].requires_grad], strict=True)
    found = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(weight) if slope is None else slope
        for name, weight, slope in zip(names, weights, found, strict=True)
    }


def wrap_masked_lm(backbone: Any, head: Any) -> Any:
    """Return the modules of an encoder and its head under the names of BertForMaskedLM."""
    transform = SimpleNamespace(dense=head.dense, transform_act_fn=head._activation, LayerNorm=head.norm)
    decoder = SimpleNamespace(weight=head.weight, bias=head.bias)
    return SimpleNamespace(
        bert=backbone, cls=SimpleNamespace(predictions=SimpleNamespace(transform=transform, decoder=decoder))
    )
