"""Load test of drtk serve over loopback: requests per second and latency of concurrent clients, beside plain search.

python benchmarks/serve.py [--data DIR] [--type NAME] [--requests N] [--clients N ...] [-k N] [--out FILE]

Writes JSON for plain search (one query after the other in this process) and for each number of clients: queries per second, median and 99th
percentile of the latency (ms), and processor time of the search or the server per query (ms). Server and clients share the processors of
this machine. Each client keeps its connection open and sends the next query when it has the answer.
--data is a BEIR folder.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from drtk.data.collection import resolve_collection_file
from drtk.data.readers import read_queries
from drtk.indexing.config import SearchSettings
from drtk.records import Query
from drtk.retrieval.search import IndexGroup, RankingOptions, TextQuerySearcher
from drtk.runtime.manifest import list_versions


def measure(ask: Callable[[str], object], texts: list[str]) -> list[float]:
    """Ask for each text in turn; return the seconds of each."""
    seconds = []
    for text in texts:
        start = time.perf_counter()
        ask(text)
        seconds.append(time.perf_counter() - start)
    return seconds


def ask_server(port: int, texts: list[str], k: int) -> list[float]:
    """Send the texts to the server over one connection; return the seconds of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def ask(text: str) -> None:
        connection.request("GET", f"/api/search?{urlencode({'query': text, 'k': k})}")
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body

    seconds = measure(ask, texts)
    connection.close()
    return seconds


def summarize(seconds: list[float], total: float, cpu: float) -> dict[str, float]:
    """Return queries per second; in milliseconds, median and 99th percentile of the latency, and processor time per query."""
    median, high = (1000 * float(value) for value in np.percentile(seconds, [50, 99]))
    count = len(seconds)
    return {"queries_per_s": count / total, "median_ms": median, "p99_ms": high, "cpu_ms": 1000 * cpu / count}


def read_cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def time_clients(pid: int, port: int, texts: list[str], clients: int, k: int) -> dict[str, float]:
    """Spread the texts over concurrent clients of the server process, and return the figures of `summarize`."""
    with ThreadPoolExecutor(clients) as pool:
        start, cpu = time.perf_counter(), read_cpu_seconds(pid)
        parts = list(pool.map(lambda number: ask_server(port, texts[number::clients], k), range(clients)))
        total = time.perf_counter() - start
    return summarize([seconds for part in parts for seconds in part], total, read_cpu_seconds(pid) - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--data", default="../shared/data/cranfield", help="BEIR folder")
    parser.add_argument("--type", default="bm25s", help="type of the index")
    parser.add_argument(
        "--requests", type=int, default=2000, help="queries per measurement, repeated if there are fewer"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    queries = [query.text for query in read_queries(resolve_collection_file(arguments.data, "queries"))]
    texts = list(islice(cycle(queries), arguments.requests))
    k = arguments.k
    results: dict[str, Any] = {"versions": list_versions(), "processors": os.cpu_count(), "machine": platform.machine()}
    with tempfile.TemporaryDirectory() as folder:
        index = str(Path(folder, "index"))
        drtk = [sys.executable, "-m", "drtk"]
        subprocess.run([*drtk, "index", arguments.data, "--type", arguments.type, "-o", index, "-q"], check=True)
        search = TextQuerySearcher(IndexGroup([index], SearchSettings()), None)
        measure(lambda text: list(search([Query("q", text)], RankingOptions(k))), texts[:20])
        start, cpu = time.perf_counter(), time.process_time()
        seconds = measure(lambda text: list(search([Query("q", text)], RankingOptions(k))), texts)
        results["search"] = summarize(seconds, time.perf_counter() - start, time.process_time() - cpu)
        server = subprocess.Popen([*drtk, "serve", index, "--port", "0"], stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            port = next(int(found[1]) for line in server.stderr if (found := re.search(r"127\.0\.0\.1:(\d+)", line)))
            ask_server(port, texts[:20], k)
            for clients in arguments.clients:
                results[f"serve, {clients} clients"] = time_clients(server.pid, port, texts, clients, k)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()
    text = json.dumps(results, indent=2)
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
