"""The command line in a process of its own: its peak of memory, and what it says to a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import Any

EXPORT = [sys.executable, "-m", "wellspoken.proxy.cli", "export"]
_MEASURED = """
import resource, sys
from wellspoken.proxy.cli.main import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def peak(*arguments: str, code: int = 0) -> int:
    """Run `wellspoken` with these arguments, which has to end so; return its peak in MiB.

    A shell stands between, since a process begins with the peak of the one that started it.
    """
    command = [sys.executable, "-c", _MEASURED, *arguments]
    done = subprocess.run(
        ["sh", "-c", '"$@"; exit $?', "sh", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    size = int(done.stderr.split()[-1])
    return size >> (20 if sys.platform == "darwin" else 10)  # bytes there, else KiB


def on_terminal(*arguments: str, stdin: Any = subprocess.DEVNULL, stdout: Any) -> tuple[int, bytes]:
    """Run `wellspoken` with a terminal for stderr (and stdin, if that is None).

    Returns the exit code, and what it wrote to the terminal.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "wellspoken.proxy.cli", *arguments],
        stdin=theirs if stdin is None else stdin,
        stdout=stdout,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    return process.wait(timeout=120), seen
