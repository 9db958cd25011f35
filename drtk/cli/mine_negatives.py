"""drtk mine-negatives: make training examples with hard negatives from runs, indexes or examples."""

from __future__ import annotations

from typing import Annotated

from drtk.cli.decorators import filter_command
from drtk.cli.options import Output, Qrels, Seed, SkipCorpusCheck, make_argument, make_option, with_settings
from drtk.mining.config import MineSettings, MiningInputs
from drtk.runtime.filter_job import FilterJob


@with_settings(MineSettings)
@filter_command("examples", data=True, writes=("audit", "report"))
def mine_negatives(
    candidates: Annotated[
        list[str] | None, make_argument("[NAME=]SOURCE…", "TREC runs, index folders, or training examples; - is stdin.")
    ] = None,
    output: Output = "-",
    *,
    qrels: Qrels | None = None,
    corpus: Annotated[
        str | None, make_option("--corpus FILE", "Corpus, for random negatives and text filters.")
    ] = None,
    queries: Annotated[
        str | None,
        make_option("--queries FILE", "Training queries, to search indexes and for filters that read texts."),
    ] = None,
    query_vectors: Annotated[
        str | None, make_option("--query-vectors DIR", "Query embeddings for dense indexes, a folder from drtk encode.")
    ] = None,
    model: Annotated[
        str | None, make_option("--model MODEL", "Query encoder for dense indexes. [default: as recorded in the index]")
    ] = None,
    vectors: Annotated[
        str | None, make_option("--vectors DIR", "Passage embeddings, for the setting max_cosine and for --report.")
    ] = None,
    audit: Annotated[
        str | None,
        make_option("--audit FILE", "JSONL file for the negatives and dropped candidates of each query, with reasons."),
    ] = None,
    report: Annotated[
        str | None,
        make_option("--report FILE", "File for mining statistics, as HTML (FILE.html) or text; - is stdout."),
    ] = None,
    skip_corpus_check: SkipCorpusCheck = False,
    seed: Seed = 42,
    settings: MineSettings,
    job: FilterJob,
) -> None:
    """Mine hard negatives from runs, indexes or training examples.

    Writes a training example per query that has positives (judged relevant, with an answer, or from input examples) and
    negatives (other retrieved passages, filtered and sampled). Examples contain ids only.

    Examples:
    drtk mine-negatives bm25.run --data squad -o examples.jsonl
    drtk mine-negatives dense --queries queries.jsonl --qrels train.tsv --policy tevatron --margin 0.05 -o examples.jsonl
    """
    from drtk.data.checks import warn_of_other_kind
    from drtk.mining.mine import mine_negatives

    warn_of_other_kind(passages=corpus, queries=queries)
    inputs = MiningInputs(
        tuple(candidates or ["-"]), qrels, corpus, queries, query_vectors, vectors, model, skip_corpus_check
    )
    mine_negatives(inputs, settings, job, seed=seed, audit=audit, report=report)
