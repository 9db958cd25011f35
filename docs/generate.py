"""Writes the generated parts of docs/: the options of each command, the options that commands share, the list of commands.

python docs/generate.py           write them
python docs/generate.py --check   exit status 1 where they are not current
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

os.environ["COLUMNS"] = "100"  # the help is laid out alike on every terminal
os.environ["NO_COLOR"] = "1"
DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from drtk.cli.main import COMMANDS, STAGES, app, load_functions  # noqa: E402
from drtk.config import PANELS  # noqa: E402

BEGIN, END = "<!-- options -->", "<!-- /options -->"
SHARED_BY = 5  # commands; an option that as many have is described once, in docs/commands/README.md
EVERYWHERE = ("--quiet", "--verbose", "--help")  # on no page but docs/commands/README.md


@cache
def help_of(command: str) -> str:
    """The text of `drtk COMMAND --help`."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        app([*command.split(), "--help"], prog_name="drtk")
    return shown.getvalue()


def summary_of(command: str) -> str:
    """The first sentence of a command's help."""
    lines = [line.strip() for line in help_of(command).split("\n\n")[1].splitlines()]
    return " ".join(lines)


def panels_of(step: str) -> tuple[str, dict[str, list[str]]]:
    """The usage line of a step, and its options (with their indentation) by panel."""
    usage, *blocks = help_of(step).strip().split("\n\n")
    panels = {}
    for block in blocks:
        title, _, options = block.partition(":\n")
        if title in (*PANELS, "Options"):
            panels[title] = re.split(r"\n(?=  \S)", options)
    return usage.removeprefix("Usage: "), panels


def plain_option(option: str) -> str:
    """The text of an option on one line, alike in all commands."""
    return re.sub(r"--fields ['\w -]+ lists", "--fields COMMAND lists", " ".join(option.split()))


@cache
def shared_options() -> list[str]:
    """The options, except -o and required ones, that at least SHARED_BY commands have with the same help, panel by panel."""
    uses: Counter[str] = Counter()
    panel_of = {}
    for step in load_functions():
        for panel, options in panels_of(step)[1].items():
            for option in map(plain_option, options):
                panel_of[option] = (*PANELS, "Options").index(panel)
                uses[option] += option.startswith("-") and not option.startswith("-o") and "[required]" not in option
    shared = [option for option in panel_of if uses[option] >= SHARED_BY]
    return sorted(shared, key=lambda option: panel_of[option])


def name_of(option: str) -> str:
    """The longest name of an option."""
    return next(word for word in option.replace(",", "").split() if word.startswith("--"))


def options_of(command: str) -> str:
    """Synopsis and options as they stand on the page, without the description, which the page gives at length.

    Those of a group are those of all its steps, one after the other. Shared options have their names only.
    """
    return "\n\n".join(_synopsis(step) for step in load_functions() if step.split()[0] == command)


def _synopsis(step: str) -> str:
    usage, panels = panels_of(step)
    blocks, shared = [usage], []
    for panel, options in panels.items():
        own = [option for option in options if plain_option(option) not in shared_options()]
        shared += [name_of(option) for option in options if option not in own and name_of(option) not in EVERYWHERE]
        blocks += ["\n".join([f"{panel}:", *own])] if own else []
    text = "```text\n" + "\n\n".join(blocks) + "\n```"
    return f"{text}\n\n[Shared options](README.md#shared-options): `{' '.join(shared)}`" if shared else text


def page_of(command: str) -> Path:
    return DOCS / "commands" / f"{command}.md"


def with_generated(page: str, name: str, content: str) -> str:
    """A page with its generated part renewed. ValueError where the page has no place for it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"docs/commands/{name}.md: lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"


def list_of_commands() -> str:
    """The commands by stage, and the options that they share."""
    lists = [
        f"## {stage}\n\n" + "\n".join(f"- [{name}]({name}.md): {summary_of(name)}" for name in names)
        for stage, names in STAGES.items()
    ]
    shared = "\n".join(map(_option_item, shared_options()))
    return "\n\n".join([*lists, f"## Shared options\n\n{shared}"])


def _option_item(option: str) -> str:
    names = re.match(r"(-\w, )?--[\w-]+( [A-Z/=]+(?= )| [a-z]+\|\S+)?", option)
    assert names is not None
    meaning = option[names.end() :].strip()
    return f"- `{names[0]}`: {meaning}"


def generated() -> tuple[dict[Path, str], list[str]]:
    """What everything generated should hold, by file; and complaints about pages that are missing or have no place."""
    contents: dict[Path, str] = {}
    complaints: list[str] = []
    for name in ("README", *COMMANDS):
        page = page_of(name)
        if not page.exists():
            complaints.append(f"docs/commands/{name}.md: is missing; write it, with {BEGIN} and {END} in it")
            continue
        content = list_of_commands() if name == "README" else options_of(name)
        try:
            contents[page] = with_generated(page.read_text(encoding="utf-8"), name, content)
        except ValueError as error:
            complaints.append(str(error))
    return contents, complaints


def is_current(path: Path, content: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == content


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 where something is outdated"
    )
    chosen = parser.parse_args()
    contents, complaints = generated()
    for path, content in contents.items():
        if is_current(path, content):
            continue
        if chosen.check:
            complaints.append(f"{path.relative_to(DOCS.parent)}: is not current; run: python docs/generate.py")
        else:
            path.write_text(content, encoding="utf-8")
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if complaints:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
