"""Stands in for the executable `llama-server`: xllamacpp's server, which is the same code.

    llama_server.py MODEL direct|proxied [llama-server's flags]

It serves MODEL whichever one the flags name, at the port that they name; `proxied` serves that at
a port of its own, and at the named one the proxy in front of it. What the flags ask for beyond
FLAGS, or a file that is not here, ends it with an error, as a server that cannot start does.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import xllamacpp

Apply = Callable[[Any, Any], None]
"""Sets what a flag says in CommonParams."""


def put(name: str, value: Any = None) -> Apply:
    """Return what sets an attribute, of a part as `sampling.temp`, to `value` or the flag's own."""
    *parts, last = name.split(".")

    def apply(params: Any, said: Any) -> None:
        for part in parts:
            params = getattr(params, part)
        setattr(params, last, said if value is None else value)

    return apply


def put_member(name: str, kind: Any, prefix: str) -> Apply:
    """Return what sets an attribute to the member of an enumeration that the flag names."""
    return lambda params, said: setattr(params, name, getattr(kind, prefix + said.upper()))


def put_template(params: Any, path: str) -> None:
    params.chat_template = Path(path).read_text()


def put_flash(params: Any, said: str) -> None:
    word = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[said]
    params.flash_attn_type = getattr(
        xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{word}"
    )


def put_format(params: Any, said: str) -> None:
    word = {"none": "NONE", "auto": "AUTO", "deepseek": "DEEPSEEK"}[said]
    params.reasoning_format = getattr(
        xllamacpp.common_reasoning_format, f"COMMON_REASONING_FORMAT_{word}"
    )


def put_reasoning(params: Any, said: str) -> None:
    params.enable_reasoning = {"on": 1, "off": 0, "auto": -1}[said]


def put_embedding(params: Any, _: None) -> None:
    params.embedding = True
    params.n_ubatch = params.n_batch  # as llama-server sees to


FLAGS: Final[dict[str, tuple[type | None, Apply]]] = {
    "--temp": (float, put("sampling.temp")),
    "--seed": (int, put("sampling.seed")),
    "--batch-size": (int, put("n_batch")),
    "--ubatch-size": (int, put("n_ubatch")),
    "--threads": (int, put("cpuparams.n_threads")),
    "--cont-batching": (None, put("cont_batching", True)),
    "--embedding": (None, put_embedding),
    "--metrics": (None, put("endpoint_metrics", True)),
    "--kv-unified": (None, put("kv_unified", True)),
    "--swa-full": (None, put("swa_full", True)),
    "--slots": (None, put("endpoint_slots", True)),
    "--no-slots": (None, put("endpoint_slots", False)),
    "--pooling": (
        str,
        put_member("pooling_type", xllamacpp.llama_pooling_type, "LLAMA_POOLING_TYPE_"),
    ),
    "--alias": (str, lambda params, said: setattr(params, "model_alias", set(said.split(",")))),
    "--tags": (str, lambda params, said: setattr(params, "model_tags", set(said.split(",")))),
    "--ctx-size": (int, put("n_ctx")),
    "--parallel": (int, put("n_parallel")),
    "-ctk": (str, put_member("cache_type_k", xllamacpp.ggml_type, "GGML_TYPE_")),
    "-ctv": (str, put_member("cache_type_v", xllamacpp.ggml_type, "GGML_TYPE_")),
    "-fa": (str, put_flash),
    "--n-predict": (int, put("n_predict")),
    "--slot-save-path": (str, put("slot_save_path")),
    "--context-shift": (None, put("ctx_shift", True)),
    "--api-key": (str, lambda params, said: setattr(params, "api_keys", [said])),
    "--no-ui": (None, put("ui", False)),
    "--jinja": (None, put("use_jinja", True)),
    "--no-jinja": (None, put("use_jinja", False)),
    "--reasoning-format": (str, put_format),
    "--reasoning": (str, put_reasoning),
    "--chat-template": (str, put("chat_template")),
    "--chat-template-file": (str, put_template),
    "--cache-ram": (int, put("cache_ram_mib")),
    "--no-cache-idle-slots": (None, put("cache_idle_slots", False)),
    "--sleep-idle-seconds": (int, put("sleep_idle_seconds")),
    "--cors-origins": (str, put("cors_origins")),
    "--media-path": (str, put("media_path")),
    "--verbose": (None, put("verbosity", 9)),
}
"""llama-server's flags that the tests use -> their type, None for a switch, and what they do."""

MODELS: Final = ("--hf-repo", "--hf-file", "--model-url", "--model")
"""Which model is asked for does not matter: there is one."""


def read_flags(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--offline", action="store_true")
    for name in MODELS:
        parser.add_argument(name)
    for name, (kind, _) in FLAGS.items():
        if kind is None:
            parser.add_argument(name, dest=name, action="store_true")
        else:
            parser.add_argument(name, dest=name, type=kind)
    return parser.parse_args(words)


def parameters(model: str, said: argparse.Namespace, port: int) -> Any:
    """Return the CommonParams that the flags ask for."""
    params: Any = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = [said.host]
    params.port = port
    params.warmup = False
    params.fit_params = False
    params.cpuparams.n_threads = 1
    for name, (kind, apply) in FLAGS.items():
        value = getattr(said, name)
        if value is not None and value is not False:
            apply(params, value if kind is not None else None)
    return params


async def serve_proxy(url: str, said: argparse.Namespace) -> None:
    """Serve the proxy in front of `url`, which lets pass what it can, until SIGTERM."""
    # Ten times what the rest costs to import, and half of the starts do without.
    from wellspoken.adapters.servers.known.llamacpp import LLAMACPP
    from wellspoken.proxy.config import load
    from wellspoken.proxy.lifecycle.build import build

    backend = {
        "url": url,
        "adapter": "llamacpp",
        "bounds": "backend",
        "extensions": "all",
        "auth": "pass",
        "ui": True,
        "endpoints": [
            *LLAMACPP.passes,
            "/apply-template",
            "/infill",
            "/chat/completions/input_tokens",
        ],
    }
    server = {"listen": f"{said.host}:{said.port}", "drain_timeout": 1}
    service = build(load(None, {"server": server, "backend": [backend]}, {}))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await service.start()
    await ended.wait()
    await service.stop()


def main(model: str, way: str, *words: str) -> None:
    said = read_flags(words)
    proxied = way == "proxied"
    server = xllamacpp.Server(parameters(model, said, 0 if proxied else said.port))
    if proxied:
        asyncio.run(serve_proxy(str(server.listening_address).rstrip("/"), said))
    else:
        signal.sigwait({signal.SIGTERM})
    del server


if __name__ == "__main__":
    main(*sys.argv[1:])
