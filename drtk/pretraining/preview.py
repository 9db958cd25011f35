"""Preview a composition: terms, slots and masked examples."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from drtk.pretraining import OBJECTIVES, TARGETS
from drtk.pretraining.composition import Composition, Contrast, Objective, Recover, Slot
from drtk.runtime.progress import printable

if TYPE_CHECKING:
    from drtk.pretraining.cost_model import Estimate
    from drtk.pretraining.dataset import Material
    from drtk.pretraining.example_builder import Slotted
    from drtk.pretraining.network import Network

_TARGETS = {
    "masked": "the hidden tokens of",
    "all": "every token of",
    "edited": "which tokens were changed in",
    "corrected": "every token, or that it is right as it stands, of",
}
_REDUCTIONS = {"mean": "", "mean_all": "; mean over padding too", "sum": "; a sum, not a mean"}
_CORRUPTIONS = {
    "none": "shown as it is",
    "mask": "[MASK] in their place",
    "bert": "80% [MASK], 10% a random token, 10% left",
    "replaced": "a generator's tokens in their place",
}


def said_term(plan: Composition, objective: Objective) -> str:
    """What a term asks, in one line: who predicts what of which slot, or which slots find each other."""
    projected = f", through projector '{objective.projector}'" if objective.projector else ""
    if isinstance(objective, Contrast):
        return _said_contrast(objective) + projected
    if not isinstance(objective, Recover):
        return f"{OBJECTIVES[objective.use]}: {_names((*objective.tokens_of, *objective.vectors_of))}{projected}"
    reader = plan.readers[objective.reader]
    own = objective.reader.partition(" ")[0] == "reader"  # made for this objective alone: no name a person gave
    who = "the encoder" if reader.use == "encoder" else _with_options(reader.use, reader.options)
    if not own and objective.reader in plan.readers and objective.reader != reader.use:
        who = f"'{objective.reader}', {who},"
    target = _TARGETS.get(objective.target) or f"{TARGETS[objective.target]}, of"
    if reader.use == "causal":
        target = "each next token of"
    given = f", given the vector of {_names(objective.source)}" if objective.source else ""
    return f"{who} predicts {target} {_names(objective.slot)}{given}{projected}{_REDUCTIONS[objective.reduction]}"


def said_slot(slot: Slot) -> str:
    """What a slot shows, in one line: its view, what is hidden of it, and what stands there instead."""
    view = _with_options(" or ".join(slot.view), slot.view_options)
    if len(slot.view) > 1:
        view += f", drawn by the {slot.draw}"
    if slot.corruption in ("inserted", "deleted"):
        return f"{view}: {slot.rate:.0%} of its tokens {slot.corruption}"
    if slot.corruption == "any":
        return f"{view}: {slot.rate:.0%} of its tokens replaced, inserted or deleted, drawn by the example"
    if slot.masking == "none":
        return f"{view}: {_CORRUPTIONS['none']}"
    rate = "" if slot.masking == "complement" else f"{slot.rate:.0%} "
    other = f" of '{slot.of}'" if slot.of else ""
    masking = _with_options(slot.masking, slot.masking_options)
    return f"{view}: {rate}{masking}{other}, {_CORRUPTIONS[slot.corruption]}"


def read_by(plan: Composition, name: str) -> list[Recover]:
    """The terms that predict something at the tokens of a slot."""
    return [each for each in plan.objectives if isinstance(each, Recover) and name in each.slot]


def _said_contrast(objective: Contrast) -> str:
    who = (
        f"'{objective.a}' and '{objective.b}' find each other"
        if objective.symmetric
        else (f"'{objective.a}' finds '{objective.b}'")
    )
    among = "all texts" if objective.candidates == "all" else "those"
    more = f", and finds {_names(objective.extra_positives)} too" if objective.extra_positives else ""
    more += f", {_names(objective.extra_negatives)} never being right" if objective.extra_negatives else ""
    return f"{who} among {among} of the batch ({objective.similarity} / {objective.temperature:g}){more}"


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    said = ", ".join(f"{key} {value}" for key, value in options.items())
    return f"{name} ({said})" if said else name


def _names(names: tuple[str, ...]) -> str:
    return " and ".join(f"'{name}'" for name in names)


LEGEND = (
    "[MASK] hidden   {a→b} replaced   {a} hidden but left as it is   {+a} inserted   {-} something was taken out here"
)
_COLOURS = {"hidden": "30;48;5;229", "replaced": "30;48;5;214", "left": "30;48;5;194", "edited": "30;48;5;153"}


class Piece(NamedTuple):
    """A token as it is shown. mark: of `_COLOURS`, or "" for a token that was left alone; glued: it goes on with a word."""

    text: str
    mark: str
    glued: bool


class Speller:
    """Ids to what a person reads, for word pieces (##ing) and for tokens that carry the space before them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.mask = tokenizer.mask_token
        begins = {token[0] for token in tokenizer.get_vocab() if len(token) > 1}
        self._spaced = next((mark for mark in ("Ġ", "▁") if mark in begins), "")

    def __call__(self, id: int) -> tuple[str, bool]:
        """(text, whether it goes on with the word before)."""
        token = printable(self._tokenizer.convert_ids_to_tokens(int(id)))
        if id in self._tokenizer.all_special_ids:
            return token, False
        if self._spaced:
            return printable(self._tokenizer.convert_tokens_to_string([token]).strip()), not token.startswith(
                self._spaced
            )
        return token.removeprefix("##"), token.startswith("##")


def pieces_of(slot: Slotted, given: Sequence[int], spell: Speller) -> list[Piece]:
    """The tokens of a slot between its special ones, and the last of these where something was done to it.

    given: what a reader sees, filled by a generator where there was one
    """
    found = []
    last = len(given) - 1
    done = given[last] != slot.clean[last] or (slot.edited is not None and slot.edited[last])
    for place in range(1, last + 1 if done else last):
        text, glued = spell(given[place])
        was, was_glued = spell(slot.clean[place])
        hidden = bool(slot.hidden[place])
        if slot.edited is not None:
            if hidden:
                found.append(Piece(f"{{+{text}}}", "edited", False))
            elif slot.edited[place]:
                found += [Piece("{-}", "edited", False), Piece(text, "", glued)]
            else:
                found.append(Piece(text, "", glued))
        elif given[place] != slot.clean[place]:
            masked = text == spell.mask
            found.append(Piece(text if masked else f"{{{was}→{text}}}", "hidden" if masked else "replaced", was_glued))
        else:
            found.append(Piece(f"{{{text}}}" if hidden else text, "left" if hidden else "", glued))
    return found


def slot_lines(
    plan: Composition,
    name: str,
    slot: Slotted,
    given: Sequence[int],
    *,
    spell: Speller,
    colour: bool,
    width: int,
) -> Iterator[str]:
    """A slot of one example: what it is, its text with marks, and what is asked of it."""
    wanted = plan.slots[name]
    count = f"{len(given)} tokens, {int(slot.hidden.sum())} hidden"
    yield from textwrap.wrap(
        f"{name}: {said_slot(wanted)} · {count}", width, initial_indent="  ", subsequent_indent="    "
    )
    if not slot.present:
        yield "    (this example has no such text and is left out of what needs it)"
        return
    yield from _wrapped(pieces_of(slot, given, spell), width=width, colour=colour)
    for line in asked_of(plan, name, slot, given, spell):
        yield from textwrap.wrap(line, width, initial_indent="    - ", subsequent_indent="      ")


def asked_of(plan: Composition, name: str, slot: Slotted, given: Sequence[int], spell: Speller) -> Iterator[str]:
    """What each term wants of a slot: the tokens that are labelled, or what its vector is used for."""
    for term in read_by(plan, name):
        yield f"{term.name}: {_labelled(plan, term, slot, given, spell)}"
    for each in plan.objectives:
        if isinstance(each, Recover) and name in each.source:
            sources = each.source if len(each.source) == len(each.slot) else each.source * len(each.slot)
            told = " and ".join(f"'{to}'" for to, source in zip(each.slot, sources, strict=True) if source == name)
            yield f"{each.name}: its vector helps with {told}"
        elif isinstance(each, Contrast) and name in (each.a, each.b):
            other = each.b if name == each.a else each.a
            yield f"{each.name}: its vector " + (
                f"finds that of '{other}'" if name == each.a or each.symmetric else f"is found by that of '{other}'"
            )
        elif isinstance(each, Contrast) and name in (*each.extra_negatives, *each.extra_positives):
            yield f"{each.name}: its vector is {'a negative' if name in each.extra_negatives else 'a positive too'}"
        elif not isinstance(each, Recover) and name in (*each.tokens_of, *each.vectors_of):
            yield f"{each.name}: {OBJECTIVES[each.use]}"


def _labelled(plan: Composition, term: Recover, slot: Slotted, given: Sequence[int], spell: Speller) -> str:
    if plan.readers[term.reader].use == "causal":
        return f"labels are all tokens after the first, {len(given) - 1} of them, the last special one too"
    content = [place for place in range(len(given)) if slot.content[place]]
    if term.target == "masked":
        said = [spell(slot.clean[place])[0] for place in range(len(given)) if slot.hidden[place]]
        return f"labels are {_counted(said)}: {', '.join(said)}" if said else "nothing is labelled"
    if term.target != "edited":
        return f"labels are all tokens as they were, {len(content)} of them"
    asked = content if term.classes == 1 and term.reduction != "mean_all" else range(len(given))  # Edited.over
    if slot.edited is not None:
        changed = [place for place in asked if slot.edited[place]]
    else:
        changed = [place for place in asked if given[place] != slot.clean[place]]
    said = [spell(given[place])[0] for place in changed]
    return f"{len(said)} of {len(asked)} tokens are labelled as changed" + (f": {', '.join(said)}" if said else "")


def _counted(tokens: Sequence[str]) -> str:
    return "1 token" if len(tokens) == 1 else f"{len(tokens)} tokens"


def _wrapped(pieces: Sequence[Piece], *, width: int, colour: bool) -> Iterator[str]:
    """Pieces as words in lines of `width`, colours not counted."""
    words: list[list[Piece]] = []
    for piece in pieces:
        if piece.glued and words:
            words[-1].append(piece)
        else:
            words.append([piece])
    line, room = "", width - 4
    for word in words:
        size = sum(len(piece.text) for piece in word)
        if line and size + 1 > room:
            yield "    " + line
            line, room = "", width - 4
        line += " " * bool(line) + "".join(_coloured(piece, colour) for piece in word)
        room -= size + 1
    if line:
        yield "    " + line


def _coloured(piece: Piece, colour: bool) -> str:
    return f"\x1b[{_COLOURS[piece.mark]}m{piece.text}\x1b[0m" if colour and piece.mark else piece.text


def slots_shown(
    path: str,
    preset: Mapping[str, Any],
    *,
    model: str,
    count: int,
    changes: Sequence[str] = (),
    generator: str | None = None,
    side_files: Sequence[str] = (),
    seed: int = 42,
    colour: bool = False,
) -> Iterator[str]:
    """Lines for the first `count` passages or documents of a corpus, as the first epoch of training with `seed` shows them.

    preset: all that its file holds, and its name; model: a folder with the tokenizer; generator: fills replaced tokens, of
    which what it would read is shown without one. Raises what composing, reading the corpus and drawing views raise.
    """
    import shutil

    from drtk.config import merge
    from drtk.pretraining.config import PretrainSettings
    from drtk.pretraining.example_builder import SlotBuilder, fields_of, frame_of
    from drtk.pretraining.parse import composition, with_changes
    from drtk.text.token_dataset import TokenCorpus
    from drtk.text.tokenizers import load_tokenizer

    place = str(preset["name"])
    settings = merge(PretrainSettings, preset.get("settings", {}), {}, preset_name=f"preset {place}")
    plan = composition(with_changes(preset, changes), place)
    corpus = TokenCorpus.open(path, model, wants=fields_of(plan), side_files=side_files)
    tokenizer = load_tokenizer(model)
    spell, by_document = Speller(tokenizer), plan.example == "document"
    rows = (corpus.shared_documents.tolist() if by_document else list(range(len(corpus))))[:count]

    def called(row: int) -> str:
        return corpus.id(int(corpus.span(row)[0]) if by_document else row)

    build = SlotBuilder(plan, corpus, frame_of(tokenizer), ids=called, max_length=settings.max_length, seed=seed)
    fill = _filler(plan, generator, tokenizer)
    width = max(60, shutil.get_terminal_size().columns)
    for row in rows:
        slots = build(row, epoch=0, step=0)
        yield f"{'document of ' if by_document else ''}{printable(called(row))}"
        for name, slot in slots.items():
            yield from slot_lines(plan, name, slot, fill(name, slot), spell=spell, colour=colour, width=width)
        yield ""
    yield LEGEND


def _filler(plan: Composition, generator: str | None, tokenizer: Any) -> Any:
    """(slot's name, slot) to the ids a reader sees."""
    if generator is None or plan.generator is None:
        return lambda name, slot: slot.given.tolist()
    from drtk.models.model_folder import locate
    from drtk.pretraining.batch import Collator
    from drtk.pretraining.network import filled
    from drtk.pretraining.token_generator import Generator

    proposing = Generator.of_folder(locate(generator), tokenizer)
    collate, wanted = Collator(pad=int(tokenizer.pad_token_id or 0)), plan.generator

    def fill(name: str, slot: Slotted) -> list[int]:
        batch = collate([{name: slot}], [()])
        ids: list[int] = filled(batch[name], plan.slots[name].corruption, proposing, wanted)[0].tolist()
        return ids

    return fill


def explained(plan: Composition, material: Material, network: Network, *, at_once: int | None = None) -> Iterator[str]:
    """Lines of text about a training that is about to begin. Examples are drawn for their lengths; nothing is written.

    at_once: examples in memory together, where the settings do not say
    """
    from drtk.pretraining.cost_model import estimated
    from drtk.pretraining.trainer import trainable

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
    from drtk.pretraining.cost_model import trained

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
