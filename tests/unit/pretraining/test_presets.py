"""The pre-training options on the method pages and in the examples of the help are valid compositions."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

from drtk.cli.help import get_examples
from drtk.cli.main import _build_parser
from drtk.config import list_preset_names, load_preset, merge_settings
from drtk.pretraining.assembly import check_composition
from drtk.pretraining.config import PretrainSettings
from drtk.pretraining.parse import apply_changes, parse_composition

METHODS = Path(__file__).resolve().parents[3] / "docs" / "methods"
SETTINGS = {"--" + item.name.replace("_", "-"): item.name for item in fields(PretrainSettings)}


def read_rows() -> list[tuple[str, str, str]]:
    """Return (page, row, options) of the pre-training options on the method pages.

    A page may name the preset of all its options in a line that begins with "Options after", and define shell variables.
    """
    rows = []
    for page in sorted(METHODS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        default = re.search(r"^Options after `drtk pretrain .*(--preset \S+)`", text, re.MULTILINE)
        for name, value in reversed(re.findall(r'^(\w+)="(.+)"$', text, re.MULTILINE)):
            text = text.replace(f"${name}", value)
        for line in text.splitlines():
            row = line.split("|")[1].strip() if line.startswith("|") else "in the text"
            for options in re.findall(r"`(--(?:preset|set|drop) [^`$]+)`", line):
                if options.startswith("--preset"):
                    rows.append((page.stem, row, options))
                elif default and "VALUE" not in options:
                    rows.append((page.stem, row, f"{default[1]} {options}"))
    return rows


def check_options(options: str, *, place: str) -> None:
    """Check options of `drtk pretrain`."""
    words = shlex.split(options)
    values: dict[str, list[str]] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        values.setdefault(flag, []).append(value)
    (name,) = values.pop("--preset")
    preset = load_preset(name)
    assert preset.command == "pretrain"
    changes, drops = values.pop("--set", []), values.pop("--drop", [])
    composition = parse_composition(apply_changes(preset.content, changes), name)
    check_composition(composition.drop_objectives(drops) if drops else composition, place=place)
    given = {SETTINGS[flag]: json.loads(value) for flag, (value,) in values.items()}
    merge_settings(PretrainSettings, preset.settings, given)


def test_every_documented_variant_is_a_valid_composition() -> None:
    rows = read_rows()
    for page, name, options in rows:
        check_options(options, place=f"{page}: {name}")
    for example in get_examples(_build_parser("pretrain")):
        check_options(" ".join(re.findall(r"--(?:preset|set|drop) \S+", example)), place=example)
    counts = {page: sum(row[0] == page for row in rows) for page, *_ in rows}
    assert (counts["simlm"], counts["diffcse"]) == (15, 13)
    assert counts["master"] >= 12
    assert {"condenser", "cocondenser", "cotmae", "rom", "baselines"} <= counts.keys()
    pages = "".join(page.read_text(encoding="utf-8") for page in METHODS.glob("*.md"))
    presets = [name for name in list_preset_names() if load_preset(name).command == "pretrain"]
    missing = [name for name in presets if f"`{name}`" not in pages and f"--preset {name}" not in pages]
    assert missing == ["mixture-example"]
