"""Replays answers of other servers (tests/fixtures/chat) on a port of its own.

The model's name says which: "vllm/0.3.3-legacy-stop" is that file, as a stream where one is asked
for. So a client can be shown both what such a server sends and what the proxy makes of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ANSWERS = Path(__file__).parents[3] / "fixtures" / "chat"


class _Handler(BaseHTTPRequestHandler):
    """Answers a chat request with the file that its model names, anything else with a 404."""

    models: Sequence[str] = ()

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            listed = [{"id": name, "object": "model", "owned_by": "it"} for name in self.models]
            data = json.dumps({"object": "list", "data": listed}).encode()
            self._answer("application/json", data)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        streamed = bool(asked.get("stream"))
        file = ANSWERS / f"{asked['model']}.{'sse' if streamed else 'json'}"
        if self.path != "/v1/chat/completions" or not file.is_file():
            self.send_error(404)
            return
        kind = "text/event-stream" if streamed else "application/json"
        self._answer(kind, file.read_bytes())

    def _answer(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing: what was asked is the client's matter."""


@contextmanager
def replaying(models: Sequence[str] = ()) -> Iterator[str]:
    """Serve until the block ends; gives the base URL. `models`: those that it lists."""
    handler = type("_Listing", (_Handler,), {"models": models})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
