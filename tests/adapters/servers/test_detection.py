"""What a server is taken for: every rule with an answer it holds for, and near misses it refuses.

The answers of tests/fixtures/detection are captured; those written here are made after the sources
that `adapters/servers/detection.py` names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wellspoken.adapters.servers import detection
from wellspoken.adapters.servers.detection import (
    NOTHING,
    ROUNDS,
    RULES,
    Observation,
    Signs,
    recognise,
)
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
from wellspoken.adapters.servers.registry import BACKENDS, GENERAL
from wellspoken.adapters.servers.versions import for_version

CAPTURED = Path(__file__).parents[2] / "fixtures" / "detection"


def captured(name: str) -> dict[str, Observation]:
    """Return the answers of a captured server by path."""
    found = json.loads((CAPTURED / f"{name}.json").read_text())
    assert found["provenance"]
    return {
        path: Observation(one["status"], one["body"].encode(), one["server"])
        for path, one in found["answers"].items()
    }


def said(body: Any, status: int = 200, server: str = "") -> Observation:
    """Return an answer with a JSON body, or a text as it is."""
    data = body if isinstance(body, str) else json.dumps(body)
    return Observation(status, data.encode(), server)


def models(*owners: str | None) -> Observation:
    """Return a list of one model for each owner; None: without `owned_by`."""
    data = [
        {
            "id": f"m{at}",
            "object": "model",
            **({} if owner is None else {"owned_by": owner}),
        }
        for at, owner in enumerate(owners)
    ]
    return said({"object": "list", "data": data})


MISSING = said({"detail": "Not Found"}, 404, "uvicorn")

# furiosa-llm 2026.4.0, server/app.py: vLLM's key, and an object for each of its parts
FURIOSA_VERSION = {
    "version": "2026.4.0",
    "furiosa-llm": {"stage": "release", "version": "2026.4.0", "git_hash": "1234567"},
    "furiosa-runtime": {"version": "2026.4.0", "git_hash": "1234567", "build_time": "2026-10-01"},
    "npu-ir": {"version": "2026.4.0", "git_hash": "1234567", "build_time": "2026-10-01"},
}
# llama.cpp's GET /props as tools/server/README.md has it, without the settings themselves
PROPS = {"default_generation_settings": {"n_ctx": 1024}, "total_slots": 1, "build_info": "b4240-1a"}
# TGI's Info in router/src/lib.rs, of 1.4; `router` came with 2
TGI_INFO = {
    "model_id": "m",
    "max_best_of": 2,
    "max_total_tokens": 2048,
    "waiting_served_ratio": 1.2,
    "version": "1.4.0",
    "docker_label": None,
}

RECOGNISED: list[tuple[str, dict[str, Observation], Any, str, str, str]] = [
    ("captured llama.cpp", captured("llamacpp"), LLAMACPP, "llama.cpp", "", "Server header"),
    ("captured vLLM", captured("vllm"), VLLM, "vLLM", "0.32.0", "owner"),
    (
        "captured llama-cpp-python",
        captured("llama-cpp-python"),
        LLAMA_CPP_PYTHON,
        "llama-cpp-python",
        "",
        "owner",
    ),
    (
        "furiosa by version, not vLLM",
        {"/v1/models": models("furiosa-ai"), "/version": said(FURIOSA_VERSION)},
        FURIOSA,
        "Furiosa-LLM",
        "2026.4.0",
        "GET /version",
    ),
    (
        "furiosa by owner",
        {"/v1/models": models("furiosa-ai"), "/version": MISSING},
        FURIOSA,
        "Furiosa-LLM",
        "",
        "owner",
    ),
    (
        "llama.cpp while it loads",
        {"/v1/models": said({"error": {"message": "Loading model"}}, 503, "llama.cpp")},
        LLAMACPP,
        "llama.cpp",
        "",
        "Server header",
    ),
    (
        "llama.cpp with a build",
        {"/props": said(PROPS, server="llama.cpp")},
        LLAMACPP,
        "llama.cpp",
        "b4240",
        "Server header",
    ),
    (
        "llama.cpp behind nginx",
        {"/props": said(PROPS, server="nginx")},
        LLAMACPP,
        "llama.cpp",
        "b4240",
        "GET /props",
    ),
    (
        "llama.cpp of 2024 behind nginx, which told no build",
        {
            "/props": said(
                {"default_generation_settings": {"n_ctx": 1024, "seed": 1}, "total_slots": 1}
            )
        },
        LLAMACPP,
        "llama.cpp",
        "",
        "GET /props",
    ),
    (
        "llama.cpp behind nginx, without /props",
        {"/v1/models": models("llamacpp")},
        LLAMACPP,
        "llama.cpp",
        "",
        "owner",
    ),
    (
        "vLLM that wants a key",
        {
            "/v1/models": said({"error": "Unauthorized"}, 401, "uvicorn"),
            "/version": said({"version": "0.11.0"}, server="uvicorn"),
        },
        VLLM,
        "vLLM",
        "0.11.0",
        "guarded",
    ),
    ("SGLang", {"/v1/models": models("sglang")}, SGLANG, "SGLang", "", "owner"),
    (
        "LM Studio",
        {"/v1/models": models("organization_owner", "organization_owner")},
        LMSTUDIO,
        "LM Studio",
        "",
        "owner",
    ),
    (
        "Ollama",
        {"/": said("Ollama is running"), "/api/version": said({"version": "0.12.3"})},
        OLLAMA,
        "Ollama",
        "0.12.3",
        "GET /",
    ),
    ("TGI 1.4", {"/info": said(TGI_INFO)}, TGI, "TGI", "1.4.0", "GET /info"),
    (
        "TGI 3",
        {"/info": said({"router": "text-generation-router", "version": "3.3.5"})},
        TGI,
        "TGI",
        "3.3.5",
        "GET /info",
    ),
    (
        "cortex",
        {"/healthz": said("cortex-cpp is alive!!!", server="drogon/1.9.8")},
        CORTEX,
        "cortex.llamacpp",
        "",
        "GET /healthz",
    ),
    (
        "mlx-lm",
        {
            "/v1/models": Observation(
                200,
                b'{"object":"list","data":[{"id":"m","object":"model","created":1795171312}]}',
                "BaseHTTP/0.6 Python/3.12.4",
            )
        },
        MLX_LM,
        "mlx-lm",
        "",
        "Server header",
    ),
]

NEAR_MISSES = {
    "nothing answered": {},
    "an empty list": {"/v1/models": models()},
    "a gateway in front of several servers": {"/v1/models": models("vllm", "sglang")},
    "a model without an owner beside one of vLLM's": {"/v1/models": models("vllm", None)},
    "an owner who only begins like a server": {"/v1/models": models("vllm-team")},
    "an owner who only begins like Furiosa": {"/v1/models": models("furiosa-ai-labs")},
    "an owner that is no text": {"/v1/models": said({"data": [{"id": "m", "owned_by": ["vllm"]}]})},
    "models that are no list": {"/v1/models": said({"data": {"owned_by": "vllm"}})},
    "a model that is no object": {"/v1/models": said({"data": ["vllm"]})},
    "an error that names vLLM": {
        "/v1/models": said({"data": [{"id": "m", "owned_by": "vllm"}]}, 500)
    },
    "owned by me, without llama-cpp-python's permissions": {"/v1/models": models("me")},
    "a version alone": {"/version": said({"version": "1.2.3"}, server="uvicorn")},
    "a version beside readable models": {
        "/v1/models": models("somebody"),
        "/version": said({"version": "1.2.3"}, server="uvicorn"),
    },
    "guarded models of a server that is not uvicorn": {
        "/v1/models": said({}, 401, "nginx"),
        "/version": said({"version": "1.2.3"}, server="nginx"),
    },
    "guarded models and a version that says more": {
        "/v1/models": said({}, 401, "uvicorn"),
        "/version": said({"version": "1.2.3", "commit": "abc"}, server="uvicorn"),
    },
    "Furiosa's key as a text": {"/version": said({"version": "1", "furiosa-llm": "1"})},
    "Furiosa's version in an error": {"/version": said(FURIOSA_VERSION, 404)},
    "a Server header that only holds llama.cpp's": {
        "/v1/models": said({}, 404, "llama.cpp-gateway")
    },
    "props without slots": {"/props": said({"default_generation_settings": {}})},
    "TabbyAPI's props, which has the length alone": {
        "/props": said(
            {
                "total_slots": 1,
                "chat_template": "{{ messages }}",
                "default_generation_settings": {"n_ctx": 16384},
            },
            server="uvicorn",
        )
    },
    "props whose settings are no object": {
        "/props": said({"default_generation_settings": None, "total_slots": 1})
    },
    "info of an embeddings server": {
        "/info": said({"router": "text-embeddings-router", "model_id": "m", "version": "1.6.0"})
    },
    "info without a bound": {
        "/info": said({k: TGI_INFO[k] for k in TGI_INFO if k != "max_best_of"})
    },
    "a page that speaks of Ollama": {"/": said("Welcome. Ollama is running here.")},
    "Ollama's version without its greeting": {"/api/version": said({"version": "0.12.3"})},
    "another health page": {"/healthz": said("ok")},
    "nitro, which came before cortex": {"/healthz": said("Nitro is alive!!!")},
    "cortex's greeting as an error": {"/healthz": said("cortex-cpp is alive!!!", 503)},
    "Python's server with another list": {
        "/v1/models": Observation(
            200, b'{"data":[{"id":"m","object":"model"}]}', "BaseHTTP/0.6 Python/3.12"
        )
    },
    "Python's server without models": {"/v1/models": said({"data": []}, server="BaseHTTP/0.6")},
    "mlx-lm's list from another server": {
        "/v1/models": Observation(200, b'{"data":[{"id":"m","object":"model","created":1}]}', "x")
    },
    "no JSON": {"/v1/models": said("<html>vllm</html>"), "/version": said("0.32.0")},
    "lists for objects": {
        "/version": said(["furiosa-llm"]),
        "/v1/models": said([{"owned_by": "vllm"}]),
    },
    "nesting without end": {"/v1/models": said("[" * 100_000)},
    "bytes that are no text": {"/v1/models": Observation(200, b'{"data":\xff\xfe')},
}


@pytest.mark.parametrize(
    ("answers", "backend", "server", "version", "why"),
    [case[1:] for case in RECOGNISED],
    ids=[case[0] for case in RECOGNISED],
)
def test_servers_are_recognised(
    answers: dict[str, Observation], backend: Any, server: str, version: str, why: str
) -> None:
    found = recognise(Signs(answers))
    assert (found.server, found.version) == (server, version)
    assert found.backend == for_version(backend, version)
    assert why in found.why
    assert found.why.endswith("; general repairs") == (backend is GENERAL)


@pytest.mark.parametrize("answers", NEAR_MISSES.values(), ids=NEAR_MISSES.keys())
def test_what_only_looks_like_a_server_is_not_taken_for_it(
    answers: dict[str, Observation],
) -> None:
    found = recognise(Signs(answers))
    assert found is NOTHING
    assert (found.backend, found.described) == (
        GENERAL,
        "nothing recognised; general repairs",
    )


def test_every_rule_holds_for_some_server_first() -> None:
    """A rule that others always forestall would be dead."""
    first = set()
    for _, answers, *_ in RECOGNISED:
        holding = [at for at, rule in enumerate(RULES) if rule.holds(Signs(answers))]
        first.add(holding[0])
    assert first == set(range(len(RULES)))


def test_each_captured_server_is_recognised_in_the_first_round() -> None:
    for name in ("llamacpp", "vllm", "llama-cpp-python"):
        answers = {path: one for path, one in captured(name).items() if path in ROUNDS[0]}
        assert recognise(Signs(answers)) is not NOTHING


def test_no_rule_picks_a_native_endpoint() -> None:
    assert not [rule for rule in RULES if rule.adapter.endswith("-native")]
    assert {BACKENDS[rule.adapter].models_path for rule in RULES} == {detection.MODELS}


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("0.6.4.post2+cu121", "0.6.4.post2+cu121"),
        ("1.0\nwellspoken: all is well", ""),
        ("1" * 41, ""),
        ("\x1b[31m1", ""),
        (3, ""),
        (None, ""),
    ],
)
def test_only_a_version_that_can_be_shown_is_kept(version: object, shown: str) -> None:
    answers = {"/v1/models": models("vllm"), "/version": said({"version": version})}
    assert recognise(Signs(answers)).version == shown


@pytest.mark.parametrize(
    ("build", "shown"),
    [("b11549-1234abcd", "b11549"), ("b11549", "b11549"), ("b0-unknown", ""), ("v1", ""), (7, "")],
)
def test_llamacpps_build_is_its_number(build: object, shown: str) -> None:
    answers = {"/props": said({**PROPS, "build_info": build}, server="llama.cpp")}
    assert recognise(Signs(answers)).version == shown


def test_the_line_for_people() -> None:
    found = recognise(
        Signs({"/props": said({**PROPS, "build_info": "b11549-1"}, 200, "llama.cpp")})
    )
    assert found.described == "llama.cpp b11549, from its Server header"
    found = recognise(Signs({"/v1/models": models("sglang")}))
    assert found.described == "SGLang, from its models' owner"


def test_an_old_server_is_sent_what_it_knows() -> None:
    """Ollama before 0.12.11 has no logprobs, and TGI before 2.3 no stream_options."""
    answers = {"/": said("Ollama is running"), "/api/version": said({"version": "0.12.3"})}
    assert recognise(Signs(answers)).backend.chat_table["logprobs"].how == "refused"
    old = recognise(Signs({"/info": said(TGI_INFO)})).backend
    assert old.chat_table["stream_options"].how == "emulated"
    assert (OLLAMA.chat_table["logprobs"].how, TGI.chat_table["logprobs"].how) == ("native",) * 2


@pytest.mark.parametrize(
    ("statuses", "up"),
    [((), False), ((503,), False), ((502, 503), False), ((503, 404), True), ((401,), True)],
)
def test_a_server_that_only_fails_is_not_up(statuses: tuple[int, ...], up: bool) -> None:
    answers = {f"/{at}": Observation(status) for at, status in enumerate(statuses)}
    assert Signs(answers).up is up
