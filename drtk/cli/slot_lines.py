"""What the slots of a composition show of real passages: hidden, replaced and labelled tokens, in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from drtk.cli.saying import read_by, said_slot
from drtk.io.progress import printable
from drtk.settings.composition import Composition, Contrast, Recover
from drtk.settings.objectives import OBJECTIVES

if TYPE_CHECKING:
    from drtk.text.slots import Slotted

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

    from drtk.settings.composing import composition, with_changes
    from drtk.settings.core import merge
    from drtk.settings.pretraining import PretrainSettings
    from drtk.text.slots import SlotBuilder, fields_of, frame_of
    from drtk.text.token_corpus import TokenCorpus
    from drtk.text.tokens import load_tokenizer

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
    from drtk.models.generator import Generator
    from drtk.models.hub import locate
    from drtk.objectives.batch import Collator
    from drtk.objectives.filling import filled

    proposing = Generator.of_folder(locate(generator), tokenizer)
    collate, wanted = Collator(pad=int(tokenizer.pad_token_id or 0)), plan.generator

    def fill(name: str, slot: Slotted) -> list[int]:
        batch = collate([{name: slot}], [()])
        ids: list[int] = filled(batch[name], plan.slots[name].corruption, proposing, wanted)[0].tolist()
        return ids

    return fill
