"""Choose the expansion of each query (EAR)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from drtk.data.checks import count_texts, describe_missing_texts, warn_of_missing_texts
from drtk.data.jsonl import dump
from drtk.errors import DrtkError, MismatchError
from drtk.indexing.config import SearchSettings
from drtk.models.config import ScoringSettings
from drtk.query_expansion.candidates import ExpansionList, find_missing, iter_expansion_lists, select_distinct
from drtk.query_expansion.config import ChooseSettings
from drtk.query_expansion.query_reranker_input import CandidateTexts, CandidateTokenizer, load_input_format
from drtk.records import Expansion, Passage, Query
from drtk.runtime.filter_job import FilterJob, WindowResult
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import get_manifest_path, is_done, read_manifest
from drtk.runtime.runners import BatchFunction, RunnerSettings, run_filter
from drtk.runtime.streams import name_of
from drtk.text.expanded_text import expand_query, format_query
from drtk.text.words import split_words

if TYPE_CHECKING:
    from drtk.models.cross_encoder import TokenizedPairs
    from drtk.retrieval.search import PassageSearcher

GREEDY = "greedy"  # "decode" of a candidate that was decoded greedily
LUCENE_CLAUSES = 1024  # distinct words of a query that Lucene accepts by default
LINES = "choices.jsonl"  # in the folder: the choice for each query and kind, and its reason
WINDOW = 64  # queries (of one kind) between two points to resume from
ANY = ""  # the kind of a model for all kinds without one of their own


def sort_by_estimate(expansions: Sequence[Expansion], estimates: np.ndarray) -> list[Expansion]:
    """Return the candidates by estimated rank, LOWEST first, equal ones in their order (docs/methods/ear.md).

    estimates: (candidates,)
    """
    return [expansions[place] for place in np.argsort(estimates, kind="stable")]


def sort_by_label(expansions: Sequence[Expansion]) -> list[Expansion]:
    """Return the candidates by the rank of their first answer-bearing passage: the oracle (docs/methods/ear.md).

    Raises MismatchError for a candidate without a label.
    """
    for each in expansions:
        if problem := find_missing(each, rank=True, top1=False):
            raise MismatchError(problem)
    return sorted(expansions, key=lambda each: each.rank or 0)


def select_greedy(expansions: Sequence[Expansion]) -> list[Expansion]:
    """Return the candidates that were decoded greedily (GAR's baseline); none if that text was blank."""
    return [each for each in expansions if each.extra.get("decode") == GREEDY]


CHOICES: dict[str, Callable[[Sequence[Expansion]], list[Expansion]]] = {
    "first": list,
    "oracle": sort_by_label,
    "greedy": select_greedy,
}


def concatenate(query: str, expansions: Sequence[Expansion], *, clauses: int | None = None) -> tuple[str, bool]:
    """Return one query with all candidates (GAR's concat), and whether it was cut.

    clauses: the largest number of distinct words, which are runs of letters and digits here: an analyzer that removes
             stop words or stems has no more
    """
    text = expand_query(query, *(each.text for each in expansions))
    if clauses is None:
        return text, False
    seen: set[str] = set()
    kept: list[str] = []
    for word in text.split():
        seen.update(split_words(word, latin=False))
        if len(seen) > clauses:
            return " ".join(kept), True
        kept.append(word)
    return text, False


class RankEstimator:
    """Estimate the ranks of candidates with one query re-ranker: THE LOWER, THE BETTER.

    It is no `Scorer`, whose higher scores are better.
    model: a folder that drtk rerank-queries train made, or a copy of it
    Raises MismatchError for any other model, and what loading one raises.
    """

    def __init__(self, model: str, *, device: str = "auto", settings: ScoringSettings | None = None) -> None:
        from drtk.models.cross_encoder import CrossEncoderScorer  # imports torch

        settings = settings or ScoringSettings()
        self.reading = load_input_format(model)
        reading = self.reading
        if settings.max_length is not None:
            reading = replace(reading, max_length=settings.max_length)
        self._scorer = CrossEncoderScorer(
            model,
            device=device,
            settings=settings,
            logits=True,
            make_tokenizer=lambda tokenizer: CandidateTokenizer(tokenizer, reading),
        )

    def __call__(self, candidates: Sequence[CandidateTexts]) -> np.ndarray:
        """Return the estimates of the candidates, (candidates,), float32."""
        return self.estimates(self.prepare(candidates))

    def prepare(self, candidates: Sequence[CandidateTexts]) -> TokenizedPairs:
        """Tokenize the candidates."""
        return self._scorer.tokenize(candidates)  # type: ignore[arg-type]  # its tokenizing takes them

    def estimates(self, prepared: TokenizedPairs) -> np.ndarray:
        """Return the estimates of tokenized candidates, (candidates,), float32. Raises what Scorer.scores raises."""
        return self._scorer.scores(prepared) if len(prepared.rows) else np.empty(0, dtype=np.float32)


class _TokenizedLists(NamedTuple):
    """Lists of distinct candidates, their tokens by model, and counts."""

    lists: list[ExpansionList]
    tokens: dict[RankEstimator, TokenizedPairs]
    counts: Counter[str]


class QuerySelector(BatchFunction):
    """Choose queries: windows of `ExpansionList` to lines of choices.jsonl, best first.

    models: query re-rankers by kind, that of ANY for other kinds; for `select` scorer only, as other choices need no torch
    index, corpus: to search the first passage of candidates without "top1", for retrieval-dependent (RD) models
    """

    def __init__(
        self, settings: ChooseSettings, models: Mapping[str, str], device: str, index: str | None, corpus: str | None
    ) -> None:
        self._settings = settings
        self.ahead = index is None  # an index must be searched by the thread that opened it
        self._searcher: PassageSearcher | None = None
        if index is not None:
            from drtk.retrieval.search import PassageSearcher

            self._searcher = PassageSearcher(
                index, corpus=corpus, settings=SearchSettings(k1=settings.k1, b=settings.b)
            )
        loaded = {
            model: RankEstimator(model, device=device, settings=settings) for model in dict.fromkeys(models.values())
        }
        self._scorers = {kind: loaded[model] for kind, model in models.items()}

    def prepare(self, records: list[ExpansionList]) -> _TokenizedLists:
        """Select the distinct candidates of each list, and tokenize them."""
        most = self._settings.max_candidates
        lists = [replace(each, expansions=tuple(select_distinct(each.expansions, most))) for each in records]
        counts: Counter[str] = Counter(candidates=sum(len(each.expansions) for each in records))
        if not self._scorers:
            return _TokenizedLists(lists, {}, counts)
        first = self._search_first(lists, counts)
        given: dict[RankEstimator, list[CandidateTexts]] = {}
        for each in lists:
            scorer = self._scorer(each.kind)
            candidates = given.setdefault(scorer, [])
            for one in each.expansions:
                query = expand_query(each.query.text, one.text)
                top = (one.top1 or first[query]) if scorer.reading.scorer == "rd" else {}
                candidates.append(CandidateTexts(each.query.text, one.text, top.get("title", ""), top.get("text", "")))
        return _TokenizedLists(
            lists, {scorer: scorer.prepare(candidates) for scorer, candidates in given.items()}, counts
        )

    def _scorer(self, kind: str) -> RankEstimator:
        return self._scorers[kind if kind in self._scorers else ANY]

    def _search_first(self, lists: Sequence[ExpansionList], counts: Counter[str]) -> dict[str, dict[str, str]]:
        """Return title and text of the first passage, by query, for candidates without "top1" whose model reads it."""
        queries = dict.fromkeys(
            expand_query(each.query.text, one.text)
            for each in lists
            if self._scorer(each.kind).reading.scorer == "rd"
            for one in each.expansions
            if one.top1 is None
        )
        if not queries:
            return {}
        assert self._searcher is not None  # `choose_queries` rejects these candidates without an index
        first: dict[str, dict[str, str]] = {}
        passages = []
        for query, ranking in zip(queries, self._searcher.search(list(queries), 1), strict=True):
            passage = self._searcher.get_passage(ranking[0][0]) if ranking else Passage("", "")
            first[query] = {"title": passage.title, "text": passage.text}
            passages += [passage] if ranking else []
        counts.update(count_texts(passages))
        return first

    def __call__(self, prepared: _TokenizedLists) -> WindowResult:
        """Return the lines of a window, and counts of candidates and of the passages that were looked up."""
        lists, tokens, looked_up = prepared
        names = ("candidates", "distinct", "chosen", "cut", "above Lucene's limit")
        counts: dict[str, int] = dict.fromkeys(names, 0) | looked_up
        values = {scorer: scorer.estimates(each) for scorer, each in tokens.items()}
        at = dict.fromkeys(values, 0)
        lines = []
        for each in lists:
            estimates: np.ndarray | None = None
            if self._scorers:
                scorer = self._scorer(each.kind)
                start, at[scorer] = at[scorer], at[scorer] + len(each.expansions)
                estimates = values[scorer][start : at[scorer]]
            counts["distinct"] += len(each.expansions)
            lines.append(dump(self._line(each, estimates, counts)))
        return WindowResult(lines, counts)

    def _line(self, each: ExpansionList, estimates: np.ndarray | None, counts: dict[str, int]) -> dict[str, Any]:
        expansions, query = each.expansions, each.query.text
        line: dict[str, Any] = {"query_id": each.query.id, "kind": each.kind}
        if self._settings.select == "concat":
            counts["chosen"] += 1
            text, cut = concatenate(query, expansions, clauses=self._settings.max_clauses)
            counts["cut"] += cut
            counts["above Lucene's limit"] += len(set(split_words(text, latin=False))) > LUCENE_CLAUSES
            return line | {"chosen": [[one.id for one in expansions]], "queries": [text]}
        if estimates is not None:
            best = sort_by_estimate(expansions, estimates)[: self._settings.n_best]
        else:
            best = CHOICES[self._settings.select](expansions)[: self._settings.n_best]
        counts["chosen"] += bool(best)
        line |= {"chosen": [[one.id] for one in best]}
        if estimates is not None:
            of = dict(zip((one.id for one in expansions), estimates.tolist(), strict=True))
            line["estimates"] = [of[one.id] for one in best]
        if all(one.rank is not None for one in best):
            line["ranks"] = [one.rank for one in best]
        return line | {"queries": [expand_query(query, one.text) for one in best]}


def choose_queries(
    source: str,
    queries: Mapping[str, Query],
    settings: ChooseSettings,
    *,
    models: Mapping[str, str],
    device: str,
    index: str | None,
    corpus: str | None,
    running: RunnerSettings,
    job: FolderJob,
) -> dict[str, Any]:
    """Write choices.jsonl and the query files into the folder of `job`; return counts, and "files", the size of each.

    A resumed job continues choices.jsonl, or uses it as it is if it is complete.
    Raises what reading the candidates raises, RecordError (file:line) for those that lack what the choice needs,
    DrtkError if there are none.
    """
    folder = job.begin()
    path = str(folder / LINES)
    inner = FilterJob(
        *(job.command, "choices", path, job.settings),
        resume=job.resume,
        force=job.force,
        log_summary=False,
        tracker=job.tracker,
    )
    inner.recover()
    place = str(corpus)
    if index is not None and corpus is None:
        place = str(read_manifest(index).get("corpus") or index)
    if job.resume and is_done(path, job.settings, program=job.command):  # killed while the queries were written
        known = {entry["path"] for entry in job.tracker.inputs}
        job.tracker.inputs += [e for e in read_json(get_manifest_path(path))["inputs"] if e["path"] not in known]
    else:
        Path(path).unlink(missing_ok=True)  # finished, but its manifest is gone or describes other settings
        inner.find_problem = lambda _: describe_missing_texts(inner.counts, place)
        check = _make_check(settings.select, models, index)
        lists = _reject_empty(iter_expansion_lists(source, queries, job.tracker, check=check), source)
        arguments = (settings, models, device, index, corpus)
        run_filter(lists, inner, QuerySelector, *arguments, running=running, window=WINDOW, unit="questions")
    counts: dict[str, Any] = read_json(get_manifest_path(path))["counts"]
    if not counts["chosen"]:  # happens with `select` greedy only
        raise DrtkError(
            f'{name_of(source)}: no candidate has "decode": "{GREEDY}", which drtk expand-queries writes with `decode` greedy; '
            "`select` first takes the first"
        )
    warn_of_missing_texts(counts, place)
    files, without = write_queries(folder, queries, settings.n_best)
    get_manifest_path(path).unlink()
    return counts | {"without a candidate": without, "files": files}


def _make_check(select: str, models: Mapping[str, str], index: str | None) -> Callable[[Expansion, Query], str | None]:
    """Return a check for `iter_expansion_lists`: whether candidates have what the choice needs."""
    readings = {kind: load_input_format(model) for kind, model in models.items()}

    def check(expansion: Expansion, _: Query) -> str | None:
        reading = readings.get(expansion.kind, readings.get(ANY))
        if models and reading is None:
            return f"no model is for kind '{expansion.kind}': give `model` {expansion.kind}=DIR, or one for all"
        needs_top1 = reading is not None and reading.scorer == "rd" and index is None
        missing = find_missing(expansion, rank=select == "oracle", top1=needs_top1)
        return f"{missing}, or give `index`" if missing and needs_top1 else missing

    return check


def _reject_empty(lists: Iterator[ExpansionList], source: str) -> Iterator[ExpansionList]:
    """Yield the lists. Raises DrtkError if there are none: without a kind there is no file to write queries into."""
    empty = True
    for each in lists:
        empty = False
        yield each
    if empty:
        raise DrtkError(f"{name_of(source)}: holds no candidates; there is nothing to choose from")


def write_queries(folder: Path, queries: Mapping[str, Query], top: int) -> tuple[dict[str, int], int]:
    """Write the query files of a folder from its choices.jsonl: KIND.jsonl, or KIND.1.jsonl … KIND.N.jsonl for N > 1.

    Queries keep their fields; the text is the expanded query, "expansion" names the candidates in it. A query without a
    candidate of a kind is written unexpanded at the end of the (first) file of that kind: otherwise the run of that file
    would lack it, which counts as retrieving nothing.
    Returns the number of queries per file and of those "asked alone", and the number of queries without any candidate.
    """
    chosen: dict[str, set[str]] = {}
    for choice in _iter_choices(folder):
        chosen.setdefault(choice["kind"], set()).update([choice["query_id"]] if choice["chosen"] else [])
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        names = {
            (kind, at): f"{kind}.jsonl" if top == 1 else f"{kind}.{at + 1}.jsonl"
            for kind in chosen
            for at in range(top)
        }
        files = {name: stack.enter_context(open(folder / name, "wb")) for name in names.values()}

        def write(query: Query, kind: str, at: int = 0) -> None:
            files[names[kind, at]].write(dump(query))
            counts[names[kind, at]] += 1

        for choice in _iter_choices(folder):
            query = queries[choice["query_id"]]
            for at, (text, ids) in enumerate(zip(choice["queries"], choice["chosen"], strict=True)):
                expansion = ids[0] if len(ids) == 1 else ids
                write(replace(query, text=text, extra=query.extra | {"expansion": expansion}), choice["kind"], at)
        alone = [(query, kind) for kind, ids in chosen.items() for id, query in queries.items() if id not in ids]
        for query, kind in alone:
            write(replace(query, text=format_query(query.text)), kind)
    return {**counts, "asked alone": len(alone)}, len(queries.keys() - set().union(*chosen.values()))


def _iter_choices(folder: Path) -> Iterator[dict[str, Any]]:
    with open(folder / LINES, "rb") as lines:
        for line in lines:
            yield orjson.loads(line)
