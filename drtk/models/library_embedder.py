"""Encoders that sentence-transformers loads and runs, because drtk does not implement their modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from drtk.config import require_defaults
from drtk.data.embeddings import digest_records
from drtk.errors import MismatchError, UsageError, convert_import_error
from drtk.models.config import EncodeSettings
from drtk.models.device import choose_device, choose_dtype, move_model, report_out_of_memory
from drtk.models.generator_input import format_items
from drtk.models.loading import report_load_errors
from drtk.models.model_folder import (
    OWN_MODULES,
    EncodingConfig,
    UnsupportedModulesError,
    choose_prompt,
    read_layout,
    read_modules,
    resolve_model_folder,
    resolve_tower_folder,
    warn_of_missing_prompt,
)
from drtk.runtime.integrity import compute_content_digest
from drtk.runtime.remote_code import TRUST_ADVICE, is_remote_code_trusted

_BATCH_SIZE, _REPORT_SIZE = 32, 1024
_DIGESTED = (".safetensors", ".bin", ".pt", ".onnx", ".npz", ".json", ".txt", ".model", ".py")


def needs_sentence_transformers(model: str) -> bool:
    """Return whether only sentence-transformers can run the encoder of a model folder or hub name."""
    try:
        read_layout(resolve_tower_folder(resolve_model_folder(model), "passage"))
    except UnsupportedModulesError:
        return True
    return False


class SentenceTransformersEmbedder:
    """Encoder of texts by sentence-transformers, with the interface of a dense `drtk.retrieval.encode.Embedder`.

    load_weights: if False, the model is loaded on the CPU for its dimension only, and again at the first use
    Raises UsageError for settings without effect, MismatchError for untrusted code and a similarity other than cosine and dot,
    DrtkError for a damaged folder, MissingDependency if sentence-transformers is not installed.
    """

    is_sparse = False

    def __init__(
        self,
        model: str,
        *,
        role: Literal["query", "passage"],
        settings: EncodeSettings,
        device: str = "auto",
        load_weights: bool = True,
    ) -> None:
        self.model, self.role, self.settings, self._device_name = model, role, settings, device
        reason = f"has no effect on {model}, which sentence-transformers runs; omit it"
        require_defaults(settings, reason, names=("pooling", "batch_tokens", "model_file", "packed"))
        if settings.title in ("sep", "segment"):
            raise UsageError(f"`title` {settings.title}: not supported by {model}; use join or none")
        self.folder, self.device = resolve_model_folder(model), choose_device(device if load_weights else "cpu")
        self._network: Any = self._load()
        similarity = settings.similarity or str(self._network.similarity_fn_name or "cosine")
        if similarity not in ("cosine", "dot"):
            raise MismatchError(f"{model}: its similarity is {similarity}; give `similarity` cosine or dot")
        self.similarity = similarity
        self.normalized = bool(settings.normalize) or type(self._network[-1]).__name__ == "Normalize"
        self._prompt = choose_prompt(self._network.prompts, role) if settings.prompt is None else settings.prompt
        if role == "query" and settings.prompt is None:
            warn_of_missing_prompt(model, self.folder, self._prompt)
        self.encoding = EncodingConfig(
            pooling=(),
            normalize=self.normalized,
            similarity=similarity,
            title=settings.title or "join",
            query_length=0,
            passage_length=0,
            truncate=settings.dimensions,
            **{f"{role}_prompt": self._prompt},  # type: ignore[arg-type]
        )
        self.dimension = int(self.encode_tokens(self.tokenize(["dimension"])).shape[1])
        if not load_weights:
            self._network = None

    def _load(self) -> Any:
        with convert_import_error("sentence-transformers", f"the encoder {self.model}"):
            from sentence_transformers import SentenceTransformer
        for module in read_modules(self.folder):
            if not module["type"].startswith(OWN_MODULES) and not is_remote_code_trusted():
                raise MismatchError(f"{self.folder}: requires remote code ({module['type']}); {TRUST_ADVICE}")
        with report_load_errors(self.folder, "cannot be loaded by sentence-transformers"):
            network = SentenceTransformer(
                str(self.folder), device=str(self.device), trust_remote_code=is_remote_code_trusted(),
                local_files_only=True, model_kwargs={"dtype": torch.float32}, truncate_dim=self.settings.dimensions,
            )  # fmt: skip
            if self.settings.max_length is not None:
                network.max_seq_length = self.settings.max_length
        move_model(network, self.device, choose_dtype(self.settings.precision, self.device))
        return network

    def load(self) -> SentenceTransformersEmbedder:
        """Load the weights onto the device if needed; return self."""
        if self._network is None:
            self.device = choose_device(self._device_name)
            self._network = self._load()
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """Manifest entry of the model: digest of its files, and encoding settings."""
        files = sorted(path for path in Path(self.folder).rglob("*") if path.suffix in _DIGESTED and path.is_file())
        digests = [[str(path.relative_to(self.folder)), compute_content_digest(path)] for path in files]
        return {
            "model": os.path.abspath(self.model) if os.path.isdir(self.model) else self.model,
            "digest": digest_records([digests, self.normalized]),
            "dimension": self.dimension,
            "similarity": self.similarity,
            "pooling": [],
            "normalized": self.normalized,
        }

    def tokenize(self, items: Sequence[Any]) -> list[str]:
        """Return the texts of passages, queries or strings with their titles; sentence-transformers tokenizes them."""
        return format_items(items, self.encoding.title)

    def encode_tokens(self, texts: Sequence[str], report: Callable[[int], None] | None = None) -> np.ndarray:
        """Return the vectors of n texts, (n, dimension), float32. Raises DrtkError if the device is out of memory.

        report: function that is called with the number of texts of each finished batch
        """
        network = self.load()._network
        encode = network.encode_query if self.role == "query" else network.encode_document
        vectors = []
        for start in range(0, len(texts), _REPORT_SIZE):
            batch = list(texts[start : start + _REPORT_SIZE])
            with report_out_of_memory(self.device, "lower `max_length`"):
                part = encode(
                    batch, prompt=self._prompt, batch_size=_BATCH_SIZE, show_progress_bar=False,
                    normalize_embeddings=bool(self.settings.normalize),
                )  # fmt: skip
            vectors.append(np.asarray(part, dtype=np.float32))
            if report is not None:
                report(len(batch))
        return np.concatenate(vectors) if vectors else np.empty((0, self.dimension), dtype=np.float32)

    def __call__(self, items: Sequence[Any]) -> np.ndarray:
        """Return the vectors of passages, queries or strings, (len(items), dimension), float32."""
        return self.encode_tokens(self.tokenize(items))

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(SentenceTransformersEmbedder, role=self.role, settings=self.settings, device=self._device_name)
        return make, (self.model,)
