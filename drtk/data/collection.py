"""Find the corpus, queries and judgments of a collection: a BEIR folder, `irds:ID` or `hf:NAME`.

Collections of ir_datasets and of the Hugging Face hub are copied to the cache, as files in BEIR's formats.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from drtk.data.beir import choose_dev_split, find_file, find_qrels, list_splits, require_file
from drtk.data.embeddings import KIND, SPARSE_KIND
from drtk.data.readers import iter_judgments, iter_valid, read_passages, read_queries
from drtk.data.rows import dump
from drtk.data.tables import HUB_PREFIX, get_version, list_configurations, list_hub_splits
from drtk.data.writers import QRELS_BEIR
from drtk.errors import DrtkError, convert_import_error
from drtk.records import Passage, Qrel, Query
from drtk.runtime.inputs import InputTracker
from drtk.runtime.integrity import get_cache_folder
from drtk.runtime.manifest import read_manifest_if_any
from drtk.runtime.progress import log, track, warn
from drtk.runtime.streams import Output

Part = Literal["corpus", "queries", "qrels"]
IRDS_PREFIX = "irds:"
_FILES = {"corpus": "corpus.jsonl", "queries": "queries.jsonl"}
_DRTK_FOLDERS = ("index", KIND, SPARSE_KIND, "model")


def resolve_collection_file(source: str, part: Part, *, split: str = "test") -> str:
    """Return the file with the corpus, queries or judgments of a collection; return any other source unchanged.

    part: "corpus", "queries" or "qrels"
    split: split of the judgments, ignored for `irds:ID`, which names its split; dev means dev, or else validation
        (`hf:NAME` only), or else train
    If the split is missing, the collection's only split is used, but not test in place of train; for dev, only in `hf:NAME`,
        and not test.
    Raises DrtkError for a collection without this file or split, MissingDependency without ir_datasets or datasets.
    """
    if source.startswith(IRDS_PREFIX):
        return str(_copy_irds(source, part))
    if source.startswith(HUB_PREFIX):
        return _resolve_hub(source, part, split)
    if not is_beir_folder(source):
        return source
    folder = Path(source)
    if part == "qrels":
        return str(find_qrels(folder, choose_dev_split(folder) if split == "dev" else split))
    return require_file(folder, _FILES[part])


def copy_dev_set(source: str) -> str:
    """Copy a dev set, `irds:ID` or `hf:NAME`, to a BEIR folder in the cache; return the folder, or any other source unchanged.

    Raises DrtkError for judgments of test queries, because a checkpoint must not be selected on them, and for a dataset
    of the hub that is not a collection. Warns for judgments of TREC.
    """
    if not source.startswith((IRDS_PREFIX, HUB_PREFIX)):
        return source
    if source.startswith(IRDS_PREFIX):
        _check_is_no_test_set(source)
    files = {
        _FILES["corpus"]: resolve_collection_file(source, "corpus"),
        _FILES["queries"]: resolve_collection_file(source, "queries"),
    }
    if source in files.values():
        raise DrtkError(f"{source}: is not a dataset with the configurations corpus and queries; give a BEIR folder")
    files["qrels/dev.tsv"] = resolve_collection_file(source, "qrels", split="dev")
    folder = _get_copy_folder(" ".join(files.values()), source)
    for name, file in files.items():
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(file)
    return str(folder)


def _check_is_no_test_set(source: str) -> None:
    if re.search(r"\btest", source):  # beir/scifact/test, miracl/ar/test-a, car/v1.5/test200
        raise DrtkError(f"{source}: a checkpoint must not be selected on test queries; give a dev or train set")
    if re.search(r"\btrec(?!.*/(train|dev|fold))", source):  # msmarco-passage/trec-dl-2019
        warn(f"{source}: most papers report results on these judgments; evaluate this checkpoint on others")


def is_beir_folder(source: str) -> bool:
    """Return whether a source is a folder with corpus.jsonl or queries.jsonl that is no model, index or embeddings."""
    folder = Path(source)
    try:
        has_file = folder.is_dir() and any(find_file(folder, name) for name in _FILES.values())
    except (OSError, ValueError):
        return False
    return has_file and read_manifest_if_any(folder).get("kind") not in _DRTK_FOLDERS


def is_collection(source: str) -> bool:
    """Return whether a source is a BEIR folder, `irds:ID` or `hf:NAME`."""
    is_hub = source.startswith(HUB_PREFIX) and ":" not in source.removeprefix(HUB_PREFIX)
    return is_hub or source.startswith(IRDS_PREFIX) or is_beir_folder(source)


def iter_collection_files(source: str) -> Iterator[tuple[Part, str]]:
    """Yield (part, path) of each file of a collection.

    part: "corpus", "queries" or "qrels" (all splits of a BEIR folder, the split test of `hf:NAME`)
    """
    yield "corpus", resolve_collection_file(source, "corpus")
    yield "queries", resolve_collection_file(source, "queries")
    if not is_beir_folder(source):
        yield "qrels", resolve_collection_file(source, "qrels")
        return
    for split in list_splits(Path(source)):
        yield "qrels", resolve_collection_file(source, "qrels", split=split)


def _copy_irds(source: str, part: Part) -> Path:
    """Copy corpus, queries or qrels (`part`) of ir_datasets to the cache, unless cached; return the file."""
    id = source.removeprefix(IRDS_PREFIX)
    with convert_import_error("ir_datasets", f"reading {source}"):
        library = import_module("ir_datasets")
    try:
        dataset = library.load(id)
    except KeyError as error:
        raise DrtkError(f"{source}: ir_datasets has no dataset '{id}'; see https://ir-datasets.com") from error
    parts: dict[str, tuple[str, Callable[[], bool], Callable[[], Iterable[Any]]]] = {
        "corpus": ("passages", dataset.has_docs, lambda: map(_make_irds_passage, dataset.docs_iter())),
        "queries": ("queries", dataset.has_queries, lambda: map(_make_irds_query, dataset.queries_iter())),
        "qrels": ("judgments", dataset.has_qrels, lambda: map(_make_irds_judgment, dataset.qrels_iter())),
    }
    noun, has_part, read = parts[part]
    if not has_part():
        raise DrtkError(f"{source}: has no {noun}; choose another dataset of ir_datasets, such as one of its splits")
    key, name = source, _FILES.get(part, "qrels.tsv")
    if part == "corpus":
        key = IRDS_PREFIX + (library.docs_parent_id(id) or id)  # the datasets of all splits have one corpus
    try:
        return _write_copy(source, key, name, read)
    except DrtkError:
        raise
    except Exception as error:  # ir_datasets raises errors of many types if a download fails
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DrtkError(
            f"{source}: ir_datasets cannot load it ({reason}); check the network, or provide the files that it names"
        ) from error


def _make_irds_passage(document: Any) -> Passage:
    fields = document._asdict()
    text = fields.get("text") or fields.get("body")
    title = fields.get("title") if text else ""  # the default text contains the title
    metadata = {"url": fields["url"]} if fields.get("url") else None
    return Passage(str(fields["doc_id"]), text or document.default_text(), title or "", metadata)


def _make_irds_query(query: Any) -> Query:
    fields = query._asdict()
    answers = fields.get("answers")
    return Query(
        str(fields["query_id"]),
        fields.get("text") or query.default_text(),
        None if answers is None else tuple(map(str, answers)),
    )


def _make_irds_judgment(row: Any) -> Qrel:
    return Qrel(row.query_id, row.doc_id, int(row.relevance))


def _resolve_hub(source: str, part: Part, split: str) -> str:
    """Return the cached file of a part; return `source` if it is no dataset with configurations corpus and queries."""
    name = source.removeprefix(HUB_PREFIX)
    configurations = [] if ":" in name else list_configurations(name)
    if not {"corpus", "queries"} <= {*configurations}:
        return source
    if part != "qrels":
        read: Callable[[str], Iterator[Any]] = read_passages if part == "corpus" else read_queries
        table, file = f"{source}:{part}:", _FILES[part]
        return str(_write_copy(f"{source}:{part}", f"{table} {get_version(name, part)}", file, lambda: read(table)))
    configuration = next((known for known in ("qrels", "default") if known in configurations), None)
    if configuration is None:  # BEIR's datasets of the hub have their judgments in NAME-qrels
        name, configuration = f"{name.partition('@')[0]}-qrels", "default"
    splits = list_hub_splits(name, configuration)
    wanted = ("dev", "validation", "train") if split == "dev" else (split,)
    only = splits[0] if len(splits) == 1 and (split, *splits) not in (("dev", "test"), ("train", "test")) else None
    chosen = next((known for known in wanted if known in splits), only)
    if chosen is None:
        raise DrtkError(
            f"{source}: has no judgments of {' or '.join(wanted)}, only of {', '.join(splits)}; give a file"
        )
    table = f"{HUB_PREFIX}{name}:{configuration}:{chosen}"
    key = f"{table} {get_version(name, configuration)}"
    return str(_write_copy(table, key, "qrels.tsv", lambda: _read_judgments(table)))


def _read_judgments(source: str) -> Iterator[Qrel]:
    tracker = InputTracker()
    return iter_valid(iter_judgments(source, tracker), source, tracker)


def _write_copy(source: str, key: str, name: str, read: Callable[[], Iterable[Any]]) -> Path:
    """Write records to a file in the cache, unless it exists; return its path. `key` identifies the content."""
    folder = _get_copy_folder(key, key)
    path = folder / name
    if path.exists():
        return path
    log(f"{source}: copying to {path}")
    folder.mkdir(parents=True, exist_ok=True)
    with Output(str(path)) as output:
        if name.endswith(".tsv"):
            output.write(QRELS_BEIR.header)
        for record in track(read(), "copy", unit="records"):
            output.write(QRELS_BEIR.to_bytes(record, {}) if name.endswith(".tsv") else dump(record))
    return path


def _get_copy_folder(key: str, name: str) -> Path:
    """Return the cache folder of the content that `key` identifies; its name begins with `name`."""
    digest = hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
    return get_cache_folder() / "collections" / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)[:80]}-{digest}"
