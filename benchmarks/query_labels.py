"""Labeling of candidate expansions: `drtk rerank-queries label` compared with Anserini's batch search on the same index.

python benchmarks/query_labels.py [DATA] [--questions N] [--candidates N] [--depth N] [--threads N] [--rounds N] [--out FILE]

DATA is a folder with `squad` in BEIR layout: its paragraphs are the passages, and N of its questions are expanded with the first words of
the passages that the unexpanded question retrieves. Anserini's batch search (io.anserini.search.SimpleSearcher.batch_search, which pyserini's
LuceneSearcher calls) gets the distinct query strings; its results stay in Java and no answers are searched in them. drtk uses the same
Lucene; its second row includes finding answers and writing labels. Each runs in its own process; the first 100 queries warm up the JVM and
are not counted. Writes JSON: queries per second, ratios to Anserini, agreement of the top passages, versions, hardware.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from drtk.runtime.manifest import list_versions

WARM = 100
SYSTEMS = ("anserini", "drtk search", "drtk label")


def make_inputs(data: Path, folder: Path, questions: int, candidates: int) -> None:
    """Write passages, index, questions with answers, and their candidates."""
    run: list[str | Path] = [sys.executable, "-m", "drtk"]
    (folder / "corpus.jsonl").write_bytes(gzip.decompress((data / "squad" / "corpus.jsonl.gz").read_bytes()))
    with gzip.open(data / "squad" / "queries.jsonl.gz", "rb") as lines, open(folder / "queries.jsonl", "wb") as chosen:
        rows = [line for line in lines if json.loads(line)["metadata"].get("answers")]
        chosen.writelines(rows[:: max(1, len(rows) // questions)][:questions])
    subprocess.run([*run, "index", folder / "corpus.jsonl", "--type", "bm25", "-o", folder / "index", "-q"], check=True)
    search = [*run, "search", folder / "index", folder / "queries.jsonl", "-k", str(candidates), "--quiet"]
    found = subprocess.run([*search, "-o", folder / "plain.run"], check=True, cwd=folder)
    assert found.returncode == 0
    with open(folder / "corpus.jsonl", encoding="utf-8") as corpus:
        texts = {row["_id"]: row["text"] for row in map(json.loads, corpus)}
    with open(folder / "plain.run", encoding="utf-8") as hits, open(folder / "expansions.jsonl", "w") as out:
        for line in hits:
            query, _, passage, rank, *_ = line.split()
            row = {"_id": f"{query}#{rank}", "query_id": query, "kind": "sentence"}
            out.write(json.dumps(row | {"text": " ".join(texts[passage].split()[:25])}) + "\n")


def read_queries(folder: Path) -> list[str]:
    """Return the distinct query strings in order."""
    from drtk.query_expansion.candidates import iter_expansion_lines, load_queries
    from drtk.runtime.inputs import InputTracker
    from drtk.text.expanded_text import expand_query

    tracker = InputTracker()
    asked = iter_expansion_lines(
        str(folder / "expansions.jsonl"), load_queries(str(folder / "queries.jsonl"), tracker), tracker
    )
    return list(dict.fromkeys(expand_query(each.query.text, each.expansion.text) for each in asked))


def time_search(system: str, folder: Path, depth: int, threads: int) -> dict[str, Any]:
    """Search with a system of SYSTEMS; return the number of queries, the seconds, and the first passage of each query."""
    from drtk.runtime.progress import set_verbosity

    set_verbosity(quiet=True, verbose=False)
    if system == "anserini":
        from drtk.indexing.lucene.jvm import load_class
        from drtk.indexing.lucene.search import make_java_list

        texts = read_queries(folder)
        searcher = load_class("io.anserini.search.SimpleSearcher")(str(folder / "index" / "lucene"))
        searcher.set_bm25(0.9, 0.4)
        names = [f"q{number}" for number in range(len(texts))]
        searcher.batch_search(make_java_list(texts[:WARM]), make_java_list(names[:WARM]), depth, threads)
        given = make_java_list(texts), make_java_list(names)
        start = time.perf_counter()
        found = searcher.batch_search(*given, depth, threads)
        seconds = time.perf_counter() - start
        first = [hits[0].docid if len(hits := found.get(name)) else None for name in names]
        return {"queries": len(texts), "seconds": seconds, "first": first}
    from drtk.indexing.config import SearchSettings
    from drtk.retrieval.search import PassageSearcher

    index = PassageSearcher(
        str(folder / "index"), corpus=str(folder / "corpus.jsonl"), settings=SearchSettings(threads=threads)
    )
    if system == "drtk search":
        texts = read_queries(folder)
        index.search(texts[:WARM], depth)
        start = time.perf_counter()
        rankings = index.search(texts, depth)
        seconds = time.perf_counter() - start
        return {
            "queries": len(texts),
            "seconds": seconds,
            "first": [ranking[0][0] if ranking else None for ranking in rankings],
        }
    from drtk.query_expansion.candidates import iter_expansion_lines, load_queries
    from drtk.query_expansion.config import LabelSettings
    from drtk.query_expansion.label import AnswerCheck, Labeler
    from drtk.runtime.filter_job import FilterJob
    from drtk.runtime.inputs import InputTracker

    tracker = InputTracker()
    index.search(read_queries(folder)[:WARM], depth)
    settings = LabelSettings(depth=depth, max_rank=depth + 1, threads=threads)
    asked = iter_expansion_lines(
        str(folder / "expansions.jsonl"),
        load_queries(str(folder / "queries.jsonl"), tracker),
        tracker,
        check=AnswerCheck("tokens"),
    )
    job = FilterJob("label", "expansions", str(folder / f"labels.{os.getpid()}.jsonl"), tracker=tracker)
    start = time.perf_counter()
    job.run_batches(asked, Labeler(index, settings).label)
    return {"queries": job.counts["searched"], "seconds": time.perf_counter() - start, "first": []}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", default=Path(os.environ.get("DRTK_TEST_DATA", "../shared/data")))
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--candidates", type=int, default=10)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3, help="the quickest of so many counts")
    parser.add_argument("--out", default="-", help="- is stdout")
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.system:
        print(json.dumps(time_search(given.system, given.data, given.depth, given.threads)))
        return
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="drtk-") as name:
        folder = Path(name)
        make_inputs(given.data.resolve(), folder, given.questions, given.candidates)
        again = ["--depth", str(given.depth), "--threads", str(given.threads)]
        for _ in range(given.rounds):  # in turn, so that a busy minute spares none of them
            for system in SYSTEMS:
                call = [sys.executable, __file__, str(folder), *again, "--system", system]
                out = json.loads(
                    subprocess.run(call, capture_output=True, check=True, text=True).stdout.splitlines()[-1]
                )
                if system not in results or out["seconds"] < results[system]["seconds"]:
                    results[system] = out
    theirs = results["anserini"]
    first = {system: found.pop("first") for system, found in results.items()}
    agreeing = sum(mine == other for mine, other in zip(first["drtk search"], first["anserini"], strict=True))
    for found in results.values():
        found["queries_per_s"] = round(found["queries"] / found["seconds"], 1)
        found["of_anserinis"] = round(found["queries"] / found["seconds"] / (theirs["queries"] / theirs["seconds"]), 3)
        found["seconds"] = round(found["seconds"], 3)
    report = {
        "benchmark": "query_labels",
        "settings": {name: getattr(given, name) for name in ("questions", "candidates", "depth", "threads", "rounds")},
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
        "versions": list_versions() | {"pyserini": importlib.metadata.version("pyserini")},
        "first_passage_agrees": round(agreeing / max(1, len(first["anserini"])), 4),
        "results": results,
    }
    text = json.dumps(report, indent=2) + "\n"
    if given.out == "-":
        print(text, end="")
    else:
        Path(given.out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
