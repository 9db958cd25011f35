"""Pre-train an encoder with a composition of objectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

from drtk.errors import DrtkError
from drtk.models.checkpoint import TextEncoder, save_encoder, save_lm_head
from drtk.models.device import report_out_of_memory
from drtk.models.encoder import Encoder
from drtk.models.lm_head import get_head_path
from drtk.models.model_folder import EncodingConfig
from drtk.models.packing import PACKED
from drtk.pretraining.assembly import MODULES_FILE
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.dataset import Batch, PretrainingCollator, PretrainingData
from drtk.pretraining.evaluation import BATCH_SIZE, evaluate_network
from drtk.pretraining.network import (
    PretrainingNetwork,
    PretrainingOutput,
    Tensors,
    compute_contrastive_losses,
)
from drtk.runtime.progress import log, round_significant
from drtk.training.arguments import build_training_arguments
from drtk.training.best_checkpoint import ModelSelection, save_weights
from drtk.training.distributed import all_reduce_sum, gather_rows, get_world_size, share_batch_norm
from drtk.training.fit import MICRO_FILE, DrtkTrainer, NonFiniteLossError, enable_gradient_checkpointing, fit

MICRO_BATCH = 32  # default on a CPU, and with padding, which is less in micro-batches of similar length
EncoderScorer = Callable[[TextEncoder], float]


class Pretrainer(DrtkTrainer):
    """A DrtkTrainer that splits the batch of a device into micro-batches of at most `micro_batch` examples.

    Token losses that are means are divided by the number of labels in all micro-batches and processes of a step.
    With several micro-batches, contrastive losses use gradient caching (docs/methods/cocondenser.md): encode all without a
    graph, compute the loss of the whole batch, then encode each again with the same dropout.
    """

    def __init__(self, *, data_collator: PretrainingCollator, micro_batch: int | None = None, **kwargs: Any) -> None:
        super().__init__(objective=None, data_collator=data_collator, weights=kwargs["model"].loss_weights, **kwargs)
        if micro_batch is not None:
            data_collator.micro_batch = micro_batch
        self.micro_batch = None if needs_whole_batch(self.model) else data_collator.micro_batch
        self._statistics: Tensors = {}

    def compute_smaller_micro_batch(self) -> int | None:
        """Return half the size of the micro-batch; None if the size is 1 or batch norm needs the whole batch."""
        return (self.micro_batch or 0) // 2 or None

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Run one training step, and return the weighted sum of the losses for the log, a scalar."""
        model.train()
        micro_batches: list[Batch] = inputs["batches"].to(self.args.device).unpack()
        counts_by_batch = [self.model.count_labels(batch) for batch in micro_batches]
        counts = {
            name: all_reduce_sum(torch.stack([batch_counts[name] for batch_counts in counts_by_batch]).sum())
            for name in counts_by_batch[0]
        }
        gradients: Tensors | None = None
        contrastive: Tensors = {}
        if len(micro_batches) > 1 and self.model.contrastive_slots:
            gradients, contrastive = self._cache_gradients(model, micro_batches)
        total = torch.zeros((), device=self.args.device)
        start = 0
        for number, (batch, ids) in enumerate(zip(micro_batches, inputs["ids"], strict=True)):
            is_last = number == len(micro_batches) - 1
            wrapped: Any = model
            with nullcontext() if is_last or not hasattr(model, "no_sync") else wrapped.no_sync():
                self.seed_part(number)
                with self.compute_loss_context_manager():
                    output: PretrainingOutput = model(batch, counts)
                terms = {name: value * get_world_size() for name, value in output.losses.items()}
                if gradients is not None:
                    vectors = output.vectors
                    rows = slice(start, start + len(next(iter(vectors.values()))))
                    start = rows.stop
                    # its gradients with respect to the vectors are those of the contrastive losses
                    surrogate = torch.stack(
                        [(vectors[name].float() * gradients[name][rows]).sum() for name in vectors]
                    ).sum()
                    loss = self.sum_terms(terms) + surrogate
                    if is_last:
                        terms |= contrastive
                else:
                    if output.vectors:
                        terms |= self._compute_contrastive_losses(output.vectors, [batch])
                    loss = self.sum_terms(terms)
                self._check_finite(loss, terms | contrastive, ids)
                self.accelerator.backward(loss)
            self.add_to_log(terms)
            for name, value in output.statistics.items():
                self._statistics[name] = self._statistics.get(name, torch.zeros(2, device=value.device)) + value
            total += self.sum_terms(terms).detach()
        self._num_recorded += 1
        return total

    def _cache_gradients(self, model: nn.Module, micro_batches: Sequence[Batch]) -> tuple[Tensors, Tensors]:
        """Return the gradients of the contrastive losses, {vector key: (rows, hidden)}, and the losses, {objective name: loss}."""
        vectors: list[Tensors] = []
        with torch.no_grad():
            for number, batch in enumerate(micro_batches):
                self.seed_part(number)
                with self.compute_loss_context_manager():
                    vectors.append(model(batch, None).vectors)
        whole = {
            name: torch.cat([batch_vectors[name].float() for batch_vectors in vectors]).requires_grad_()
            for name in vectors[0]
        }
        terms = self._compute_contrastive_losses(whole, micro_batches)
        self.sum_terms(terms).backward()
        gradients = {name: torch.zeros_like(rows) if rows.grad is None else rows.grad for name, rows in whole.items()}
        return gradients, {name: value.detach() for name, value in terms.items()}

    def _compute_contrastive_losses(self, vectors: Tensors, micro_batches: Sequence[Batch]) -> Tensors:
        """Return the contrastive losses over the batch of all processes, {objective name: scalar}.

        vectors: {vector key: (rows, hidden)}, vectors of this process    micro_batches: micro-batches that contain these rows
        """
        with torch.autocast(self.args.device.type, enabled=False):
            present = {
                name: gather_rows(torch.cat([batch[name].present for batch in micro_batches]))
                for name in self.model.contrastive_slots
            }
            rows = {name: gather_rows(value.float()) for name, value in vectors.items()}
            return compute_contrastive_losses(self.model.composition, rows, present)

    def _check_finite(self, loss: Tensor, terms: Tensors, ids: Sequence[str]) -> None:
        if bool(torch.isfinite(loss)):
            return
        bad = [name for name, value in terms.items() if not bool(torch.isfinite(value))] or [*terms]
        raise NonFiniteLossError(
            f"the loss ({', '.join(bad)}) is {loss.item()} at step {self.state.global_step + 1}, on passages "
            f"{', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}; a lower `learning_rate` or `precision` float32 may help"
        )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the statistics over all processes, along with the losses and `logs`."""
        if "loss" in logs:
            totals = {name: all_reduce_sum(value) for name, value in self._statistics.items()}
            logs |= {name: (value[0] / value[1].clamp(min=1)).item() for name, value in totals.items()}
            self._statistics.clear()
        super().log(logs, *args, **kwargs)


class EncoderExporter(TrainerCallback):
    """Writer of model folders that AutoModel and SentenceTransformer load, with heads and decoders in the subfolder heads/.

    It is a callback of the trainer, and exports the encoder to FOLDER/step-N every `export_steps` steps.
    """

    def __init__(self, folder: Path, network: PretrainingNetwork, tokenizer: Any, settings: PretrainSettings) -> None:
        self.folder, self.network, self.tokenizer, composition = folder, network, tokenizer, network.composition
        self.export_steps = settings.export_steps
        self.encoding = EncodingConfig(
            pooling=(composition.pooling,),
            query_length=settings.max_length,
            passage_length=settings.max_length,
            title=EncodingConfig.title if composition.title == "none" else composition.title,
        )

    def build_encoder(self) -> TextEncoder:
        """Return the encoder with its current weights and with the encoding configuration to save."""
        return TextEncoder(Encoder(self.network.backbone, pooling=self.encoding.pooling), self.tokenizer, self.encoding)

    def save(self, folder: Path) -> None:
        """Write the encoder, the masked-LM head, the decoders, the projectors and the joint generator to a folder."""
        save_encoder(self.build_encoder(), folder)
        save_lm_head(self.network.head, folder)
        modules = (self.network.backbone, self.network.head)
        saved = {tensor.data_ptr() for module in modules for tensor in module.state_dict().values() if tensor.numel()}
        others = {name: tensor for name, tensor in self.network.state_dict().items() if tensor.data_ptr() not in saved}
        if others:
            save_weights(others, get_head_path(folder, MODULES_FILE))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, every = state.global_step, self.export_steps
        if every and state.is_world_process_zero and step % every == 0 and step < state.max_steps:
            self.save(self.folder / f"step-{step}")


def pretrain(
    data: PretrainingData,
    folder: Path,
    *,
    network: PretrainingNetwork,
    tokenizer: Any,
    device: str = "auto",
    probe: EncoderScorer | None = None,
) -> dict[str, Any]:
    """Pre-train a network, and write the encoder and its heads into a folder (rank zero).

    folder: output folder; training resumes from its last checkpoint
    probe: function that returns a score of the encoder; the weights with the highest score are saved; None: the last weights
    Returns "micro_batch" (examples), and the result of `drtk.training.fit.fit`.
    Raises DrtkError for a NaN or infinite loss or weight, or when out of memory, and the errors of `check_batch`.
    """
    settings = data.settings
    check_batch(settings, network)
    checkpoints = folder / "checkpoints"
    schedule = data.schedule
    arguments = build_training_arguments(settings, schedule, folder, seed=data.seed, device=device)
    micro_batch = settings.micro_batch_size or schedule.batch
    if settings.micro_batch_size is None and not needs_whole_batch(network):
        if (checkpoints / MICRO_FILE).exists():  # written by the run to resume
            micro_batch = int((checkpoints / MICRO_FILE).read_text(encoding="utf-8"))
        elif uses_micro_batches(network, arguments):
            micro_batch = MICRO_BATCH
    micro_batch = min(micro_batch, schedule.batch)
    memory_advice = (
        f"`gradient_checkpointing` or a smaller {'`batch_size` or ' * needs_whole_batch(network)}`max_length`"
    )
    if settings.gradient_checkpointing:
        enable_gradient_checkpointing(network.backbone)
    if settings.compile:
        for layer in network.adapter.layers:
            layer.compile(dynamic=True)
    if get_world_size() > 1:
        share_batch_norm(network)
    if network.generator is not None:
        with report_out_of_memory(arguments.device, f"{memory_advice} may help"):
            network.generator.to(arguments.device)
    exporter = EncoderExporter(folder, network, tokenizer, settings)
    batches = data.build_held_out_batches(BATCH_SIZE) if len(data.held_out) > 1 else []

    def evaluate() -> dict[str, float]:
        values = evaluate_network(network, batches, arguments.device) if batches else {}
        if probe is not None:
            values["probe"] = probe(exporter.build_encoder())
            network.train()
        log("pretrain: " + ", ".join(f"{name} {value:z.4f}" for name, value in values.items()))
        return {name: round_significant(value) for name, value in values.items()}

    evaluation = None
    if batches or probe is not None:
        metric: str | dict[str, str] = {} if probe is None else "probe"
        evaluation = ModelSelection(network, evaluate, checkpoints, metric=metric, config=settings)

    def save() -> None:
        network.cpu().eval()
        exporter.save(folder)

    summary = fit(
        network,
        data.build_dataset(),
        data.build_collator(micro_batch),
        arguments=arguments,
        schedule=schedule,
        folder=folder,
        name="pretrain",
        save=save,
        evaluator=evaluation,
        evaluate_first=True,
        micro_batch=micro_batch,
        trainer_class=Pretrainer,
        callbacks=[exporter],
        memory_advice=memory_advice,
    )
    return {"micro_batch": micro_batch} | summary


def uses_micro_batches(network: PretrainingNetwork, arguments: TrainingArguments) -> bool:
    """Return whether the batch of a device is split into micro-batches by default, if the composition allows it.

    On a CPU, because the system kills a process that runs out of memory. On a GPU, only if the encoder computes padding
    and there are no contrastive losses, for which gradient caching would encode each text twice.
    """
    if arguments.device.type == "cpu":
        return True
    has_packing = network.adapter.config._attn_implementation == PACKED
    is_packed = has_packing and (arguments.bf16 or arguments.fp16)
    return not is_packed and not network.contrastive_slots


def check_batch(settings: PretrainSettings, network: PretrainingNetwork) -> None:
    """Raise DrtkError for a batch or micro-batch size that the composition forbids."""
    device_batch = settings.batch_size // get_world_size()
    if network.contrastive_slots and settings.batch_size < 2:
        raise DrtkError("`batch_size` 1 leaves no negatives for the contrastive objective; use 2 or more")
    if needs_whole_batch(network) and min(settings.micro_batch_size or device_batch, device_batch) < device_batch:
        raise DrtkError(
            f"a projector with batch norm requires one micro-batch; use `micro_batch_size` {device_batch} or a smaller `batch_size`"
        )


def needs_whole_batch(network: PretrainingNetwork) -> bool:
    """Return whether a projector has batch norm, so that the batch of a device cannot be split into micro-batches."""
    projectors = network.composition.projectors
    return any(projectors[name].kind == "bn" for name in network.projectors)
