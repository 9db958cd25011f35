"""Select the best candidate expansion of each query (EAR)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import orjson

from drtk.data.checks import count_texts, describe_missing_texts, warn_if_texts_missing
from drtk.data.rows import dump
from drtk.errors import DrtkError
from drtk.indexing.config import SearchSettings
from drtk.models.config import CrossEncoderSettings
from drtk.query_expansion.candidates import ExpansionList, describe_missing_label, iter_expansion_lists, select_distinct
from drtk.query_expansion.config import SelectionSettings
from drtk.query_expansion.query_reranker_input import CandidateTexts, CandidateTokenizer, load_input_format
from drtk.records import Expansion, Passage, Query
from drtk.retrieval.search import PassageSearcher
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.integrity import read_json
from drtk.runtime.manifest import get_manifest_path, is_current, read_manifest
from drtk.runtime.runners import BatchFunction, RunnerSettings, run_filter
from drtk.runtime.streams import get_source_name
from drtk.text.expanded_text import expand_query, normalize_question_mark

if TYPE_CHECKING:
    from drtk.models.cross_encoder import TokenizedPairs

GREEDY = "greedy"  # "decode" of a candidate that was decoded greedily
CHOICES_FILE = "choices.jsonl"  # file of the selected candidates of each query and kind
LISTS_PER_BATCH = 64
ALL_KINDS = ""  # key of the model for all kinds of expansions that have no specific model


def order_candidates(
    select: str, expansions: Sequence[Expansion], estimates: np.ndarray | None = None
) -> list[Expansion]:
    """Return the candidates in the order in which they are selected (docs/methods/ear.md); ties keep their order.

    select: "scorer": by estimated rank (`estimates`, (candidates,)), lowest first; "oracle": by the rank label; "greedy": only
        those that were decoded greedily (the baseline of GAR); "first": in file order
    """
    if estimates is not None:
        return [expansions[number] for number in np.argsort(estimates, kind="stable")]
    if select == "oracle":
        return sorted(expansions, key=lambda expansion: expansion.rank or 0)
    return [expansion for expansion in expansions if select == "first" or expansion.extra.get("decode") == GREEDY]


class RankEstimator:
    """Query reranker that estimates the ranks of candidates. Lower is better, unlike the scores of a cross-encoder.

    model: model folder of `drtk rerank-queries train`
    Raises MismatchError for any other model.
    """

    def __init__(self, model: str, *, device: str = "auto", settings: CrossEncoderSettings | None = None) -> None:
        from drtk.models.cross_encoder import CrossEncoderScorer  # imports torch

        settings = settings or CrossEncoderSettings()
        self.input_format = load_input_format(model)
        input_format = self.input_format
        if settings.max_length is not None:
            input_format = replace(input_format, max_length=settings.max_length)
        self._scorer = CrossEncoderScorer(
            model,
            device=device,
            settings=settings,
            logits=True,
            make_tokenizer=lambda tokenizer: CandidateTokenizer(tokenizer, input_format),
        )

    def __call__(self, candidates: Sequence[CandidateTexts]) -> np.ndarray:
        """Return the estimates of the candidates, (candidates,), float32."""
        return self.estimate(self.tokenize(candidates))

    def tokenize(self, candidates: Sequence[CandidateTexts]) -> TokenizedPairs:
        """Tokenize the candidates."""
        return self._scorer.tokenize(candidates)  # type: ignore[arg-type]  # accepted by its CandidateTokenizer

    def estimate(self, pairs: TokenizedPairs) -> np.ndarray:
        """Return the estimated ranks of tokenized candidates, (candidates,), float32."""
        return self._scorer.compute_scores(pairs) if len(pairs.rows) else np.empty(0, dtype=np.float32)


# Lists of distinct candidates, the tokens of all candidates by query reranker, and counts.
TokenizedLists: TypeAlias = "tuple[list[ExpansionList], dict[RankEstimator, TokenizedPairs], Counter[str]]"


class QuerySelector(BatchFunction):
    """Batch function that selects the best candidates of `ExpansionList` records; results are lines of choices.jsonl.

    models: query rerankers by kind of expansion, or by `ALL_KINDS`; {} unless `select` is "scorer"
    index, corpus: sparse index and its corpus, to search the top-1 passage of candidates without "top1" (for "rd" models)
    """

    def __init__(
        self, settings: SelectionSettings, models: Mapping[str, str], device: str, index: str | None, corpus: str | None
    ) -> None:
        self._settings = settings
        self.prepare_ahead = index is None  # an index must be searched by the thread that opened it
        self._searcher: PassageSearcher | None = None
        if index is not None:
            self._searcher = PassageSearcher(
                index, corpus=corpus, settings=SearchSettings(k1=settings.k1, b=settings.b)
            )
        loaded = {
            model: RankEstimator(model, device=device, settings=settings) for model in dict.fromkeys(models.values())
        }
        self._estimators = {kind: loaded[model] for kind, model in models.items()}

    def prepare(self, records: list[ExpansionList]) -> TokenizedLists:
        """Select the distinct candidates of each list, and tokenize them."""
        limit = self._settings.max_candidates
        lists = [replace(record, expansions=tuple(select_distinct(record.expansions, limit))) for record in records]
        counts: Counter[str] = Counter(candidates=sum(len(record.expansions) for record in records))
        if not self._estimators:
            return lists, {}, counts
        top_passages = self._search_top_passages(lists, counts)
        texts: dict[RankEstimator, list[CandidateTexts]] = {}
        for candidates in lists:
            question, estimator = candidates.query.text, self._get_estimator(candidates.kind)
            for expansion in candidates.expansions:
                top1: Mapping[str, str] = {}
                if estimator.input_format.variant == "rd":
                    top1 = expansion.top1 or top_passages[expand_query(question, expansion.text)]
                text = CandidateTexts(question, expansion.text, top1.get("title", ""), top1.get("text", ""))
                texts.setdefault(estimator, []).append(text)
        tokens = {estimator: estimator.tokenize(candidates) for estimator, candidates in texts.items()}
        return lists, tokens, counts

    def _get_estimator(self, kind: str) -> RankEstimator:
        return self._estimators[kind if kind in self._estimators else ALL_KINDS]

    def _search_top_passages(self, lists: Sequence[ExpansionList], counts: Counter[str]) -> dict[str, dict[str, str]]:
        """Search the top-1 passages that "rd" models require but candidates lack; return {expanded query: {"title", "text"}}."""
        queries = dict.fromkeys(
            expand_query(candidates.query.text, expansion.text)
            for candidates in lists
            if self._get_estimator(candidates.kind).input_format.variant == "rd"
            for expansion in candidates.expansions
            if expansion.top1 is None
        )
        if not queries:
            return {}
        assert self._searcher is not None  # without an index, `select_queries` rejects such candidates
        top_passages: dict[str, dict[str, str]] = {}
        passages = []
        for query, ranking in zip(queries, self._searcher.search(list(queries), 1), strict=True):
            passage = self._searcher.get_passage(ranking[0][0]) if ranking else Passage("", "")
            top_passages[query] = {"title": passage.title, "text": passage.text}
            passages += [passage] if ranking else []
        counts.update(count_texts(passage.text for passage in passages))
        return top_passages

    def __call__(self, batch: TokenizedLists) -> BatchResult:
        """Select candidates of each list; return output lines, and counts of candidates and of retrieved passages."""
        lists, tokens, prepared_counts = batch
        counts: dict[str, int] = {"distinct": 0, "chosen": 0} | prepared_counts
        estimates = {estimator: iter(estimator.estimate(pairs)) for estimator, pairs in tokens.items()}
        lines = []
        for candidates in lists:
            list_estimates: np.ndarray | None = None
            if self._estimators:
                remaining = estimates[self._get_estimator(candidates.kind)]
                list_estimates = np.fromiter(islice(remaining, len(candidates.expansions)), dtype=np.float32)
            counts["distinct"] += len(candidates.expansions)
            lines.append(dump(self._build_choice(candidates, list_estimates, counts)))
        return BatchResult(lines, counts)

    def _build_choice(
        self, candidates: ExpansionList, estimates: np.ndarray | None, counts: dict[str, int]
    ) -> dict[str, Any]:
        """Select candidates of a list, and return the record of choices.jsonl."""
        expansions, query = candidates.expansions, candidates.query.text
        line: dict[str, Any] = {"query_id": candidates.query.id, "kind": candidates.kind}
        if self._settings.select == "concat":  # the query with all candidates, as in GAR
            counts["chosen"] += 1
            text = expand_query(query, *(expansion.text for expansion in expansions))
            return line | {"chosen": [[expansion.id for expansion in expansions]], "queries": [text]}
        best = order_candidates(self._settings.select, expansions, estimates)[: self._settings.n_best]
        counts["chosen"] += bool(best)
        line |= {"chosen": [[expansion.id] for expansion in best]}
        if estimates is not None:
            estimate_of = dict(zip((expansion.id for expansion in expansions), estimates.tolist(), strict=True))
            line["estimates"] = [estimate_of[expansion.id] for expansion in best]
        if all(expansion.rank is not None for expansion in best):
            line["ranks"] = [expansion.rank for expansion in best]
        return line | {"queries": [expand_query(query, expansion.text) for expansion in best]}


def select_queries(
    source: str,
    queries: Mapping[str, Query],
    settings: SelectionSettings,
    *,
    models: Mapping[str, str],
    device: str,
    index: str | None,
    corpus: str | None,
    runner_settings: RunnerSettings,
    job: FolderJob,
) -> dict[str, Any]:
    """Select the best candidates of each query; write choices.jsonl and the query files into the folder of `job`.

    models: query rerankers by kind of expansion, or by `ALL_KINDS`
    Returns counts for the manifest; "files" has the number of queries per file.
    Raises the errors of `iter_expansion_lists`, RecordError (file:line) for candidates without the labels that `select`
    requires, DrtkError if there are no candidates.
    """
    folder = job.begin()
    path = str(folder / CHOICES_FILE)
    choices_job = FilterJob(
        *(job.command, "choices", path, job.settings),
        resume=job.resume,
        force=job.force,
        log_summary=False,
        tracker=job.tracker,
    )
    choices_job.recover()
    corpus_name = str(corpus)
    if index is not None and corpus is None:
        corpus_name = str(read_manifest(index).get("corpus") or index)
    if job.resume and is_current(path, job.settings, program=job.command):  # interrupted while writing the query files
        known = {entry["path"] for entry in job.tracker.inputs}
        inputs = read_json(get_manifest_path(path))["inputs"]
        job.tracker.inputs += [entry for entry in inputs if entry["path"] not in known]
    else:
        Path(path).unlink(missing_ok=True)  # of other settings, or without a manifest
        choices_job.find_problem = lambda _: describe_missing_texts(choices_job.counts, corpus_name)
        check = _make_check(settings.select, models, index)
        lists = iter_expansion_lists(source, queries, job.tracker, check=check)
        first = next(lists, None)
        if first is None:
            raise DrtkError(f"{get_source_name(source)}: contains no candidates; run `drtk expand-queries` first")
        arguments = (settings, models, device, index, corpus)
        run_filter(
            chain([first], lists),
            choices_job,
            QuerySelector,
            *arguments,
            runner_settings=runner_settings,
            batch_size=LISTS_PER_BATCH,
            unit="lists of candidates",
            group=_get_list,
        )
    counts: dict[str, Any] = read_json(get_manifest_path(path))["counts"]
    if not counts["chosen"]:  # only possible with `select` greedy
        raise DrtkError(
            f'{get_source_name(source)}: no candidate has "decode": "{GREEDY}"; run `drtk expand-queries` with `decode=greedy`, or use '
            "`select=first` for the first candidate"
        )
    warn_if_texts_missing(counts, corpus_name)
    files, num_without = write_queries(folder, queries, settings.n_best)
    get_manifest_path(path).unlink()
    return counts | {"without a candidate": num_without, "files": files}


def _get_list(line: bytes) -> tuple[str, str]:
    candidate = orjson.loads(line)
    return candidate["query_id"], candidate.get("kind")


def _make_check(select: str, models: Mapping[str, str], index: str | None) -> Callable[[Expansion, Query], str | None]:
    """Return a check for `iter_expansion_lists` that the labels and models required by `select` exist."""
    input_formats = {kind: load_input_format(model) for kind, model in models.items()}

    def check(expansion: Expansion, _: Query) -> str | None:
        input_format = input_formats.get(expansion.kind, input_formats.get(ALL_KINDS))
        if models and input_format is None:
            return (
                f"no model for kind '{expansion.kind}'; give `model={expansion.kind}=DIR`, or one model for all kinds"
            )
        needs_top1 = input_format is not None and input_format.variant == "rd" and index is None
        missing = describe_missing_label(expansion, rank=select == "oracle", top1=needs_top1)
        return f"{missing}, or give `index`" if missing and needs_top1 else missing

    return check


def write_queries(folder: Path, queries: Mapping[str, Query], n_best: int) -> tuple[dict[str, int], int]:
    """Write the query files from choices.jsonl: KIND.jsonl, or KIND.1.jsonl to KIND.N.jsonl if `n_best` is above 1.

    "text" is the expanded query, and "expansion" the id of its candidate, or a list of ids if it has several (concat).
    Queries without a candidate of a kind are written unexpanded at the end of the first file of this kind, so that a
    run of the file contains all queries.
    Returns the number of queries per file and of unexpanded queries (key "unexpanded"), and the number of queries without
    any candidate.
    """
    expanded: dict[str, set[str]] = {}
    for choice in _iter_choices(folder):
        expanded.setdefault(choice["kind"], set()).update([choice["query_id"]] if choice["chosen"] else [])
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        names = {
            (kind, rank): f"{kind}.jsonl" if n_best == 1 else f"{kind}.{rank}.jsonl"
            for kind in expanded
            for rank in range(1, n_best + 1)
        }
        files = {name: stack.enter_context(open(folder / name, "wb")) for name in names.values()}

        def write(query: Query, kind: str, rank: int = 1) -> None:
            files[names[kind, rank]].write(dump(query))
            counts[names[kind, rank]] += 1

        for choice in _iter_choices(folder):
            query = queries[choice["query_id"]]
            for rank, (text, ids) in enumerate(zip(choice["queries"], choice["chosen"], strict=True), start=1):
                expansion = ids[0] if len(ids) == 1 else ids
                write(replace(query, text=text, extra=query.extra | {"expansion": expansion}), choice["kind"], rank)
        unexpanded = [(query, kind) for kind, ids in expanded.items() for id, query in queries.items() if id not in ids]
        for query, kind in unexpanded:
            write(replace(query, text=normalize_question_mark(query.text)), kind)
    return {**counts, "unexpanded": len(unexpanded)}, len(queries.keys() - set().union(*expanded.values()))


def _iter_choices(folder: Path) -> Iterator[dict[str, Any]]:
    with open(folder / CHOICES_FILE, "rb") as lines:
        for line in lines:
            yield orjson.loads(line)
