"""A small engine as a process of its own: `python -I engine_server.py SOCKET`.

It answers like a server of OpenAI's API on a unix socket. A chat whose last message is "die" ends
the process in the middle of the answer, as SIGKILL does; a stream's first event comes before that.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from typing import Any

ANSWER = {
    "id": "chatcmpl-0123456789",
    "object": "chat.completion",
    "created": 1_790_000_000,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
CHUNK = {
    **{key: ANSWER[key] for key in ("id", "created", "model")},
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}],
}
LAST = {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        listed = {"object": "list", "data": [{"id": "m", "object": "model"}]}
        self._whole(listed if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        dies = given.get("messages", [{"content": ""}])[-1]["content"] == "die"
        if given.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self._event(CHUNK)
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)
            self._event(LAST)
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            self._whole(ANSWER, dies)

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _whole(self, answer: dict[str, Any], dies: bool = False) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:20])
        self.wfile.flush()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        self.wfile.write(data[20:])


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A thread for each connection, on a unix socket."""

    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    with Server(sys.argv[1], Handler) as server:
        print("the engine listens", file=sys.stderr, flush=True)
        server.serve_forever()
