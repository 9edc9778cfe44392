"""The backends by name: what `--adapter` and a route's `adapter` may say."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from wellspoken.adapters.backend import HELPFUL, SPECIAL, Backend
from wellspoken.adapters.cortex import CORTEX
from wellspoken.adapters.furiosa import FURIOSA
from wellspoken.adapters.llama_cpp_python import LLAMA_CPP_PYTHON
from wellspoken.adapters.llamacpp import LLAMACPP
from wellspoken.adapters.llamacpp_native import LLAMACPP_NATIVE
from wellspoken.adapters.vllm import VLLM

OPENAI: Final = Backend(
    name="openai",
    title="a server that speaks OpenAI's API",
    deviations="none is assumed; every repair looks at the answer's shape",
    knows=HELPFUL | SPECIAL | {"suffix"},
    versions="any",
    several=True,
    scores="backend",
)
"""OpenAI's own requests, and the general repairs alone."""

BACKENDS: Final = {
    backend.name: backend
    for backend in (
        OPENAI,
        VLLM,
        FURIOSA,
        LLAMACPP,
        LLAMACPP_NATIVE,
        LLAMA_CPP_PYTHON,
        CORTEX,
    )
}

_BY_NAME: Final = {
    "auto": OPENAI,  # until the server is asked what it is
    **{alias: backend for backend in BACKENDS.values() for alias in backend.aliases},
    **BACKENDS,
}


def find(name: str) -> Backend:
    """Return the backend of this name or alias; raise ValueError that lists the names."""
    found = _BY_NAME.get(name.strip().lower())
    if found is not None:
        return found
    near = get_close_matches(name.strip().lower(), _BY_NAME, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown adapter {name!r}.{hint} Known: {', '.join(('auto', *BACKENDS))}")
