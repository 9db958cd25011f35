"""drtk serve: a local page to compare the results of search systems."""

from __future__ import annotations

import errno
from contextlib import suppress
from socket import IPPROTO_TCP, TCP_NODELAY, create_server
from typing import Annotated

from drtk.cli.decorators import plain_command
from drtk.cli.options import make_argument, make_option

MAX_SYSTEMS = 4


@plain_command
def serve(
    indexes: Annotated[list[str], make_argument("[NAME=]INDEX…", "Index folders, up to four.")],
    queries: Annotated[str | None, make_option("--queries FILE", "Queries to list on the page.")] = None,
    qrels: Annotated[
        str | None, make_option("--qrels FILE", "Judgments of the queries, to mark hits and compute measures.")
    ] = None,
    corpus: Annotated[
        str | None, make_option("--corpus FILE", "Corpus of the texts. [default: the indexed corpus]")
    ] = None,
    measures: Annotated[str, make_option("--measures NAMES", "Measures of each judged query.")] = "nDCG@10 RR@10 R@100",
    prompt: Annotated[
        str | None,
        make_option("--prompt TEXT", "Text to put before each query of dense indexes. [default: the model's]"),
    ] = None,
    port: Annotated[int, make_option("--port N", "Port on 127.0.0.1; 0: a free one.", min=0)] = 8000,
) -> None:
    """Start a local page that shows the results of several systems side by side.

    The page and its JSON (/api/search, described by /openapi.json) are reachable from this machine only. Ctrl-C ends it.

    Examples:
    drtk serve bm25 dense
    drtk serve bm25 dense --queries dev.jsonl --qrels dev.tsv
    """
    from drtk.data.runs import parse_runs
    from drtk.errors import DrtkError, UsageError, convert_import_error

    folders = {run.name: run.source for run in parse_runs(indexes)}
    if len(folders) > MAX_SYSTEMS:
        raise UsageError(f"give at most {MAX_SYSTEMS} indexes; the page shows them side by side")
    if qrels is not None and queries is None:
        raise UsageError("--qrels requires --queries")
    with convert_import_error("fastapi", "drtk serve", "fastapi", "uvicorn"):
        import uvicorn

        from drtk.serving.app import create_app
    from drtk.runtime.progress import log
    from drtk.serving.systems import Systems

    try:
        socket = create_server(("127.0.0.1", port))  # requests wait from now on
    except (OSError, OverflowError) as error:
        problem = "is in use" if getattr(error, "errno", None) == errno.EADDRINUSE else f"cannot be used ({error})"
        raise DrtkError(f"port {port} {problem}; choose another with --port") from error
    with socket:
        socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)  # otherwise an answer waits 40 ms for the client's delayed ACK
        systems = Systems(folders, corpus=corpus, queries=queries, qrels=qrels, measures=measures, prompt=prompt)
        log(f"serve: http://127.0.0.1:{socket.getsockname()[1]} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):  # uvicorn stops, then raises the signal again
            uvicorn.Server(uvicorn.Config(create_app(systems), log_level="warning")).run(sockets=[socket])
