"""Describe the objectives and slots of a composition in words, and print masked examples.

Slots and objectives are defined in `composition.py`.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drtk.pretraining import OBJECTIVES, TARGETS
from drtk.pretraining.composition import Composition, ContrastiveObjective, Objective, Slot, TokenObjective
from drtk.runtime.progress import escape_control_characters

if TYPE_CHECKING:
    from drtk.pretraining.dataset import PretrainingData
    from drtk.pretraining.example_builder import TokenizedSlot
    from drtk.pretraining.network import PretrainingNetwork

LEGEND = "[MASK] masked   {a→b} replaced   {a} masked but unchanged   {+a} inserted   {-} tokens deleted here"
_TARGETS = {
    "masked": "the masked tokens of",
    "all": "every token of",
    "edited": "which tokens were changed in",
    "corrected": "every token, through a copy gate, of",
}
_REDUCTIONS = {"mean": "", "mean_all": "; mean over padding too", "sum": "; a sum, not a mean"}
_CORRUPTIONS = {
    "none": "unchanged",
    "mask": "replaced by [MASK]",
    "bert": "80% [MASK], 10% a random token, 10% unchanged",
    "replaced": "replaced by a generator's tokens",
    "inserted": "{rate} of its tokens inserted",
    "deleted": "{rate} of its tokens deleted",
    "any": "{rate} of its tokens replaced, inserted or deleted, sampled per example",
}


def describe_objective(composition: Composition, objective: Objective) -> str:
    """Describe an objective in a line: its decoder and the predicted tokens, or the vectors that it compares."""
    projected = f", through projector '{objective.projector}'" if objective.projector else ""
    if isinstance(objective, ContrastiveObjective):
        positives = _quote_names([objective.b, *objective.extra_positives])
        positives += ", in both directions" if objective.symmetric else ""
        negatives = "all texts" if objective.candidates == "all" else "the texts of the other slot"
        negatives += f" and of {_quote_names(objective.extra_negatives)}" if objective.extra_negatives else ""
        scores = f"{objective.similarity} / {objective.temperature:g}"
        return f"queries '{objective.a}', positives {positives}, negatives {negatives} ({scores}){projected}"
    if not isinstance(objective, TokenObjective):
        return (
            f"{OBJECTIVES[objective.use]}: {_quote_names((*objective.token_slots, *objective.vector_slots))}{projected}"
        )
    decoder = composition.decoders[objective.decoder]
    decoder_text = "the encoder" if decoder.use == "encoder" else _format_with_options(decoder.use, decoder.options)
    if " " not in objective.decoder and objective.decoder != decoder.use:  # a name that the preset gives
        decoder_text = f"'{objective.decoder}', {decoder_text},"
    target = _TARGETS.get(objective.target) or f"{TARGETS[objective.target]}, of"
    if decoder.use == "causal":
        target = "each next token of"
    source = f", given the vector of {_quote_names(objective.source)}" if objective.source else ""
    return f"{decoder_text} predicts {target} {_quote_names(objective.slot)}{source}{projected}{_REDUCTIONS[objective.reduction]}"


def describe_slot(slot: Slot) -> str:
    """Describe the view, masking and corruption of a slot in a line."""
    view = _format_with_options(" or ".join(slot.view), slot.view_options)
    if len(slot.view) > 1:
        view += f", sampled once per {slot.draw}"
    corruption = _CORRUPTIONS[slot.corruption].format(rate=f"{slot.rate:.0%}")
    if slot.corruption in ("inserted", "deleted", "any") or slot.masking == "none":
        return f"{view}: {corruption}"
    rate = "" if slot.masking == "complement" else f"{slot.rate:.0%} "
    source = f" of '{slot.of}'" if slot.of else ""
    return f"{view}: {rate}{_format_with_options(slot.masking, slot.masking_options)}{source}, {corruption}"


def _format_with_options(name: str, options: Mapping[str, Any]) -> str:
    values = ", ".join(f"{key} {value}" for key, value in options.items())
    return f"{name} ({values})" if values else name


def _quote_names(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


class TokenFormatter:
    """Formatter of WordPiece, byte-level BPE and SentencePiece tokens: id -> (text, whether it continues a word)."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.mask = tokenizer.mask_token
        first = {token[0] for token in tokenizer.get_vocab() if len(token) > 1}
        self._space = next((mark for mark in ("Ġ", "▁") if mark in first), "")

    def __call__(self, id: int) -> tuple[str, bool]:
        token = escape_control_characters(self._tokenizer.convert_ids_to_tokens(int(id)))
        if id in self._tokenizer.all_special_ids:
            return token, False
        if self._space:
            text = escape_control_characters(self._tokenizer.convert_tokens_to_string([token]).strip())
            return text, not token.startswith(self._space)
        return token.removeprefix("##"), token.startswith("##")


def mark_words(slot: TokenizedSlot, input_ids: Sequence[int], formatter: TokenFormatter) -> list[str]:
    """Return the words of a slot to print, with marks (see LEGEND) at masked, replaced and inserted tokens and deletions.

    The first and last token, which are special tokens, are omitted; the last is kept if it is edited.
    input_ids: input ids of the slot, with the generator's tokens if there is a generator
    """
    words: list[str] = []
    last = len(input_ids) - 1
    is_last_edited = input_ids[last] != slot.original_ids[last] or (slot.edited is not None and slot.edited[last])
    for position in range(1, last + 1 if is_last_edited else last):
        text, continues_word = formatter(input_ids[position])
        is_masked = bool(slot.masked[position])
        if slot.edited is not None:
            if is_masked:
                text, continues_word = f"{{+{text}}}", False
            elif slot.edited[position]:
                words.append("{-}")
        elif input_ids[position] != slot.original_ids[position]:
            original, continues_word = formatter(slot.original_ids[position])
            text = text if text == formatter.mask else f"{{{original}→{text}}}"
        elif is_masked:
            text = f"{{{text}}}"
        if continues_word and words:
            words[-1] += text
        else:
            words.append(text)
    return words


def _format_slot(
    composition: Composition,
    name: str,
    slot: TokenizedSlot,
    input_ids: Sequence[int],
    formatter: TokenFormatter,
    *,
    width: int,
) -> Iterator[str]:
    """Yield the lines to print for a slot: its description, its marked text, and its use in each objective."""
    title = (
        f"{name}: {describe_slot(composition.slots[name])} · {len(input_ids)} tokens, {int(slot.masked.sum())} masked"
    )
    yield from textwrap.wrap(title, width, initial_indent="  ", subsequent_indent="    ")
    if not slot.present:
        yield "    (the example has no text for this slot; objectives on this slot skip it)"
        return
    text = " ".join(mark_words(slot, input_ids, formatter))
    yield from textwrap.wrap(
        text, width, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    for use in describe_uses(composition, name, slot, input_ids, formatter):
        yield from textwrap.wrap(use, width, initial_indent="    - ", subsequent_indent="      ")


def describe_uses(
    composition: Composition, name: str, slot: TokenizedSlot, input_ids: Sequence[int], formatter: TokenFormatter
) -> Iterator[str]:
    """Yield a line for each objective that uses slot `name`: its labels (token loss) or a description."""
    for objective in composition.objectives:
        if isinstance(objective, TokenObjective) and name in objective.slot:
            yield f"{objective.name}: {_describe_labels(composition, objective, slot, input_ids, formatter)}"
        elif name in (*objective.token_slots, *objective.vector_slots):
            yield f"{objective.name}: {describe_objective(composition, objective)}"


def _describe_labels(
    composition: Composition,
    objective: TokenObjective,
    slot: TokenizedSlot,
    input_ids: Sequence[int],
    formatter: TokenFormatter,
) -> str:
    if composition.decoders[objective.decoder].use == "causal":
        return f"labels are all {len(input_ids) - 1} tokens after the first, including the last special token"
    content = [position for position in range(len(input_ids)) if slot.content[position]]
    if objective.target == "masked":
        tokens = [
            formatter(slot.original_ids[position])[0] for position in range(len(input_ids)) if slot.masked[position]
        ]
        count = f"{len(tokens)} token{'s' * (len(tokens) != 1)}"
        return f"labels are {count}: {', '.join(tokens)}" if tokens else "there are no labels"
    if objective.target != "edited":
        return f"labels are all {len(content)} original tokens"
    positions = (
        content if objective.classes == 1 and objective.reduction != "mean_all" else range(len(input_ids))
    )  # see EditDetection
    changed = (
        slot.edited
        if slot.edited is not None
        else [int(a != b) for a, b in zip(input_ids, slot.original_ids, strict=True)]
    )
    tokens = [formatter(input_ids[position])[0] for position in positions if changed[position]]
    listed = f": {', '.join(tokens)}" if tokens else ""
    return f"{len(tokens)} of {len(positions)} tokens are labeled as changed{listed}"


def preview_slots(
    path: str,
    preset: Mapping[str, Any],
    *,
    model: str,
    count: int,
    changes: Sequence[str] = (),
    generator: str | None = None,
    side_files: Sequence[str] = (),
    seed: int = 42,
) -> Iterator[str]:
    """Yield the lines of a preview of the first `count` examples of a corpus, as in the first epoch of training.

    path: corpus file    preset: content of the preset, including "name"
    model: model folder or hub name, for its tokenizer
    changes: PATH=VALUE changes of the preset    side_files: files with further fields of the passages
    generator: model folder or hub name of the generator that replaces tokens; None: show the generator's input
    Raises DrtkError for an invalid preset, corpus or model.
    """
    from drtk.config import merge_settings
    from drtk.pretraining.config import PretrainSettings
    from drtk.pretraining.example_builder import ExampleBuilder, SpecialTokens, list_corpus_fields
    from drtk.pretraining.parse import apply_changes, parse_composition
    from drtk.text.token_dataset import TokenCorpus
    from drtk.text.tokenizers import load_tokenizer

    place = str(preset["name"])
    preset = apply_changes(preset, changes)
    settings = merge_settings(PretrainSettings, preset.get("settings", {}), {}, preset_name=f"preset {place}")
    composition = parse_composition(preset, place)
    corpus = TokenCorpus.open(path, model, fields=list_corpus_fields(composition), side_files=side_files)
    tokenizer = load_tokenizer(model)
    formatter = TokenFormatter(tokenizer)
    build = ExampleBuilder(
        composition, corpus, SpecialTokens.from_tokenizer(tokenizer), max_length=settings.max_length, seed=seed
    )
    fill = _load_generator(composition, generator, tokenizer) if generator and composition.generator else None
    width = max(60, shutil.get_terminal_size().columns)
    for row in build.rows[:count].tolist():
        yield f"{'document of ' if composition.example == 'document' else ''}{escape_control_characters(build.get_id(row))}"
        slots = build(row, epoch=0, step=0)
        filled = fill(slots) if fill else {}
        for name, slot in slots.items():
            input_ids = filled.get(name, slot.input_ids.tolist())
            yield from _format_slot(composition, name, slot, input_ids, formatter, width=width)
        yield ""
    yield LEGEND


def _load_generator(
    composition: Composition, folder: str, tokenizer: Any
) -> Callable[[Mapping[str, TokenizedSlot]], Any]:
    """Return a function that converts the slots of an example to {slot name: input ids with the generator's tokens}."""
    from drtk.models.model_folder import resolve_model_folder
    from drtk.pretraining.dataset import PretrainingCollator, PretrainingExample
    from drtk.pretraining.token_generator import TokenGenerator, fill_masks

    model = TokenGenerator.from_folder(resolve_model_folder(folder), tokenizer)
    collator = PretrainingCollator(composition, pad=int(tokenizer.pad_token_id or 0), max_length=0, micro_batch=1)

    def fill_slots(slots: Mapping[str, TokenizedSlot]) -> dict[str, list[int]]:
        batch = collator.collate([PretrainingExample((), slots)])
        ids = {name: fill_masks(batch[name], name, composition, model)[0].tolist() for name in slots}
        return {name: ids[name][: len(slot.input_ids)] for name, slot in slots.items()}

    return fill_slots


def describe_training(composition: Composition, data: PretrainingData, network: PretrainingNetwork) -> Iterator[str]:
    """Yield the lines of a dry run: objectives, slots, number of parameters, number of steps, and tokens per step."""
    yield "Terms of the loss"
    terms = [
        (
            objective.name,
            f"{objective.weight:g} x",
            objective.group and f"[{objective.group}]",
            describe_objective(composition, objective),
        )
        for objective in composition.objectives
    ]
    if composition.joint_generator is not None:
        joint = composition.joint_generator
        start = joint.model if joint.init == "model" else "random weights"
        description = f"the generator predicts the masked tokens of '{joint.slot}'; its initial weights are {start}"
        terms.append(("generator", f"{joint.weight:g} x", "", description))
    yield from _format_table(terms)
    yield "Slots"
    examples = data.build_spaced_examples(64)
    slots, tokens = [], 0.0
    for name, slot in composition.slots.items():
        present = [example[name] for example in examples if example[name].present]
        length = sum(len(slot_example.input_ids) for slot_example in present) / len(examples)
        masked = sum(int(slot_example.masked.sum()) for slot_example in present) / len(examples)
        share = "" if len(present) == len(examples) else f" (in {len(present) / len(examples):.0%} of examples)"
        slots.append((name, f"{length:.1f} tokens, {masked:.1f} masked", describe_slot(slot) + share))
        tokens += length
    yield from _format_table(slots)
    total = sum(parameter.numel() for parameter in network.parameters())
    trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    frozen = 0
    if network.generator is not None and composition.joint_generator is None:
        frozen = sum(parameter.numel() for parameter in network.generator.parameters())
    settings, schedule = data.settings, data.schedule
    yield f"Parameters: {total + frozen:,} ({trained:,} trained)"
    yield (
        f"Training: {schedule.steps:,} steps of {settings.batch_size:,} {data.unit}, "
        f"{schedule.steps / schedule.steps_per_epoch:,.2f} epochs; "
        f"{len(data.rows):,} {data.unit} to train on, {len(data.held_out):,} held out"
    )
    yield f"Tokens per step: {tokens * settings.batch_size:,.0f}"


def _format_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    columns = [number for number in range(len(rows[0])) if any(row[number] for row in rows)]
    widths = {number: max(len(row[number]) for row in rows) for number in columns}
    for row in rows:
        yield ("  " + "  ".join(row[number].ljust(widths[number]) for number in columns)).rstrip()
