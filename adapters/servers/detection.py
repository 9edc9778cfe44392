"""What a backend is, told from its answers to a few cheap GETs: a table of small rules.

A rule looks at what only one server says of itself. No rule picks a backend's native endpoint.

Sources, by server:

- Furiosa-LLM: the wheel furiosa-llm 2026.4.0, server/app.py and server/protocol.py.
- llama.cpp: captures of b11549; tools/server/README.md on GET /props, and on the 503s of a server
  that is still loading its model. TabbyAPI's: model_props in its endpoints/core/router.py.
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
from wellspoken.adapters.servers.registry import BACKENDS, GENERAL
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
_ALIVE = re.compile(r"cortex[\w.-]{0,20} is alive", re.ASCII)


class Observation(Struct, frozen=True):
    """What one GET was answered: the status, the body, and the `Server` header or ""."""

    status: int
    body: bytes = b""
    server: str = ""


_NO_ANSWER: Final = Observation(0)


class Signs(Struct, frozen=True):
    """The answers by path; a path that was not asked or did not answer is not among them."""

    answers: Mapping[str, Observation]

    @property
    def up(self) -> bool:
        """Whether one answer at least is that of a server at work, not of one that starts."""
        return any(answer.status < 500 for answer in self.answers.values())

    def status(self, path: str) -> int:
        """Return the status of GET `path`, 0 where there is none."""
        return self.answers.get(path, _NO_ANSWER).status

    def text(self, path: str) -> str:
        """Return the body of a 200 as text, "" where there is none."""
        answer = self.answers.get(path, _NO_ANSWER)
        return answer.body.decode("utf-8", "replace") if answer.status == 200 else ""

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


class Rule(Struct, frozen=True):
    """`holds` says whether a server is this adapter's, and `why` by what."""

    adapter: str
    why: str
    holds: Callable[[Signs], bool]
    version: Callable[[Signs], str] = lambda signs: ""


def recognise(signs: Signs) -> Found:
    """Return what the first rule that holds says; `NOTHING` where none does."""
    for rule in RULES:
        if rule.holds(signs):
            backend, version = BACKENDS[rule.adapter], rule.version(signs)
            return Found(for_version(backend, version), rule.why, version, backend.title)
    return NOTHING


def _version_at(path: str) -> Callable[[Signs], str]:
    """Return what tells the version that a path answers, "" if it is not fit to be shown."""

    def version(signs: Signs) -> str:
        value = signs.json(path).get("version")
        return value if isinstance(value, str) and _VERSION_TEXT.fullmatch(value) else ""

    return version


def _build(signs: Signs) -> str:
    """llama.cpp's build number, of `b11549-1234abcd`."""
    found = _BUILD.match(str(signs.json(PROPS).get("build_info")))
    return found[1] if found else ""


def _owned_by(owner: str) -> Callable[[Signs], bool]:
    return lambda signs: signs.owner() == owner


def _tells_furiosa_version(signs: Signs) -> bool:
    """Its GET /version is vLLM's with three parts more, each an object of its own."""
    return isinstance(signs.json(VERSION).get("furiosa-llm"), dict)


def _has_llamacpp_header(signs: Signs) -> bool:
    """It also stands on a 503 of a server that still loads, where nothing else tells."""
    return "llama.cpp" in signs.servers()


def _has_llamacpp_props(signs: Signs) -> bool:
    """Behind a proxy, which puts its own name into the header.

    TabbyAPI has the same path for llama.cpp's clients, with the context length alone.
    """
    props = signs.json(PROPS)
    settings = props.get("default_generation_settings")
    if not isinstance(settings, dict) or "total_slots" not in props:
        return False
    return "build_info" in props or not settings.keys() <= {"n_ctx"}


def _is_llama_cpp_python(signs: Signs) -> bool:
    """The owner is "me", which others copied; `permissions` is its own misspelling."""
    return signs.owner() == "me" and all("permissions" in item for item in signs.models())


def _is_tgi(signs: Signs) -> bool:
    info = signs.json(INFO)
    named = str(info.get("router", "")).startswith("text-generation-router")
    return named or (
        {"model_id", "max_best_of", "max_total_tokens", "waiting_served_ratio"} <= info.keys()
    )


def _is_guarded_vllm(signs: Signs) -> bool:
    """Its models want a key that is not ours to know, while GET /version answers anybody."""
    version = signs.json(VERSION)
    alone = list(version) == ["version"] and isinstance(version["version"], str)
    return alone and signs.status(MODELS) in (401, 403) and "uvicorn" in signs.servers()


def _is_mlx_lm(signs: Signs) -> bool:
    """Python's own HTTP server, and models with these three keys alone."""
    models = signs.models()
    bare = all(item.keys() == {"id", "object", "created"} for item in models)
    python = any(server.startswith("BaseHTTP/") for server in signs.servers())
    return python and bool(models) and bare


_OWNER: Final = "from its models' owner"
_VERSION: Final = _version_at(VERSION)

RULES: Final = (
    Rule("furiosa", "from GET /version", _tells_furiosa_version, _VERSION),
    Rule("llamacpp", "from its Server header", _has_llamacpp_header, _build),
    Rule("llamacpp", "from GET /props", _has_llamacpp_props, _build),
    Rule("furiosa", _OWNER, _owned_by("furiosa-ai"), _VERSION),
    Rule("vllm", _OWNER, _owned_by("vllm"), _VERSION),
    Rule("llamacpp", _OWNER, _owned_by("llamacpp"), _build),
    Rule("sglang", _OWNER, _owned_by("sglang")),
    Rule("lmstudio", _OWNER, _owned_by("organization_owner")),
    Rule("llama-cpp-python", _OWNER, _is_llama_cpp_python),
    Rule(
        "ollama",
        "from GET /",
        lambda signs: signs.text(ROOT).startswith("Ollama is running"),
        _version_at(OLLAMA_VERSION),
    ),
    Rule("tgi", "from GET /info", _is_tgi, _version_at(INFO)),
    Rule("cortex", "from GET /healthz", lambda signs: bool(_ALIVE.match(signs.text(HEALTHZ)))),
    Rule("vllm", "from GET /version, its models being guarded", _is_guarded_vllm, _VERSION),
    Rule("mlx-lm", "from its Server header and its models", _is_mlx_lm),
)
"""The most certain first: what a server says of itself alone, then what needs two signs."""
