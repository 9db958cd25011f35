"""A server of embeddings with OpenAI's interface: answers are out of order and in two encodings, and may fail."""

import base64
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import orjson


def compute_vector(text: str) -> np.ndarray:
    """Return the vector of the server for a text: counts of hashed words, (16,) float32."""
    vector = np.full(16, 0.5, dtype=np.float32)
    for word in text.split():
        vector[zlib.crc32(word.encode()) % 16] += 1
    return vector


class Server(ThreadingHTTPServer):
    """Server of embeddings. failures: (status, message) of the next answers; requests: bodies and keys received"""

    def __init__(self, name: str = "hashes") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.name = name
        self.failures: list[tuple[int, Any]] = []
        self.requests: list[tuple[dict[str, Any], str | None]] = []
        self.drop = 0  # vectors to leave out of each answer
        self.model = f"http://127.0.0.1:{self.server_address[1]}/v1#{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((body, self.headers["Authorization"]))
        if self.server.failures:
            status, answer = self.server.failures.pop()
        elif self.path != "/v1/embeddings" or body["model"] != self.server.name:
            status, answer = 404, {"error": {"message": f"no model {body['model']}\nhere"}}
        else:
            entries = []
            for index, text in enumerate(body["input"]):
                vector = compute_vector(text)
                encoded = base64.b64encode(vector.tobytes()).decode() if index % 2 else vector.tolist()
                entries.append({"object": "embedding", "index": index, "embedding": encoded})
            status, answer = 200, {"data": entries[::-1][self.server.drop :]}
        content = orjson.dumps(answer)
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.send_header("Location", "/v1/embeddings")  # of a redirect
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def run_server(name: str = "hashes") -> Iterator[Server]:
    """Run a server in a thread."""
    with Server(name) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
