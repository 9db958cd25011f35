"""drtk rerank: rerank the top documents of a run by the scores of a model."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

from drtk.cli.decorators import filter_command
from drtk.cli.options import Corpus, Device, Output, Queries, SkipCorpusCheck, make_argument, make_option, with_settings
from drtk.config import require_defaults
from drtk.data.runs import SCORED
from drtk.errors import UsageError
from drtk.retrieval.config import RerankSettings
from drtk.runtime.filter_job import BatchResult, FilterJob
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.runners import RunnerSettings

DEFAULT_DEPTH = 200  # documents scored (docs/methods/re-ranker.md)
BATCH_SIZE = 16  # queries that are scored and saved together; each has hundreds of documents
BATCH_SIZE_WITH_VECTORS = 64  # queries per shard of vectors
LISTS_PER_BATCH = 512  # queries, for HLATR


@with_settings(RerankSettings)
@with_settings(RunnerSettings, name="runner_settings")
@filter_command("run", sharded=True, writes=("save_vectors",))
def rerank(
    model: Annotated[str, make_option("--model MODEL", "Cross-encoder or HLATR model, a folder or Hub name.")],
    source: Annotated[str, make_argument("RUN", "TREC run; - is stdin.")] = "-",
    output: Output = "-",
    corpus: Corpus | None = None,
    queries: Queries | None = None,
    vectors: Annotated[
        str | None,
        make_option("--vectors DIR", "Vectors of the run's pairs, a folder from --save-vectors (HLATR models)."),
    ] = None,
    save_vectors: Annotated[
        str | None,
        make_option("--save-vectors DIR", "Folder for the vectors of the scored pairs, to train and apply HLATR."),
    ] = None,
    skip_corpus_check: SkipCorpusCheck = False,
    device: Device = "auto",
    *,
    settings: RerankSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    """Rerank the top documents of each query with a cross-encoder or HLATR model.

    Writes the scored documents, best first, then the remaining documents in their original order.

    Examples:
    drtk rerank bm25.run --model crossencoder --corpus corpus.jsonl --queries queries.jsonl -o reranked.run
    drtk rerank bm25.run --model crossencoder --depth 100 --corpus corpus.jsonl --queries queries.jsonl --save-vectors vectors
    """
    from drtk.data.checks import (
        check_run,
        check_same_corpus,
        describe_missing_texts,
        warn_if_texts_missing,
        warn_of_other_kind,
    )
    from drtk.models.model_folder import is_list_reranker, resolve_model_folder

    check_run(source)
    warn_of_other_kind(passages=corpus, queries=queries)
    if corpus is not None:
        check_same_corpus(source, corpus, skip=skip_corpus_check)
    folder = resolve_model_folder(model)
    if is_list_reranker(folder):
        if vectors is None or any(option is not None for option in (corpus, queries, save_vectors)):
            problem = "HLATR models rerank by vectors; give --vectors, without --corpus, --queries and --save-vectors"
            raise UsageError(f"{model}: {problem}")
        reason = f"requires a cross-encoder; {model} reranks by --vectors alone"
        require_defaults(settings, reason, besides=("depth", "tag"))
        if skip_corpus_check:
            raise UsageError(f"`skip_corpus_check` {reason}")
        _rerank_lists(source, str(folder), vectors, device, settings, runner_settings, job)
        return
    if corpus is None or queries is None:
        raise UsageError(f"{'--corpus' if corpus is None else '--queries'} is required by a cross-encoder")
    if vectors is not None:
        raise UsageError(
            "--vectors requires an HLATR model; use --save-vectors to write the vectors of a cross-encoder"
        )
    from drtk.data.corpus_store import CorpusStore
    from drtk.data.readers import read_queries
    from drtk.data.runs import get_query_id
    from drtk.models.cross_encoder import resolve_title_format
    from drtk.retrieval.rerank import RunReranker, read_ranking_texts
    from drtk.runtime.runners import map_batches

    title = resolve_title_format(model, settings.title, strict=True)
    job.lookups = (corpus, str(folder))
    texts = {query.id: query.text for query in read_queries(queries, tracker=job.tracker)}
    depth = settings.depth or DEFAULT_DEPTH
    job.counts[SCORED] = {"depth": depth}
    store = CorpusStore.open(corpus)
    records = read_ranking_texts(source, queries=texts, corpus=store, depth=depth, title=title, tracker=job.tracker)
    arguments = (model, settings, device, settings.logits, settings.tag, save_vectors is not None)
    writer = None if save_vectors is None else _VectorWriter(save_vectors, model, settings.vector_dtype, job)
    job.batch_size = BATCH_SIZE if writer is None else BATCH_SIZE_WITH_VECTORS
    job.find_problem = lambda _: describe_missing_texts(job.counts, corpus)

    def score_batches(batches: Iterator[list[Any]]) -> Generator[BatchResult, None, None]:
        scored = map_batches(batches, RunReranker, *arguments, runner_settings=runner_settings)
        return scored if writer is None else writer.write(scored)

    try:
        job.run_batches(records, score_batches, unit="queries", group=get_query_id)
    except BaseException:
        if writer is not None:
            writer.job.discard()
            writer.job.release()
        raise
    warn_if_texts_missing(job.counts, corpus)


def _rerank_lists(
    run: str,
    model: str,
    vectors: str,
    device: str,
    settings: RerankSettings,
    runner_settings: RunnerSettings,
    job: FilterJob,
) -> None:
    from drtk.data.embeddings import PairVectors
    from drtk.data.runs import get_query_id
    from drtk.models.list_reranker import read_list_reranker_config
    from drtk.retrieval.rerank import RunListReranker, check_same_scorer, read_ranking_rows
    from drtk.runtime.manifest import read_manifest_if_any
    from drtk.runtime.runners import run_filter
    from drtk.runtime.streams import get_source_name

    longest = read_list_reranker_config(Path(model)).depth
    depth = settings.depth or longest
    if depth > longest:
        raise UsageError(f"--depth {depth}: {model} was trained on {longest} candidates; use {longest} or fewer")
    job.counts[SCORED] = {"depth": depth}
    opened = PairVectors(vectors)
    job.lookups = (vectors, model)
    trained = read_manifest_if_any(Path(model)).get("scorer") or {}
    check_same_scorer(model, trained, vectors, opened.scorer)
    records = read_ranking_rows(run, vectors=opened, depth=depth, tracker=job.tracker)
    run_filter(
        records, job, RunListReranker, model, vectors, device, settings.tag,
        runner_settings=runner_settings, batch_size=LISTS_PER_BATCH, unit="queries", group=get_query_id,
    )  # fmt: skip
    opened.warn_if_order_differs(get_source_name(run))


class _VectorWriter:
    """Writer of a folder with a vector per scored (query, document) pair, in the order of the run."""

    def __init__(self, folder: str, model: str, dtype: str, job: FilterJob) -> None:
        from drtk.data.embeddings import ShardWriter
        from drtk.models.cross_encoder import identify_scorer
        from drtk.runtime.manifest import is_current

        settings = {
            name: value for name, value in job.settings.items() if name not in ("save_vectors", "output", "source")
        }
        self.job = FolderJob(
            job.command, "embeddings", folder, settings, resumable=True, resume=job.resume, force=job.force
        )
        self.job.recover()
        self._filter, self._dtype = job, dtype
        # An earlier run may have been killed after the vectors were finished and before the run was.
        self._is_whole = job.resume and job.journal_path.exists() and is_current(folder, settings, program=job.command)
        if self._is_whole:
            return
        self.job.check()
        self._identity = identify_scorer(model)
        self._path: Path = self.job.begin()
        dimension = int(self._identity["dimension"])
        self._writer = ShardWriter(self._path, dimension=dimension, dtype=dtype, model=model)
        # This input grows during the run, like a stream: --resume does not compare it.
        self._entry: dict[str, Any] = {"path": folder, "bytes": None, "digest": None}
        job.tracker.inputs.append(self._entry)

    def write(self, scored: Generator[Any, None, None]) -> Generator[BatchResult, None, None]:
        """Yield the run lines of each batch after writing its vectors; finish the folder after the last batch."""
        from drtk.data.checks import PASSAGES
        from drtk.data.embeddings import PAIR_ROLE, write_pairs

        with closing(scored):
            for batch in scored:
                if not self._is_whole:
                    before = int(self._filter.counts.get(PASSAGES, 0))
                    write_pairs(self._writer, batch.ids, batch.vectors, before=before)
                yield batch.result
        if not self._is_whole:
            self._filter.tracker.inputs.remove(self._entry)
            if self._filter.find_problem is None or self._filter.find_problem(1) is None:
                self.job.counts["pairs"] = self._writer.num_rows
                self.job.tracker.inputs += self._filter.tracker.inputs
                self.job.finish(
                    role=PAIR_ROLE,
                    scorer=self._identity,
                    dimension=self._writer.dimension,
                    dtype=self._dtype,
                    shards=self._writer.entries,
                )
