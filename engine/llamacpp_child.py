"""The child process that runs llama.cpp's own HTTP server: `python -m ...llamacpp_child`.

It writes one JSON line to stdout, `{"ready": URL}` or `{"error": KIND, "detail": TEXT}`, and then
serves until it is signalled or its stdin closes. Everything llama.cpp prints goes to stderr. Only
this module may import `xllamacpp` (the wheel that holds llama.cpp's server), so that a crash, or a
library the machine lacks, stays in here.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import select
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

LIFELINE = 0  # stdin


def hold_lifeline() -> None:
    """End this process when its stdin closes, even inside a call that holds the interpreter.

    xllamacpp keeps the GIL while a model loads (minutes for a large one), so a thread that reads
    stdin would notice too late. The kernel's SIGIO ends the process by default. Elsewhere
    than on Linux it is ignored, and the end of stdin is seen after the load, in `serve`.
    """
    if sys.platform == "linux":
        fcntl.fcntl(LIFELINE, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(LIFELINE, fcntl.F_GETFL)
        fcntl.fcntl(LIFELINE, fcntl.F_SETFL, flags | os.O_ASYNC)
    readable, _, _ = select.select([LIFELINE], [], [], 0)
    if readable:  # closed before the signal was asked for
        raise SystemExit(0)


def take_stdout() -> int:
    """Return a private copy of stdout and point fd 1 at stderr, where llama.cpp may print."""
    status = os.dup(1)
    os.dup2(2, 1)
    return status


def say(status: int, **fields: str) -> None:
    """Write the one status line and close the pipe."""
    os.write(status, json.dumps(fields).encode() + b"\n")
    os.close(status)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="wellspoken-llamacpp")
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--gpu-layers", type=int, required=True)
    parser.add_argument("--verbosity", type=int, required=True)
    return parser.parse_args(argv)


def parameters(xllamacpp: ModuleType, options: argparse.Namespace) -> Any:
    """Return xllamacpp's CommonParams for these options."""
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.context
    params.n_parallel = options.parallel
    params.n_gpu_layers = options.gpu_layers
    params.verbosity = options.verbosity
    params.model_alias = {options.alias}
    if options.threads:
        params.cpuparams.n_threads = options.threads
    if options.context:
        params.fit_params = False  # the context was chosen: do not shrink it to the free memory
    params.endpoint_metrics = True
    params.ui = False
    params.cors_origins = ""  # any web page could otherwise ask the engine past the proxy
    return params


def serve(status: int, options: argparse.Namespace) -> int:
    """Load the model, say how it went, serve until stdin closes; return the exit code."""
    try:
        import xllamacpp  # here, so that what the machine lacks becomes a status line
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp"
        say(status, error="missing" if missing else "library", detail=str(error))
        return 1
    try:
        params = parameters(xllamacpp, options)
    except (AttributeError, TypeError) as error:  # a setting this version does not know
        say(status, error="version", detail=f"{type(error).__name__}: {error}")
        return 1
    try:
        server = xllamacpp.Server(params)
    except (RuntimeError, ValueError) as error:
        say(status, error="load", detail=str(error))
        return 1
    say(status, ready=str(server.listening_address))
    while os.read(LIFELINE, 1):
        pass
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the child; return its exit code."""
    status = take_stdout()
    hold_lifeline()
    return serve(status, parse(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    raise SystemExit(main())
