"""How much memory a command takes."""

from __future__ import annotations

import subprocess
import sys

_MEASURED = """
import resource, sys
from wellspoken.proxy.cli import main
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
