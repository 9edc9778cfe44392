"""A program that behaves as an inference server does while it starts: `python program.py SOCKET
STEP...`.

Steps, in order: `say:TEXT` (a line of log), `wait:SECONDS`, `until:PATH` (a file is there),
`report:JSON` (the status line), `exit:CODE`, `listen:STATUS` (answer on the socket from now on;
POSTs with STATUS), `deaf` (accept, and never answer), `forever`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar


class Handler(BaseHTTPRequestHandler):
    """Answers GET with its path, POST with what it was told to, and prints what it was asked."""

    posts: ClassVar[int] = 200

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self.posts)

    def _answer(self, status: int) -> None:
        print(f"asked {self.command} {self.path}", flush=True)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"{}")

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


class Server(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "unix", 0


def main(path: str, steps: list[str]) -> int:
    """Do the steps; return the exit code."""
    for step in steps:
        what, _, rest = step.partition(":")
        if what == "say":
            print(rest, flush=True)
        elif what == "wait":
            time.sleep(float(rest))
        elif what == "until":
            while not os.path.exists(rest):
                time.sleep(0.005)
        elif what == "report":
            sys.stdout.write(rest + "\n")
            sys.stdout.flush()
            sys.stdout = sys.stderr
        elif what == "exit":
            return int(rest)
        elif what == "listen":
            Handler.posts = int(rest)
            server = Server(path, Handler)  # type: ignore[arg-type]
            threading.Thread(target=server.serve_forever, daemon=True).start()
        elif what == "deaf":
            deaf = socket.socket(socket.AF_UNIX)
            deaf.bind(path)
            deaf.listen()
        else:
            assert what == "forever"
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
