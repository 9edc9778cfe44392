"""What a backend is, told from its answers to a few cheap GETs: a table of small rules.

A rule looks at what only one server says of itself. Servers that have no file of their own here are
named all the same, and are spoken with as `general`. No rule picks a backend's native endpoint.

Sources, by server:

- Furiosa-LLM: the wheel furiosa-llm 2026.4.0, server/app.py and server/protocol.py.
- llama.cpp: captures of b11549; tools/server/README.md on GET /props, and on the 503s of a server
  that is still loading its model.
- vLLM: captures of 0.32.0 and the installed package, entrypoints/serve/instrumentator/basic.py; a
  server with --api-key guards /v1 alone, so GET /version still answers.
- llama-cpp-python: captures of 0.3.36; GET /v1/models in llama_cpp/server/app.py.
- SGLang: ModelCard in python/sglang/srt/entrypoints/openai/protocol.py. Its /health generates a
  token, so it is not asked.
- LM Studio: answers of GET /v1/models that its users published.
- TGI: Info in router/src/lib.rs, of 1.4 and of 2 and later (which adds `router`).
- Ollama: the routes in server/routes.go.
- cortex.cpp: engine/controllers/health.cc.
- mlx-lm: do_GET and handle_models_request in mlx_lm/server.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import DecodeError, Struct, json

from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.known.cortex import CORTEX
from wellspoken.adapters.servers.known.furiosa import FURIOSA
from wellspoken.adapters.servers.known.llama_cpp_python import LLAMA_CPP_PYTHON
from wellspoken.adapters.servers.known.llamacpp import LLAMACPP
from wellspoken.adapters.servers.known.lmstudio import LMSTUDIO
from wellspoken.adapters.servers.known.mlx_lm import MLX_LM
from wellspoken.adapters.servers.known.ollama import OLLAMA
from wellspoken.adapters.servers.known.sglang import SGLANG
from wellspoken.adapters.servers.known.tgi import TGI
from wellspoken.adapters.servers.known.vllm import VLLM
from wellspoken.adapters.servers.registry import GENERAL
from wellspoken.adapters.servers.versions import for_version

MODELS: Final = GENERAL.models_path
VERSION: Final = "/version"
PROPS: Final = "/props"
ROOT: Final = "/"
OLLAMA_VERSION: Final = "/api/version"
INFO: Final = "/info"
HEALTHZ: Final = "/healthz"

ROUNDS: Final = ((MODELS, VERSION, PROPS), (ROOT, OLLAMA_VERSION, INFO, HEALTHZ))
"""The paths to GET, those of a round together; the next round only if the last told nothing."""

_VERSION_TEXT = re.compile(r"[0-9A-Za-z][\w.+-]{0,39}", re.ASCII)  # it goes into logs and a banner
_BUILD = re.compile(r"(b[1-9]\d{0,9})(?:-|$)", re.ASCII)  # b0-unknown: built without git
_CORTEX_ALIVE = re.compile(r"cortex[\w.-]{0,20} is alive", re.ASCII)


class Observation(Struct, frozen=True):
    """What one GET was answered: the status, the body, and the `Server` header or ""."""

    status: int
    body: bytes = b""
    server: str = ""


class Signs(Struct, frozen=True):
    """The answers by path; a path that was not asked or did not answer is not among them."""

    answers: Mapping[str, Observation]

    @property
    def up(self) -> bool:
        """Whether one answer at least is that of a server at work, not of one that starts."""
        return any(answer.status < 500 for answer in self.answers.values())

    def status(self, path: str) -> int:
        """Return the status of GET `path`, 0 where there is none."""
        answer = self.answers.get(path)
        return answer.status if answer is not None else 0

    def text(self, path: str) -> str:
        """Return the body of a 200 as text, "" where there is none."""
        answer = self.answers.get(path)
        if answer is None or answer.status != 200:
            return ""
        return answer.body.decode("utf-8", "replace")

    def json(self, path: str) -> dict[str, Any]:
        """Return the JSON object of a 200, {} where there is none."""
        try:
            decoded = json.decode(self.text(path))
        except (DecodeError, RecursionError):
            return {}
        return decoded if isinstance(decoded, dict) else {}

    def servers(self) -> list[str]:
        """Return the `Server` header of every answer."""
        return [answer.server for answer in self.answers.values()]

    def models(self) -> list[dict[str, Any]]:
        """Return the entries of GET /v1/models, [] where one of them is no object."""
        items = self.json(MODELS).get("data")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            return []
        return items

    def owner(self) -> str:
        """Return whom all models belong to, "" where they differ: then a gateway lists them."""
        owners = {str(item.get("owned_by") or "") for item in self.models()}
        return owners.pop() if len(owners) == 1 else ""


class Found(Struct, frozen=True):
    """What a backend was taken for: how to speak with it, why, and its version or "".

    `server` is the server's name, "" where nothing was recognised.
    """

    backend: Backend
    why: str
    version: str = ""
    server: str = ""

    @property
    def described(self) -> str:
        """One line for people: `llama.cpp b11549, from its Server header`."""
        name = f"{self.server} {self.version}".strip()
        return f"{name}, {self.why}" if name else self.why


NOTHING: Final = Found(GENERAL, "nothing recognised; general repairs")

Look = Callable[[Signs], str]


def recognise(signs: Signs) -> Found:
    """Return what the first rule that holds says; `NOTHING` where none does."""
    for rule in RULES:
        why = rule.look(signs)
        if why:
            general = "; general repairs" if rule.server else ""
            server = rule.server or rule.backend.title
            version = rule.version(signs)
            backend = for_version(rule.backend, version)
            return Found(backend, why + general, version, server)
    return NOTHING


def _plain(value: object) -> str:
    """Return a version that is fit to be shown, else ""."""
    return value if isinstance(value, str) and _VERSION_TEXT.fullmatch(value) else ""


def _version_at(path: str) -> Look:
    return lambda signs: _plain(signs.json(path).get("version"))


def _no_version(signs: Signs) -> str:
    return ""


def _build(signs: Signs) -> str:
    """llama.cpp's build number, of `b11549-1234abcd`."""
    found = _BUILD.match(str(signs.json(PROPS).get("build_info")))
    return found[1] if found else ""


def _furiosa_version(signs: Signs) -> str:
    """Its GET /version is vLLM's with three parts more, each an object of its own."""
    return "from GET /version" if isinstance(signs.json(VERSION).get("furiosa-llm"), dict) else ""


def _furiosa_owner(signs: Signs) -> str:
    return "from its models' owner" if signs.owner() == "furiosa-ai" else ""


def _llamacpp_header(signs: Signs) -> str:
    """It also stands on a 503 of a server that still loads, where nothing else tells."""
    return "from its Server header" if "llama.cpp" in signs.servers() else ""


def _llamacpp_props(signs: Signs) -> str:
    """Behind a proxy, which puts its own name into the header."""
    props = signs.json(PROPS)
    settings = isinstance(props.get("default_generation_settings"), dict)
    return "from GET /props" if settings and "total_slots" in props else ""


def _owner_is(owner: str) -> Look:
    return lambda signs: "from its models' owner" if signs.owner() == owner else ""


def _llama_cpp_python(signs: Signs) -> str:
    """The owner is "me", which others copied; `permissions` is its own misspelling."""
    mine = signs.owner() == "me" and all("permissions" in item for item in signs.models())
    return "from its models' owner" if mine else ""


def _tgi(signs: Signs) -> str:
    info = signs.json(INFO)
    named = str(info.get("router", "")).startswith("text-generation-router")
    old = {"model_id", "max_best_of", "max_total_tokens", "waiting_served_ratio"} <= info.keys()
    return "from GET /info" if named or old else ""


def _ollama(signs: Signs) -> str:
    return "from GET /" if signs.text(ROOT).startswith("Ollama is running") else ""


def _cortex(signs: Signs) -> str:
    return "from GET /healthz" if _CORTEX_ALIVE.match(signs.text(HEALTHZ)) else ""


def _vllm_guarded(signs: Signs) -> str:
    """Its models want a key that is not ours to know, while GET /version answers anybody."""
    guarded = signs.status(MODELS) in (401, 403) and "uvicorn" in signs.servers()
    version = signs.json(VERSION)
    alone = list(version) == ["version"] and isinstance(version["version"], str)
    return "from GET /version, its models being guarded" if guarded and alone else ""


def _mlx_lm(signs: Signs) -> str:
    """Python's own HTTP server, and models with these three keys alone."""
    python = any(server.startswith("BaseHTTP/") for server in signs.servers())
    models = signs.models()
    bare = all(item.keys() == {"id", "object", "created"} for item in models)
    return "from its Server header and its models" if python and models and bare else ""


class Rule(Struct, frozen=True):
    """`look` says why a server is this one, or "". `server` names one that has no file here."""

    look: Look
    backend: Backend
    server: str = ""
    version: Look = _no_version


_VERSION = _version_at(VERSION)

RULES: Final = (
    Rule(_furiosa_version, FURIOSA, version=_VERSION),
    Rule(_llamacpp_header, LLAMACPP, version=_build),
    Rule(_llamacpp_props, LLAMACPP, version=_build),
    Rule(_furiosa_owner, FURIOSA, version=_VERSION),
    Rule(_owner_is("vllm"), VLLM, version=_VERSION),
    Rule(_owner_is("llamacpp"), LLAMACPP, version=_build),
    Rule(_owner_is("sglang"), SGLANG),
    Rule(_owner_is("organization_owner"), LMSTUDIO),
    Rule(_llama_cpp_python, LLAMA_CPP_PYTHON),
    Rule(_ollama, OLLAMA, version=_version_at(OLLAMA_VERSION)),
    Rule(_tgi, TGI, version=_version_at(INFO)),
    Rule(_cortex, CORTEX),
    Rule(_vllm_guarded, VLLM, version=_VERSION),
    Rule(_mlx_lm, MLX_LM),
)
"""The most certain first: what a server says of itself alone, then what needs two signs."""
