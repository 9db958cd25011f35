"""drtk rerank-queries: which expansion of a question retrieves best (EAR), in three steps."""

from __future__ import annotations

import typer

from drtk.cli.rerank_queries_apply import rerank_queries__apply
from drtk.cli.rerank_queries_label import rerank_queries__label
from drtk.cli.rerank_queries_train import rerank_queries__train

rerank_queries = typer.Typer(
    help="Choose among expansions of questions those that retrieve best (EAR): label, train, apply.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
rerank_queries.command("label")(rerank_queries__label)
rerank_queries.command("train")(rerank_queries__train)
rerank_queries.command("apply")(rerank_queries__apply)
