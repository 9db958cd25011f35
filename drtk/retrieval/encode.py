"""Encode queries and passages to dense vectors, or to impacts with a sparse encoder."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from drtk.config import require_defaults, to_dict
from drtk.data.embeddings import SPARSE_KIND, ImpactShardWriter, ShardWriter, digest_records
from drtk.data.readers import read_passages, read_queries
from drtk.errors import DrtkError, MismatchError
from drtk.models.checkpoint import digest_tokenizer, digest_weights, load_encoder
from drtk.models.config import SPARSE_POOLING, EncodeSettings, ImportedVectorSettings
from drtk.models.device import choose_device, choose_dtype, iter_inputs, move_model, report_out_of_memory
from drtk.models.encoder import Encoder
from drtk.models.endpoint import EndpointEmbedder
from drtk.models.generator_input import format_passage
from drtk.models.library_embedder import SentenceTransformersEmbedder, needs_sentence_transformers
from drtk.models.model_folder import (
    Role,
    is_endpoint,
    read_layout,
    resolve_model_folder,
    resolve_tower_folder,
    warn_of_missing_prompt,
)
from drtk.models.packing import enable_packing
from drtk.records import Passage, Query
from drtk.runtime.folder_job import FolderJob
from drtk.runtime.manifest import describe_folder
from drtk.runtime.progress import Progress, log, warn
from drtk.runtime.runners import BatchFunction, RunnerSettings, map_batches, read_ahead
from drtk.runtime.sharding import WHOLE_INPUT, InputShard, select_shard
from drtk.runtime.streams import count_lines, digest_file, get_source_name, resolve_path
from drtk.text.batching import TokenizedTexts

TOKENIZE_BATCH_SIZE = 16384  # texts tokenized at once by `Embedder.__call__`
_CPU_TOKENS, _GPU_TOKENS = 2048, 65536
IMPACT_SCALE = 100  # impact = round(100 * weight), as in SPLADE's released code and Pyserini


class Embedder:
    """Bi-encoder model that encodes texts as queries or as passages.

    dimension: dimension of the vectors
    is_sparse: whether this is a sparse encoder (SPLADE), whose vectors have a weight per vocabulary term
    similarity: "cosine" or "dot"; with "cosine" and `normalized` False, an inner-product index must normalize the vectors
    load_weights: load the weights now, not at the first use. Pickling an embedder stores its arguments only; the process
            that unpickles it loads the weights
    Raises MismatchError if `settings` contradict the encoding settings in a model folder of drtk.
    """

    def __init__(
        self,
        model: str,
        *,
        role: Literal["query", "passage"],
        settings: EncodeSettings | None = None,
        device: str = "auto",
        load_weights: bool = True,
    ) -> None:
        self.model, self.role, self.settings = model, role, settings or EncodeSettings()
        self._device_name = device
        if load_weights:
            self.device = choose_device(device)
        self.folder = resolve_model_folder(model, file=self.settings.model_file)
        loaded = self._load_model(weights=load_weights)
        self.encoding = loaded.encoding
        self._tokenize = loaded.get_tokenizer(role)
        self._prompt_length = loaded.count_prompt_tokens(role)
        self.dimension = loaded.encoder.dimension
        self.is_sparse = self.encoding.pooling == SPARSE_POOLING
        self._tokenizer = loaded.tokenizer
        self.normalized = self.encoding.normalize
        self.similarity = self.encoding.similarity or "dot"
        self._encoder: Encoder | None = None
        if load_weights:
            self._set_encoder(loaded.encoder)
        if role == "query" and self.settings.prompt is None:
            warn_of_missing_prompt(model, self.folder, self.encoding.query_prompt)

    def load(self) -> Embedder:
        """Load the weights onto the device if needed; return self."""
        if self._encoder is None:
            self.device = choose_device(self._device_name)
            self._set_encoder(self._load_model(weights=True).encoder)
        return self

    def _load_model(self, *, weights: bool) -> Any:
        overrides = {
            "pooling": self.settings.pooling,
            "normalize": self.settings.normalize,
            "similarity": self.settings.similarity,
            f"{self.role}_length": self.settings.max_length,
            f"{self.role}_prompt": self.settings.prompt,
            "title": self.settings.title,
            "truncate": self.settings.dimensions,
        }
        folder = resolve_tower_folder(self.folder, self.role)
        return load_encoder(folder, overrides=overrides, weights=weights, model_file=self.settings.model_file)

    def _set_encoder(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.dtype = choose_dtype(self.settings.precision, self.device, model_type=encoder.backbone.config.model_type)
        move_model(encoder.backbone, self.device, self.dtype)
        encoder.to(self.device)
        if encoder.head is not None:
            encoder.head.to(self.dtype)
        if self.settings.packed and self.settings.model_file is None:
            enable_packing(encoder.backbone, self.device)
        self._budget = self.settings.batch_tokens or (_CPU_TOKENS if self.device.type == "cpu" else _GPU_TOKENS)

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(Embedder, role=self.role, settings=self.settings, device=self._device_name, load_weights=False)
        return make, (self.model,)

    @property
    def identity(self) -> dict[str, Any]:
        """Manifest entry of the model: digests of weights, configuration and tokenizer, and encoding settings.

        Vectors with equal digests are comparable. Query and passage embedders of a model have the same identity, even if
        `settings` override prompt or length.
        """
        roles: dict[Role, Path] = {role: resolve_tower_folder(self.folder, role) for role in ("query", "passage")}
        towers = sorted({*roles.values()})
        model_file = self.settings.model_file
        digests = [digest_weights(path, model_file=model_file) for path in towers]
        backbones = [read_layout(path).backbone for path in towers]
        pooling = {"pooling": list(self.encoding.pooling), "normalized": self.normalized}
        encodings = {role: read_layout(path).encoding for role, path in roles.items()}
        return {
            # An absolute path, so that an index finds its encoder from any folder.
            "model": os.path.abspath(self.model) if os.path.isdir(self.model) else self.model,
            "digest": digest_records([digests, pooling]),
            **({} if model_file is None else {"model_file": model_file}),
            "dimension": self.dimension,
            "similarity": self.similarity,
            **pooling,
            "config": digest_records(digest_file(backbone / "config.json") for backbone in backbones),
            "tokenizer": digest_records(map(digest_tokenizer, backbones)),
            "recipe": {
                **{f"{role}_prompt": encoding.get_prompt(role) for role, encoding in encodings.items()},
                **{f"{role}_length": encoding.get_max_length(role) for role, encoding in encodings.items()},
                **{
                    name: getattr(encodings["passage"], name)
                    for name in ("title", "include_prompt", "lowercase", "truncate")
                },
            },
        }

    def __call__(self, items: Sequence[Passage] | Sequence[Query] | Sequence[str]) -> np.ndarray:
        """Return the vectors of the items, (len(items), dimension), float32."""
        batches = (
            self.tokenize(items[start : start + TOKENIZE_BATCH_SIZE])
            for start in range(0, len(items), TOKENIZE_BATCH_SIZE)
        )
        vectors = [self.encode_tokens(tokens) for tokens in read_ahead(batches)]
        return np.concatenate(vectors) if vectors else np.empty((0, self.dimension), dtype=np.float32)

    def tokenize(self, items: Sequence[Any]) -> TokenizedTexts:
        """Tokenize items with the prompts, titles and special tokens that the model expects."""
        return self._tokenize(items)

    def encode_tokens(self, tokens: TokenizedTexts, report: Callable[[int], None] | None = None) -> np.ndarray:
        """Return the vectors of n tokenized texts, (n, dimension), float32.

        report: called with the number of texts in each batch
        Raises DrtkError if the device is out of memory.
        """
        out = torch.empty((len(tokens), self.dimension), dtype=torch.float32, device=self.load().device)
        self._encode_batches(tokens, out.__setitem__, report)
        return out.cpu().numpy()

    def compute_impacts(
        self, tokens: TokenizedTexts, report: Callable[[int], None] | None = None
    ) -> list[dict[str, int]]:
        """Return the impacts of n tokenized texts by word piece, round(100 * weight), largest first; for sparse encoders.

        Impacts are above 0, at most `settings.max_active_dims` per text.
        report: called with the number of texts in each batch
        Raises DrtkError if the device is out of memory, or if a weight is NaN or infinite.
        """
        impacts: list[dict[str, int]] = [{} for _ in range(len(tokens))]

        def store(rows: Tensor, weights: Tensor) -> None:
            if not torch.isfinite(weights).all():
                raise DrtkError(
                    f"{self.model}: a term weight is NaN or infinite; check the model, or use `precision` float32"
                )
            for row, values in zip(rows.tolist(), weights.cpu().numpy(), strict=True):
                impacts[row] = self._format_impacts(values)

        self._encode_batches(tokens, store, report)
        return impacts

    def _format_impacts(self, weights: np.ndarray) -> dict[str, int]:
        """Return the positive impacts of a text. weights: (vocabulary,)"""
        ids = np.flatnonzero(weights)
        ids = ids[np.argsort(-weights[ids], kind="stable")][: self.settings.max_active_dims]
        values = np.rint(IMPACT_SCALE * weights[ids]).astype(int)
        return {self._terms[id]: value for id, value in zip(ids.tolist(), values.tolist(), strict=True) if value > 0}

    @cached_property
    def _terms(self) -> list[str]:
        """The term of each token id: its word piece, or <id> if the tokenizer has none or it contains white space."""
        pieces = {id: piece for piece, id in self._tokenizer.get_vocab().items()}
        return [
            piece if (piece := pieces.get(id, "")).split() == [piece] else f"<{id}>" for id in range(self.dimension)
        ]

    @torch.inference_mode()
    def _encode_batches(
        self, tokens: TokenizedTexts, store: Callable[[Tensor, Tensor], None], report: Callable[[int], None] | None
    ) -> None:
        """Encode tokenized texts, and `store` the vectors of each batch with their row numbers."""
        encoder = self.load()._encoder
        assert encoder is not None
        with closing(iter_inputs(tokens, self._tokenize, budget=self._budget, device=self.device)) as batches:
            for rows, inputs in batches:
                num_tokens = inputs["input_ids"].numel()
                with report_out_of_memory(self.device, "lower `batch_tokens`", num_tokens=num_tokens):
                    vectors = encoder(**inputs, prompt_length=self._prompt_length)
                store(rows, vectors)
                if report is not None:
                    report(len(rows))


def make_embedder(
    model: str, *, role: Role, settings: EncodeSettings, device: str = "auto", load_weights: bool = True
) -> Embedder | EndpointEmbedder | SentenceTransformersEmbedder:
    """Return the embedder of a model folder or hub name, or of the URL of an endpoint."""
    if is_endpoint(model):
        return EndpointEmbedder(model, role=role, settings=settings)
    if needs_sentence_transformers(model):
        return SentenceTransformersEmbedder(
            model, role=role, settings=settings, device=device, load_weights=load_weights
        )
    return Embedder(model, role=role, settings=settings, device=device, load_weights=load_weights)


def identify_encoder(settings: ImportedVectorSettings) -> dict[str, Any]:
    """Return the identity of the encoder of imported vectors, `model` (see `Embedder.identity`)."""
    settings.check()
    options = to_dict(settings)
    model = options.pop("model")
    return make_embedder(model, role="passage", settings=EncodeSettings(**options), load_weights=False).identity


def encode_corpus(
    source: str,
    model: str,
    settings: EncodeSettings,
    job: FolderJob,
    *,
    role: Role = "passage",
    part: InputShard = WHOLE_INPUT,
    device: str = "auto",
    runner_settings: RunnerSettings | None = None,
) -> None:
    """Encode a corpus, or a file of queries with role "query", and write the embeddings to the folder of `job`.

    The embeddings are vectors, or impacts if the encoder is sparse.
    part: (i, n), from 1, encodes the i-th of n parts of the input (see `select_shard`)
    Raises MismatchError if `dimensions` exceeds the dimension of the model, UsageError for settings of the other kind of
    encoder (dense or sparse), DrtkError for an empty input.
    """
    job.record(settings, source=source, model=model, role=role, shard="{}/{}".format(*part), device=device)
    runner_settings = runner_settings or RunnerSettings()
    # Before loading, so that a later change of the folder is detected.
    entries = [] if is_endpoint(model) else [describe_folder(resolve_model_folder(model))]
    embedder = make_embedder(
        model, role=role, settings=settings, device=device, load_weights=runner_settings.runner == "local"
    )
    others = ("dimensions", "model_file", "normalize", "vector_dtype") if embedder.is_sparse else ("max_active_dims",)
    kind = "sparse" if embedder.is_sparse else "dense"
    require_defaults(settings, f"has no effect on {model}, a {kind} encoder; omit it", names=others)
    if settings.dimensions is not None and settings.dimensions > embedder.dimension:
        raise MismatchError(
            f"`dimensions={settings.dimensions}` must be at most {embedder.dimension}, the dimension of {model}"
        )
    identity, title = embedder.identity, embedder.encoding.title
    records: Iterator[Any]
    if role == "query":
        unit, records = "queries", read_queries(source, tracker=job.tracker)
    else:
        unit, records = "passages", read_passages(source, tracker=job.tracker, side_files=job.side_files)
    first = next(records, None)  # before `job.begin`, so that an empty input does not replace an existing folder
    if first is None:
        raise DrtkError(f"{get_source_name(source)}: contains no {unit}; check the input")
    num_read = num_empty = 0

    def count_records(records: Iterator[Any]) -> Iterator[Any]:
        nonlocal num_read, num_empty
        for record in records:
            num_read += 1
            num_empty += not (record.text if role == "query" else format_passage(record, title)).strip()
            yield record

    folder = job.begin()
    writer: ShardWriter | ImpactShardWriter
    if embedder.is_sparse:
        writer = ImpactShardWriter(folder)
        facts = {"kind": SPARSE_KIND, "scale": IMPACT_SCALE}
    else:
        writer = ShardWriter(folder, dimension=embedder.dimension, dtype=settings.vector_dtype, model=model)
        facts = {"dtype": settings.vector_dtype}
    total = count_lines(source, shards=part[1])
    encode_records(
        count_records(select_shard(chain([first], records), part, batch_size=settings.shard_size)),
        embedder,
        writer,
        runner_settings=runner_settings,
        unit=unit,
        total=total,
        get_share_read=lambda: job.tracker.get_share_read(source),
    )
    job.counts[unit] = writer.num_rows
    if count := writer.num_truncated:
        job.counts["truncated"] = count
        advice = "; split them with `drtk chunk --tokenizer MODEL --max-tokens N`" if role == "passage" else ""
        limit = embedder.encoding.get_max_length(role)
        log(f"encode: {count:,} of {writer.num_rows:,} {unit} were truncated to {limit} tokens{advice}")
    if num_empty:
        name = get_source_name(source)
        warn(f"{name}: {num_empty:,} of {num_read:,} {unit} have no text; their vectors are meaningless")
    job.tracker.inputs += entries
    job.finish(
        encoder=identity,
        dimension=embedder.dimension,
        role=role,
        encoding=to_dict(embedder.encoding),
        part={"number": part[0], "of": part[1]},
        corpus=None if role == "query" else resolve_path(source),
        shards=writer.entries,
        **facts,
    )


class RecordEncoder(BatchFunction):
    """Batch function that encodes passages or queries.

    The result has the vectors, (records, dimension) float32, or the impacts, and the number of truncated texts.
    """

    def __init__(self, embedder: Embedder | EndpointEmbedder | SentenceTransformersEmbedder) -> None:
        self._embedder: Any = embedder.load()

    def prepare(self, records: list[Any]) -> TokenizedTexts | list[str]:
        return self._embedder.tokenize(records)

    def __call__(self, tokens: TokenizedTexts | list[str]) -> tuple[np.ndarray | list[dict[str, int]], int]:
        embedder = self._embedder
        encode = embedder.compute_impacts if embedder.is_sparse else embedder.encode_tokens
        num_truncated = tokens.num_truncated if isinstance(tokens, TokenizedTexts) else 0  # other libraries tokenize
        return encode(tokens, self.report), num_truncated


def encode_records(
    records: Iterable[Passage] | Iterable[Query],
    embedder: Embedder | EndpointEmbedder | SentenceTransformersEmbedder,
    writer: ShardWriter | ImpactShardWriter,
    *,
    runner_settings: RunnerSettings,
    unit: str = "passages",
    total: int | None = None,
    get_share_read: Callable[[], float | None] = lambda: None,
) -> None:
    """Encode records, and write the vectors as shards of `embedder.settings.shard_size` records.

    A thread writes a shard while the next one is encoded. Shards that are already written are not encoded again.
    total: number of records, for the progress bar
    get_share_read: returns the fraction of the input that was read, to estimate an unknown `total`
    Raises MismatchError for existing shards of other records.
    """
    size = embedder.settings.shard_size
    stream: Iterator[Any] = iter(records)
    pending: deque[tuple[list[str], str]] = deque()  # ids and digest of each shard being encoded
    reported = 0  # records of the current shard
    num_read = 0
    writing: Future[None] | None = None  # of the previous shard

    def get_share() -> float | None:
        share = get_share_read()
        return share and share * progress.done / num_read  # a whole shard is read before it is encoded

    def iter_missing_shards() -> Iterator[list[Any]]:
        nonlocal num_read
        number = 0
        while shard := list(islice(stream, size)):
            num_read += len(shard)
            digest = digest_records(shard)
            if not writer.is_finished(number, digest):
                pending.append(([record.id for record in shard], digest))
                yield shard
            number += 1

    def report(count: int) -> None:
        nonlocal reported
        reported += count
        progress.add(count)
        if writing is not None and writing.done():
            writing.result()  # raises its error

    with (
        ThreadPoolExecutor(1, thread_name_prefix="drtk-write") as thread,
        Progress("encode", total=total, get_share=get_share, unit=unit, initial=writer.num_rows) as progress,
        closing(
            map_batches(iter_missing_shards(), RecordEncoder, embedder, runner_settings=runner_settings, report=report)
        ) as encoded,
    ):
        for vectors, num_truncated in encoded:
            ids, digest = pending.popleft()
            if writing is not None:
                writing.result()
            writing = thread.submit(writer.write, ids, vectors, digest=digest, num_truncated=num_truncated)
            if len(ids) > reported:  # runners on other machines do not report batches
                progress.add(len(ids) - reported)
            reported = 0
        if writing is not None:
            writing.result()
