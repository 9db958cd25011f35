"""A report on several systems: what is computed, and the same as JSON, as Markdown and as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drtk.evaluation.comparison import Contrast
from drtk.evaluation.curves import LossCurve
from drtk.evaluation.evaluate import Evaluation
from drtk.evaluation.examples import ExampleQuery, TopHit
from drtk.evaluation.findings import Overlap, describe_contrast, leaders, significance_note
from drtk.evaluation.grids import escape_markdown, markdown_code
from drtk.evaluation.measures import Measure
from drtk.evaluation.tables import table_lines

PICTURE = "report.png"
_WHY = {"second": "{1} is better", "first": "{0} is better", "alike": "both alike"}


@dataclass
class Report:
    """Everything a report says; `picture` is whether report.png lies beside it."""

    title: str
    results: list[Evaluation]
    measures: list[Measure]
    judged: int
    depths: Sequence[int]
    recall: Mapping[str, Sequence[float]]
    contrasts: list[Contrast]
    alpha: float
    overlap: Overlap | None = None
    loss: LossCurve | None = None
    examples: list[ExampleQuery] = field(default_factory=list)
    picture: bool = False

    @property
    def names(self) -> list[str]:
        """Names of the measures."""
        return [measure.name for measure in self.measures]

    def content(self) -> dict[str, Any]:
        """What report.json holds."""
        loss = self.loss
        return {
            "title": self.title,
            "queries": self.results[0].queries,
            "relevant": self.judged,
            "systems": {result.name: result.overall for result in self.results},
            "recall": {"k": list(self.depths)} | {name: list(values) for name, values in self.recall.items()},
            "verdict": {
                "comparisons": [
                    each.row() | {"significant": each.is_significant(self.alpha)} for each in self.contrasts
                ],
                "overlap": None
                if self.overlap is None
                else {
                    "runs": list(self.overlap.runs),
                    "fused": self.overlap.fused,
                    "depth": self.overlap.depth,
                    "relevant": self.overlap.found,
                    "kept": self.overlap.kept,
                    "shared": self.overlap.shared,
                },
                "text": self.findings(),
            },
            "loss": None
            if loss is None
            else {"first": loss.first, "last": loss.last, "steps": loss.steps, "values": loss.losses},
            "examples": [example.row() for example in self.examples],
        }

    def findings(self) -> list[str]:
        """What the numbers say, a sentence or two each."""
        overall = {result.name: result.overall for result in self.results}
        main = [each for each in self.contrasts if each.measure == self.names[0]]
        said = []
        for each in main:
            values = (float(overall[each.system][each.measure]), float(overall[each.baseline][each.measure]))
            said.append(describe_contrast(each, values, significant=each.is_significant(self.alpha)))
        if main:
            said.append(significance_note(main[0].baseline, len(main), self.alpha))
        if len(self.results) > 1:
            said += leaders(self.results, self.names)
        if self.overlap is not None:
            said.append(self.overlap.text())
        if self.loss is not None:
            said.append(self.loss.text())
        return said

    def markdown(self) -> Iterator[str]:
        """Lines of report.md."""
        yield from (f"# {escape_markdown(self.title)}", "", self._scope(), "")
        yield from table_lines(self.results, self.measures, format="markdown", per_query=False)
        if self.picture:
            yield from ("", f"![{', '.join(self.names)} by system, recall by depth, loss by step]({PICTURE})")
        yield from ("", "## Findings", "")
        yield from (f"- {escape_markdown(line)}" for line in self.findings())
        if self.examples:
            yield from ("", "## Examples", "")
        for example in self.examples:
            why = escape_markdown(self._why(example))
            yield f"**{escape_markdown(example.text)}** ({markdown_code(example.query_id)}; {why})"
            yield ""
            for hit in example.hits:
                head = markdown_code(hit.id) if hit.id else ""
                if hit.title:
                    head = f"**{escape_markdown(hit.title)}** ({head})"
                system, snippet = escape_markdown(hit.system), escape_markdown(hit.snippet)
                yield f"- {system}, {_standing(hit)}: {head} {snippet}".rstrip()
            yield ""

    def text(self, width: int) -> Iterator[str]:
        """Lines for a terminal of `width` columns."""
        yield from (self.title, self._scope(), "")
        yield from table_lines(self.results, self.measures, format="table", per_query=False)
        yield ""
        for line in self.findings():
            yield from textwrap.wrap(line, width, initial_indent="- ", subsequent_indent="  ")
        for number, example in enumerate(self.examples, start=1):
            yield ""
            yield from textwrap.wrap(
                f"{number}. {' '.join(example.text.split())} ({self._why(example)})", width, subsequent_indent="   "
            )
            label = max(len(hit.system) for hit in example.hits)
            for hit in example.hits:
                head = f"   {hit.system.ljust(label)}  "
                title = " ".join(hit.title.split()) or hit.id or "nothing found"
                yield head + textwrap.shorten(
                    f"{title} ({_standing(hit)})", max(40, width - len(head)), placeholder=" …"
                )
                yield from textwrap.wrap(
                    hit.snippet,
                    width,
                    initial_indent=" " * len(head),
                    subsequent_indent=" " * len(head),
                    max_lines=2,
                    placeholder=" …",
                )

    def _scope(self) -> str:
        systems = "1 system" if len(self.results) == 1 else f"{len(self.results)} systems"
        return f"{systems}, {self.results[0].queries:,} queries, {self.judged:,} relevant documents."

    def _why(self, example: ExampleQuery) -> str:
        return _WHY[example.why].format(*(hit.system for hit in example.hits))


def _standing(hit: TopHit) -> str:
    if hit.relevant:
        return "right"
    return "the right one is not retrieved" if hit.rank is None else f"the right one is at rank {hit.rank}"
