"""Write the generated parts of docs/: options of each command, options that commands share, list of commands, results of the recipes.

python docs/generate.py           write them
python docs/generate.py --check   exit with status 1 if a page is not current
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import orjson
from scipy.special import stdtrit
from scipy.stats import ttest_ind_from_stats

os.environ["COLUMNS"] = "100"  # the help is laid out alike on every terminal
os.environ["NO_COLOR"] = "1"
DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "results" / "mini"
sys.path[:0] = [str(DOCS.parent), str(DOCS / "cookbook" / "papers")]

from verify import read_result  # noqa: E402

from drtk.cli.main import COMMANDS, STAGES, app, load_functions  # noqa: E402
from drtk.config import PANELS  # noqa: E402
from drtk.evaluation.compare_report import format_p_value  # noqa: E402
from drtk.evaluation.significance import correct_holm, run_t_test  # noqa: E402
from drtk.runtime.streams import open_input  # noqa: E402

BEGIN, END = "<!-- generated -->", "<!-- /generated -->"
SHARED_BY = 5  # commands; an option that as many have is described once, in docs/commands/README.md
VERDICTS = ("confirmed", "not over seeds", "not significant", "reversed")
EVERYWHERE = ("--quiet", "--verbose", "--help")  # on no page but docs/commands/README.md


@cache
def get_help(command: str) -> str:
    """Return the text of `drtk COMMAND --help`."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        app([*command.split(), "--help"], prog_name="drtk")
    return shown.getvalue()


def get_summary(command: str) -> str:
    """Return the first paragraph of the help of a command."""
    lines = [line.strip() for line in get_help(command).split("\n\n")[1].splitlines()]
    return " ".join(lines)


def get_panels(step: str) -> tuple[str, dict[str, list[str]]]:
    """Return the usage line of a (sub)command, and its options, with their indentation, by panel."""
    usage, *blocks = get_help(step).strip().split("\n\n")
    panels = {}
    for block in blocks:
        title, _, options = block.partition(":\n")
        if title in (*PANELS, "Options"):
            panels[title] = re.split(r"\n(?=  \S)", options)
    return usage.removeprefix("Usage: "), panels


def join_lines(option: str) -> str:
    """Return the text of an option on one line, with COMMAND in place of the name of the command."""
    return re.sub(r"--fields ['\w -]+ lists", "--fields COMMAND lists", " ".join(option.split()))


@cache
def get_shared_options() -> list[str]:
    """Return the options, except -o and required ones, that at least SHARED_BY commands have with the same help, by panel."""
    uses: Counter[str] = Counter()
    panel_of = {}
    for step in load_functions():
        for panel, options in get_panels(step)[1].items():
            for option in map(join_lines, options):
                panel_of[option] = (*PANELS, "Options").index(panel)
                uses[option] += option.startswith("-") and not option.startswith("-o") and "[required]" not in option
    shared = [option for option in panel_of if uses[option] >= SHARED_BY]
    return sorted(shared, key=lambda option: panel_of[option])


def get_name(option: str) -> str:
    """Return the long name of an option."""
    return next(word for word in option.replace(",", "").split() if word.startswith("--"))


def format_options(command: str) -> str:
    """Return the usage and options of a command, or of all its subcommands; of shared options only the names."""
    return "\n\n".join(_synopsis(step) for step in load_functions() if step.split()[0] == command)


def _synopsis(step: str) -> str:
    usage, panels = get_panels(step)
    blocks, shared = [usage], []
    for panel, options in panels.items():
        own = [option for option in options if join_lines(option) not in get_shared_options()]
        shared += [get_name(option) for option in options if option not in own and get_name(option) not in EVERYWHERE]
        blocks += ["\n".join([f"{panel}:", *own])] if own else []
    text = "```text\n" + "\n\n".join(blocks) + "\n```"
    return f"{text}\n\n[Shared options](README.md#shared-options): `{' '.join(shared)}`" if shared else text


def get_page(command: str) -> Path:
    return DOCS / "commands" / f"{command}.md"


def format_list_of_commands() -> str:
    """Return the list of commands by stage, and the options that they share."""
    lists = [
        f"## {stage}\n\n" + "\n".join(f"- [{name}]({name}.md): {get_summary(name)}" for name in names)
        for stage, names in STAGES.items()
    ]
    shared = "\n".join(map(_option_item, get_shared_options()))
    return "\n\n".join([*lists, f"## Shared options\n\n{shared}"])


def _option_item(option: str) -> str:
    names = re.match(r"(-\w, )?--[\w-]+( [A-Z/=]+(?= )| [a-z]+\|\S+)?", option)
    assert names is not None
    meaning = option[names.end() :].strip()
    return f"- `{names[0]}`: {meaning}"


def format_results() -> str:
    """Return the summary and the tables of each recipe as Markdown."""
    recipes = tomllib.loads((DOCS / "cookbook" / "papers" / "expected.toml").read_text(encoding="utf-8"))
    names = recipes.pop("names")
    summary = [
        f"| table | paper | rows measured | {' | '.join(VERDICTS)} |",
        "| --- | --- | ---: " + "| ---: " * len(VERDICTS) + "|",
    ]
    tables = []
    for name, expected in recipes.items():
        result, measure, rows, title = (
            RESULTS / f"{name}.jsonl",
            expected["measure"].get("mini"),
            expected["rows"],
            expected["title"],
        )
        systems, tests = read_result(result, measure) if result.exists() else ({}, {})
        values = read_means(name, measure)
        claims, controls = (
            test_orders(expected.get(key, []), values, systems, tests) for key in ("claims", "controls")
        )
        verdicts = Counter(order.verdict for order in claims)
        anchor = re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        cells = [f"[{title}](#{anchor})", expected["paper"], f"{len(systems.keys() & rows.keys())} of {len(rows)}"]
        counts = [str(verdicts[verdict]) if claims else "" for verdict in VERDICTS]
        summary.append(f"| {' | '.join([*cells, *counts])} |")
        tables.append(_format_recipe(name, expected, systems, [*claims, *controls], names))
    return "\n\n".join(["\n".join(summary), *tables])


class Order(NamedTuple):
    """Test of "`higher` is above `lower`". p: Holm-corrected, over the queries or, if no such test is recorded, over the seeds"""

    higher: str
    lower: str
    difference: float
    p: float
    p_over_seeds: float | None
    is_over_queries: bool

    @property
    def verdict(self) -> str:
        if self.p >= 0.05:
            return "not significant"
        if self.p_over_seeds is not None and self.p_over_seeds >= 0.05:
            return "not over seeds"
        return "confirmed" if self.difference > 0 else "reversed"


def test_orders(
    orders: list[str],
    values: dict[str, list[float]],
    systems: dict[str, Any],
    tests: dict[tuple[str, str], Any],
) -> list[Order]:
    """Test orders "A > B". values: by query, of some systems; systems and tests: of the result"""
    tested = []
    for order in orders:
        higher, lower = order.split(" > ")
        recorded = tests.get((higher, lower)) or tests.get((lower, higher)) or {}
        over_seeds = test_over_seeds(systems[higher], systems[lower])
        if higher in values and lower in values:
            p = run_t_test(np.subtract(values[higher], values[lower])).p
        else:
            p = recorded["t_p"] if "df" in recorded else None  # only tests over queries have degrees of freedom
        difference = systems[higher]["mean"] - systems[lower]["mean"]
        tested.append(Order(higher, lower, difference, over_seeds if p is None else p, over_seeds, p is not None))
    corrected = correct_holm([order.p for order in tested])
    return [order._replace(p=p) for order, p in zip(tested, corrected, strict=True)]


def read_means(name: str, measure: str) -> dict[str, list[float]]:
    """Return means over the seeds by system, one per query, of the files with values by query."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(RESULTS.glob(f"{name}.[0-9].values.jsonl.zst")):
        with open_input(str(path))[0] as lines:
            for record in map(orjson.loads, lines):
                if "query_id" in record:
                    found[record["run"]][record["query_id"]].append(record[measure])
    return {run: [fmean(by_query[query]) for query in sorted(by_query)] for run, by_query in found.items()}


def test_over_seeds(system: dict[str, Any], other: dict[str, Any]) -> float | None:
    """Return the p value of Welch's t-test of the means over seeds, two-sided.

    None unless both systems have three runs and one of them depends on the seed.
    """
    if min(system["runs"], other["runs"]) < 3 or not (system["sd"] or other["sd"]):
        return None
    statistics = [value for found in (system, other) for value in (found["mean"], found["sd"], found["runs"])]
    return float(ttest_ind_from_stats(*statistics, equal_var=False).pvalue)


def _format_label(row: str, values: dict[str, Any], names: dict[str, str]) -> str:
    name = values.get("name") or names.get(row)
    return f"{row}: {name}" if name else row


def _format_recipe(
    name: str, expected: dict[str, Any], systems: dict[str, Any], orders: list[Order], names: dict[str, str]
) -> str:
    recipe, rows = expected.get("recipe", name), expected["rows"]
    options = "" if expected.get("whole") else " --rows ROW" if systems else " --scale full"
    command = expected.get("command") or f"just reproduce {recipe}{options}"
    files = f"../results/mini/{name}.jsonl"
    links = f"[recipe](cookbook/papers/{recipe}.sh)"
    if systems:
        links += f" · [result]({files}), [manifest]({files}.meta.json)"
    lines = [
        f"## {expected['title']}",
        "",
        f"{expected['paper']} · `{command}` · {links}",
        "",
        f"| row | paper: {expected['measure']['full']} | here{': ' + expected['measure']['mini'] if systems else ''} |",
        "| --- | ---: | ---: |",
    ]
    for row, values in rows.items():
        paper = f"{values['full']:.3f}" if "full" in values else "–"
        here = values.get("reason") or expected.get("reason", "not run")
        if found := systems.get(row):
            here = f"{found['mean']:.4f}"
            if found["sd"] and found["runs"] > 2:
                reach = stdtrit(found["runs"] - 1, 0.975) * found["sd"] / found["runs"] ** 0.5
                here += f" ± {reach:.4f}"
            if found["runs"] < 3:
                here += f" ({found['runs']} run{'s' if found['runs'] > 1 else ''})"
        lines.append(f"| {_format_label(row, values, names)} | {paper} | {here} |")
    shown = [order for order in orders if min(order.p, 1 if order.p_over_seeds is None else order.p_over_seeds) < 0.05]
    if shown:
        lines += ["", "| order | paper | here | p | p over seeds | |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    for order in shown:
        published = [rows[row].get("full") for row in (order.higher, order.lower)]
        paper = "–" if None in published else f"{published[0] - published[1]:+.3f}"
        p = format_p_value(order.p) + ("" if order.is_over_queries else "†")
        over_seeds = "–" if order.p_over_seeds is None else format_p_value(order.p_over_seeds)
        cells = [f"{order.higher} > {order.lower}", paper, f"{order.difference:+.4f}", p, over_seeds, order.verdict]
        lines.append(f"| {' | '.join(cells)} |")
    if others := [f"{order.higher} > {order.lower}" for order in orders if order not in shown]:
        lines += ["", f"Not significant: {', '.join(others)}."]
    if note := expected.get("note"):
        lines += ["", note.rstrip()]
    return "\n".join(lines)


def build_pages() -> tuple[dict[Path, str], list[str]]:
    """Return the current content of each page with a generated part, and complaints about pages without a place for it."""
    builders: dict[Path, Callable[[], str]] = {get_page(name): partial(format_options, name) for name in COMMANDS}
    builders |= {get_page("README"): format_list_of_commands, DOCS / "reproduction.md": format_results}
    contents: dict[Path, str] = {}
    complaints: list[str] = []
    for page, build in builders.items():
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN) if page.exists() else ("", "", "")
        _, end, after = rest.partition(END)
        if end:
            contents[page] = f"{before}{begin}\n{build()}\n{end}{after}"
        else:
            complaints.append(f"docs/{page.relative_to(DOCS)}: must exist and contain the lines {BEGIN} and {END}")
    return contents, complaints


def is_current(path: Path, content: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == content


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 where something is outdated"
    )
    chosen = parser.parse_args()
    contents, complaints = build_pages()
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
