"""The command `wellspoken` with its calls counted, as long as somebody wants them.

    python -m tests.walk.counted SOCKET ARGUMENTS...

Whoever connects to the unix socket sends `begin` or `end`, a line each; `end` answers with what was
counted in between, as JSON. The proxy runs in the main thread, whose calls alone are counted.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGES = tuple(f"/wellspoken/{name}/" for name in ("adapters", "engine", "proxy"))


class Counts:
    """What was called since `begin`: Python functions, those of C, and the product's own walk."""

    def __init__(self) -> None:
        self.on = False
        self.python = 0
        self.c = 0
        self.walk: list[tuple[str, str]] = []  # file and function, in the order of the calls

    def begin(self) -> None:
        """Count from zero."""
        self.python = self.c = 0
        self.walk = []
        self.on = True

    def end(self) -> dict[str, Any]:
        """Stop, and return what was counted."""
        self.on = False
        return {"python": self.python, "c": self.c, "walk": self.walk}

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Count one event of the interpreter (sys.setprofile)."""
        if not self.on:
            return
        if event == "c_call":
            self.c += 1
        elif event == "call":
            self.python += 1
            code = frame.f_code
            at = max(code.co_filename.find(package) for package in PACKAGES)
            if at >= 0:
                name = code.co_filename[at + len("/wellspoken/") :]
                self.walk.append((name, code.co_qualname))


def serve(listener: socket.socket, counts: Counts) -> None:
    """Follow the lines of one connection after another, in a thread of its own."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                if line == "begin\n":
                    counts.begin()
                    lines.write("{}\n")
                else:
                    lines.write(json.dumps(counts.end()) + "\n")
                lines.flush()


def main() -> object:
    """Run the command; return its exit code."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(sys.argv[1])))
    listener.listen()
    counts = Counts()
    threading.Thread(target=serve, args=(listener, counts), daemon=True).start()
    (command,) = entry_points(group="console_scripts", name="wellspoken")
    run = command.load()
    sys.setprofile(counts.profile)
    return run(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
