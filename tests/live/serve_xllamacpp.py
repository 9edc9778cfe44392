"""Serves a model with the xllamacpp of this interpreter.

    serve_xllamacpp.py MODEL [TEMPLATE [NAME=NUMBER...]]

TEMPLATE is the text of a chat template in place of the model's own, if it is not empty; NAME is a
parameter of llama.cpp's, as n_ctx. It stands alone, since it runs in the virtual environment of an
older llama.cpp (`make .venv-llamacpp-old/.installed`). It writes one JSON line, {"url",
"version"}, and serves until its stdin closes.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from typing import Any

# xllamacpp 0.2.x calls them otherwise, or does not have them.
SETTINGS: tuple[tuple[str, Any], ...] = (
    ("hostnames", ["127.0.0.1"]),
    ("hostname", "127.0.0.1"),
    ("port", 0),
    ("n_ctx", 2048),
    ("n_parallel", 2),
    ("warmup", False),
    ("fit_params", False),
    ("ui", False),
    ("webui", False),
    ("verbosity", -1),
)


def parameters(model: str, template: str = "", *numbers: str) -> Any:
    """Return CommonParams for the model, in the names that this version has."""
    import xllamacpp

    params: Any = xllamacpp.CommonParams()
    params.model.path = model
    if template:
        params.chat_template = template
        params.use_jinja = True
    for name, value in SETTINGS:
        if hasattr(params, name):
            setattr(params, name, value)
    for given in numbers:
        name, _, number = given.partition("=")
        setattr(params, name, int(number))
    params.cpuparams.n_threads = 1  # several would wait for each other, spinning, at each token
    params.model_alias = "tiny" if isinstance(params.model_alias, str) else {"tiny"}
    return params


def main(*arguments: str) -> None:
    """Serve until stdin closes; what llama.cpp itself prints goes to stderr."""
    import xllamacpp

    status = os.dup(1)
    os.dup2(2, 1)
    server: Any = xllamacpp.Server(parameters(*arguments))
    url = str(server.listening_address).rstrip("/")
    line = {"url": url, "version": importlib.metadata.version("xllamacpp")}
    os.write(status, json.dumps(line).encode() + b"\n")
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
