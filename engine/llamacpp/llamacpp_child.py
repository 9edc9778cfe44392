"""The child process that runs llama.cpp's own HTTP server: `python -m ...llamacpp_child`.

It writes one JSON line to stdout, `{"ready": URL}` or `{"error": KIND, "detail": TEXT}`, and then
serves until a signal ends it. Everything llama.cpp prints goes to stderr. Only this module may
import `xllamacpp` (the wheel that holds llama.cpp's server), so that a crash, or a library the
machine lacks, stays in here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

IMPORTING = "importing llama.cpp"
LOADING = "loading the model"
NUMBERS = ("context", "parallel", "threads", "gpu-layers", "verbosity")


def end_on_sigterm() -> None:
    """Let SIGTERM end this process by the kernel's hand, whatever the parent had set.

    xllamacpp keeps the GIL while a model loads (minutes for a large one): a handler in Python, or
    a blocked signal inherited from the parent, would have to wait for that.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


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
    for text in ("model", "alias", "socket"):
        parser.add_argument(f"--{text}", required=True)
    for number in NUMBERS:
        parser.add_argument(f"--{number}", type=int, required=True)
    parser.add_argument("--chat-template")
    parser.add_argument("--chat-template-file", type=Path)
    parser.add_argument("--mmproj")
    return parser.parse_args(argv)


def parameters(xllamacpp: ModuleType, options: argparse.Namespace) -> Any:
    """Return xllamacpp's CommonParams for these options.

    Raises OSError and UnicodeDecodeError where the chat template's file cannot be read.
    """
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.socket]  # a name that ends in .sock is a unix socket's
    params.n_ctx = options.context
    params.n_parallel = options.parallel
    params.n_gpu_layers = options.gpu_layers
    params.verbosity = options.verbosity
    params.model_alias = {options.alias}
    if options.threads:
        params.cpuparams.n_threads = options.threads
    if options.context:
        params.fit_params = False  # the context was chosen: do not shrink it to the free memory
    if options.chat_template_file is not None:
        params.chat_template = options.chat_template_file.read_text(encoding="utf-8")
    elif options.chat_template is not None:
        params.chat_template = options.chat_template
    if options.mmproj is not None:
        params.mmproj.path = options.mmproj
    params.endpoint_metrics = True
    params.ui = False
    params.cors_origins = ""  # no web page has a reason to ask it
    return params


def note(text: str) -> None:
    """Say on stderr what comes next: llama.cpp itself prints nothing of it below verbosity 3."""
    os.write(2, text.encode() + b"\n")


def serve_until_killed() -> None:
    """Sleep for good, while llama.cpp's own threads serve."""
    while True:
        signal.pause()


def serve(status: int, options: argparse.Namespace) -> int:
    """Load the model, say how it went, serve until a signal; return the exit code."""
    note(IMPORTING)
    try:
        import xllamacpp  # here, so that what the machine lacks becomes a status line
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "xllamacpp"
        say(status, error="missing" if missing else "library", detail=str(error))
        return 1
    try:
        params = parameters(xllamacpp, options)
    except (OSError, UnicodeDecodeError) as error:
        say(status, error="template", detail=str(error))
        return 1
    except (AttributeError, TypeError) as error:  # a setting this version does not know
        say(status, error="version", detail=f"{type(error).__name__}: {error}")
        return 1
    note(LOADING)
    try:
        server = xllamacpp.Server(params)
    except (RuntimeError, ValueError, MemoryError) as error:  # the last is C++'s bad_alloc
        say(status, error="load", detail=str(error) or "out of memory")
        return 1
    say(status, ready=str(server.listening_address))
    serve_until_killed()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the child; return its exit code."""
    end_on_sigterm()
    status = take_stdout()
    return serve(status, parse(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    raise SystemExit(main())
