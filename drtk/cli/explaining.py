"""What `drtk pretrain --dry-run` tells: terms, slots, parameters, steps, work and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from drtk.cli.saying import said_slot, said_term
from drtk.settings.composition import Composition

if TYPE_CHECKING:
    from drtk.objectives.network import Network
    from drtk.training.estimating import Estimate
    from drtk.training.material import Material


def explained(plan: Composition, material: Material, network: Network, *, at_once: int | None = None) -> Iterator[str]:
    """Lines of text about a training that is about to begin. Examples are drawn for their lengths; nothing is written.

    at_once: examples in memory together, where the settings do not say
    """
    from drtk.training.estimating import estimated
    from drtk.training.pretrain import trainable

    found = estimated(material, network, at_once=at_once)
    yield from _terms(plan, network)
    yield ""
    yield from _slots(plan, found)
    yield ""
    yield from _parameters(trainable(network), network)
    yield ""
    yield from _steps(material, found)
    yield ""
    yield from _work(found)
    yield ""
    yield from _memory(found, batch=material.settings.batch)
    yield ""
    yield "Nothing was trained or written."


def _terms(plan: Composition, network: Network) -> Iterator[str]:
    yield "Terms of the loss"
    rows = [
        (each.name, f"{each.weight:g} x", each.group and f"[{each.group}]", said_term(plan, each))
        for each in plan.objectives
    ]
    if plan.generator is not None and plan.generator.mode == "joint":
        wanted = plan.generator
        said = f"the generator predicts the hidden tokens of '{wanted.slot}'; it begins as "
        said += {"model": wanted.model, "copy": "a copy of the encoder", "random": "random weights"}[wanted.init]
        rows.append(("generator", f"{wanted.weight:g} x", "", said))
    yield from _table(rows)


def _slots(plan: Composition, found: Estimate) -> Iterator[str]:
    yield f"Slots of {'a document' if plan.example == 'document' else 'a passage'} (means of examples drawn)"
    rows = []
    for name, slot in plan.slots.items():
        load = found.loads[name]
        share = "" if load.present == 1 else f" ({load.present:.0%} of examples have one)"
        rows.append((name, f"{load.tokens:.1f} tokens", f"{load.hidden:.1f} hidden", said_slot(slot) + share))
    yield from _table(rows, right=(1, 2))
    if plan.generator is not None and plan.generator.mode == "frozen":
        wanted = plan.generator
        scope = "at every place" if wanted.scope == "all" else "at hidden places"
        draws = "the likeliest token" if wanted.decode == "argmax" else "a token drawn from its softmax"
        reads = "[MASK]" if wanted.reads == "mask" else "80% [MASK], 10% a random token, 10% left"
        yield f"  the generator, {wanted.model}, reads {reads} there, and proposes {draws} {scope}"


def _parameters(parts: Sequence[tuple[str, int]], network: Network) -> Iterator[str]:
    from drtk.training.estimating import trained

    yield "Parameters"
    everything = sum(count for _, count in parts)
    rows = [(name, f"{count:,}") for name, count in parts]
    rows += [("together", f"{everything:,}"), ("trained", f"{trained(network):,}")]
    yield from _table(rows, right=(1,))


def _steps(material: Material, found: Estimate) -> Iterator[str]:
    settings = material.settings
    unit = "documents" if material.composition.example == "document" else "passages"
    yield "Training"
    yield f"  {len(material.rows):,} {unit} to train on, {len(material.held_out):,} held out"
    epochs = material.steps / material.steps_per_epoch
    yield (
        f"  {material.steps:,} steps of {settings.batch:,} {unit}: {epochs:,.2f} epochs of {material.steps_per_epoch:,} steps"
    )
    yield f"  {found.at_once:,} in memory at once; {found.tokens * settings.batch:,.0f} tokens a step, all slots together"
    warmup = settings.warmup if settings.warmup >= 1 else settings.warmup * material.steps
    yield f"  learning rate {settings.lr:g} after {warmup:,.0f} steps, then falling to 0; weight decay {settings.weight_decay:g}"


def _work(found: Estimate) -> Iterator[str]:
    yield "Work of a step: 6 x parameters x tokens where there is a gradient, 2 x where there is none"
    rows = [(name, _operations(value)) for name, value in found.work.items()]
    rows.append(("together", _operations(sum(found.work.values()))))
    yield from _table(rows, right=(1,))
    yield "  Embeddings are looked up and not counted; the word scores are, at labelled tokens. Attention's own products"
    yield "  are left out: they add a share of length / (6 x width), about 3% at 144 tokens and width 768."


def _memory(found: Estimate, *, batch: int) -> Iterator[str]:
    yield "Memory on one device, roughly, for examples of mean length"
    yield from _table([*_sizes(found.memory), ("together", _bytes(sum(found.memory.values())))], right=(1,))
    yield f"  activations: 34 bytes x width x tokens x layers for {found.at_once:,} examples in 16 bits; twice that in 32"
    activations = found.memory.get("activations", 0.0)
    if found.at_once > 32:
        fewer = max(8, found.at_once // 16)
        yield f"  with --micro-batch {fewer:,} activations would take {_bytes(activations * fewer / found.at_once)}"
    yield "  Without --micro-batch, a larger figure decides how many examples are in memory at once, and is told beside what is free:"
    yield "  that of the longest examples, in this machine's precision, with what formulas leave out and room to work in."


def _sizes(memory: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(name, _bytes(value)) for name, value in memory.items()]


def _operations(value: float) -> str:
    return _scaled(value, 1000.0, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def _bytes(value: float) -> str:
    return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"))


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    at = 0
    while value >= step and at < len(units) - 1:
        value, at = value / step, at + 1
    return f"{value:.3g} {units[at]}" if value < 100 else f"{value:.0f} {units[at]}"


def _table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> Iterator[str]:
    """Rows as aligned columns, empty ones left out; the columns `right` end in line."""
    columns = [number for number in range(len(rows[0])) if any(row[number] for row in rows)]
    widths = {number: max(len(row[number]) for row in rows) for number in columns}
    for row in rows:
        cells = [
            row[number].rjust(widths[number]) if number in right else row[number].ljust(widths[number])
            for number in columns
        ]
        yield ("  " + "  ".join(cells)).rstrip()
