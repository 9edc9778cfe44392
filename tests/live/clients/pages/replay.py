"""Replays answers of other servers (tests/fixtures/chat) on a port of its own.

The model's name says which: "vllm/0.3.3-legacy-stop" is that file, as a stream where one is asked
for. So a client can be shown both what such a server sends and what the proxy makes of it. After
the output of a tool comes the answer that AFTER names.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ANSWERS = Path(__file__).parents[3] / "fixtures" / "chat"
AFTER = {"tgi/3.2-stream-tool-calls": "tgi/3.3-stream-logprobs"}
COMMAND = {b"get_weather": b"exec_command", b'\\"city\\"': b'\\"cmd\\"', b"Rome": b"echo over"}
"""What the fixtures' call becomes for Codex, which offers to run commands and knows no weather."""


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
        name = asked["model"]
        if asked.get("messages", [{}])[-1].get("role") == "tool":
            name = AFTER.get(name, name)
        file = ANSWERS / f"{name}.{'sse' if streamed else 'json'}"
        if self.path != "/v1/chat/completions" or not file.is_file():
            self.send_error(404)
            return
        kind = "text/event-stream" if streamed else "application/json"
        data = file.read_bytes()
        if b"exec_command" in json.dumps(asked.get("tools")).encode():
            for old, new in COMMAND.items():
                data = data.replace(old, new)
        self._answer(kind, data)

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
