"""Embeddings from an endpoint with OpenAI's interface (`POST URL/embeddings`), such as vLLM, TEI or a hosted service."""

from __future__ import annotations

import base64
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException, IncompleteRead
from typing import Any, Literal

import numpy as np
import orjson

from drtk.config import require_defaults
from drtk.data.embeddings import digest_records
from drtk.errors import DrtkError, UsageError
from drtk.models.config import EncodeSettings
from drtk.models.generator_input import format_items
from drtk.models.model_folder import EncodingConfig
from drtk.runtime.progress import log

API_KEY = "OPENAI_API_KEY"
TEXTS_PER_REQUEST, CONCURRENT_REQUESTS = 32, 8  # 32 is the default limit of text-embeddings-inference
_MAX_MESSAGE = 300  # characters of a server's message
_ATTEMPTS, _LONGEST_DELAY, _TIMEOUT = 8, 60.0, 600.0  # delay and timeout in seconds
_LOCAL_ONLY = ("pooling", "max_length", "batch_tokens", "model_file", "precision", "packed")  # the server decides these


class _RejectRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that reports a redirect as an error, because another host must not get the API key."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_RejectRedirects)


class EndpointEmbedder:
    """Encoder of texts that calls an endpoint, with the interface of a dense `drtk.retrieval.encode.Embedder`.

    model: URL#NAME, such as http://localhost:8000/v1#intfloat/e5-base-v2    role: "query" or "passage"
    similarity: "cosine" (default; indexes then normalize the vectors) or "dot"
    Raises UsageError for a URL without a model name and for settings without effect, DrtkError if the endpoint fails.
    """

    is_sparse = False

    def __init__(self, model: str, *, role: Literal["query", "passage"], settings: EncodeSettings) -> None:
        self.model, self.role, self.settings = model, role, settings
        url, _, self._name = model.partition("#")
        if not self._name:
            raise UsageError(f"{model}: has no model name; write URL#NAME, such as {url.rstrip('/')}#bge-m3")
        self._url = f"{url.rstrip('/')}/embeddings"
        require_defaults(settings, "has no effect on an endpoint; omit it", names=_LOCAL_ONLY)
        if settings.title in ("sep", "segment"):
            raise UsageError(f"`title` {settings.title}: has no effect on an endpoint; use join or none")
        self.normalized = bool(settings.normalize)
        self.similarity = settings.similarity or "cosine"
        self.encoding = EncodingConfig(
            pooling=(),
            normalize=self.normalized,
            similarity=self.similarity,
            title=settings.title or "join",
            query_length=0,
            passage_length=0,
            truncate=settings.dimensions,
            **{f"{role}_prompt": settings.prompt or ""},  # type: ignore[arg-type]
        )
        self._has_warned = False
        self.dimension = 0  # not known before the first answer
        self.dimension = self._request_vectors(["dimension"]).shape[1]

    def load(self) -> EndpointEmbedder:
        """Return self, because the endpoint has loaded the model already."""
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """Record that identifies the model, for manifests.

        The digest is of model name, dimension and normalization, because the weights are unknown.
        """
        return {
            "model": self.model,
            "digest": digest_records([[self._name, self.dimension, self.normalized]]),
            "dimension": self.dimension,
            "similarity": self.similarity,
            "pooling": [],
            "normalized": self.normalized,
        }

    def tokenize(self, items: Sequence[Any]) -> list[str]:
        """Return the texts of passages, queries or strings with prompt and title; the endpoint tokenizes them."""
        prompt, texts = self.settings.prompt or "", format_items(items, self.encoding.title)
        return [f"{prompt}{text}" or " " for text in texts]  # endpoints reject empty texts

    def encode_tokens(self, texts: Sequence[str], report: Callable[[int], None] | None = None) -> np.ndarray:
        """Return the vectors of n texts, (n, dimension), float32. Raises DrtkError if the endpoint fails.

        report: function that is called with the number of texts of each finished request
        """
        batches = [texts[start : start + TEXTS_PER_REQUEST] for start in range(0, len(texts), TEXTS_PER_REQUEST)]
        vectors = []
        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            requests = [pool.submit(self._request_vectors, batch) for batch in batches]
            try:
                for request in requests:
                    vectors.append(request.result())
                    if report is not None:
                        report(len(vectors[-1]))
            finally:
                pool.shutdown(cancel_futures=True)
        return np.concatenate(vectors) if vectors else np.empty((0, self.dimension), dtype=np.float32)

    def __call__(self, items: Sequence[Any]) -> np.ndarray:
        """Return the vectors of passages, queries or strings, (len(items), dimension), float32."""
        return self.encode_tokens(self.tokenize(items))

    def _request_vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, (texts, dimension) float32, from one request, which is retried on temporary errors.

        Raises DrtkError if the endpoint fails.
        """
        body = orjson.dumps({"model": self._name, "input": texts, "encoding_format": "base64"})
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(API_KEY):
            headers["Authorization"] = f"Bearer {key}"
        for attempt in range(_ATTEMPTS):
            delay = min(2.0**attempt, _LONGEST_DELAY)
            try:
                request = urllib.request.Request(self._url, body, headers)
                with _OPENER.open(request, timeout=_TIMEOUT) as answer:
                    content = answer.read()
                break
            except urllib.error.HTTPError as error:
                body_text = " ".join(error.read().decode(errors="replace").split())[:_MAX_MESSAGE]
                # names in backquotes would be printed as options
                problem = f"{error.code} {error.reason}: {body_text}".replace("`", "'").removesuffix(": ")
                wanted = error.headers.get("Retry-After", "")
                delay = min(float(wanted), _LONGEST_DELAY) if wanted.isdecimal() else delay
                is_temporary = error.code == 429 or error.code >= 500
                advice = f"; set {API_KEY}" if error.code in (401, 403) else ""
                if error.code == 404:
                    advice = "; check the model name and the URL, which often ends in /v1"
            except (OSError, ValueError, HTTPException) as error:  # ValueError, InvalidURL: a malformed URL
                problem, advice = f"cannot be reached: {getattr(error, 'reason', error)}", "; check the URL"
                # temporary only if the server has answered before
                is_temporary = self.dimension > 0 and isinstance(error, (OSError, IncompleteRead))
            if not is_temporary or attempt == _ATTEMPTS - 1:
                raise DrtkError(f"{self._url}: {problem}{advice}")
            if not self._has_warned:
                self._has_warned = True
                log(f"{self._url}: {problem}; trying again for up to two minutes")
            time.sleep(delay)
        return self._parse_response(content, len(texts))

    def _parse_response(self, content: bytes, count: int) -> np.ndarray:
        """Return the vectors in a response, (count, dimension) float32, in the order of the texts.

        content: body of the response    Raises DrtkError for a malformed response.
        """
        try:
            entries = sorted(orjson.loads(content)["data"], key=lambda entry: int(entry["index"]))
            vectors = np.array([_decode_embedding(entry["embedding"]) for entry in entries], dtype=np.float32)
        except (LookupError, TypeError, ValueError) as error:
            raise DrtkError(
                f"{self._url}: the response is not a list of embeddings ({error!r}); check the URL"
            ) from error
        if vectors.ndim != 2 or [entry["index"] for entry in entries] != list(range(count)):
            raise DrtkError(
                f"{self._url}: returned {len(entries):,} vectors for {count:,} texts or wrong indices; check the server"
            )
        vectors = vectors[:, : self.settings.dimensions]
        if self.dimension and vectors.shape[1] != self.dimension:
            raise DrtkError(
                f"{self._url}: vectors have dimension {vectors.shape[1]}, but had {self.dimension} before; check the server"
            )
        if self.normalized:
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
        return vectors

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(EndpointEmbedder, role=self.role, settings=self.settings), (self.model,)


def _decode_embedding(embedding: Any) -> np.ndarray:
    """Decode an embedding, a list of numbers or little-endian float32 in base64, to a vector, (dimension,) float32."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), dtype="<f4")
    return np.asarray(embedding, dtype=np.float32)
