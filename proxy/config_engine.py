"""What the types of [engine] cannot say: keys of one kind alone, flags that are the proxy's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from wellspoken.engine.vllm_arguments import forbidden, served
from wellspoken.proxy.config_tables import Engine
from wellspoken.proxy.config_values import ConfigError
from wellspoken.proxy.durations import seconds

DURATIONS: Final = (
    "start_timeout",
    "grace",
    "wait",
    "idle_unload",
    "health_interval",
    "health_timeout",
    "stall_timeout",
)
"""Keys that hold seconds, and may be written as "15m"."""

# Keys that one kind alone has, and what to write for the other one.
LLAMACPP: Final = {
    "context": 'write arguments = ["--max-model-len", "8192"]',
    "parallel": 'write arguments = ["--max-num-seqs", "16"]',
    "threads": 'write environment = { OMP_NUM_THREADS = "8" }',
    "gpu_layers": 'write arguments = ["--cpu-offload-gb", "10"] where a model does not fit a GPU',
    "chat_template": 'write arguments = ["--chat-template", "template.jinja"]',
    "mmproj": "take it out, since vLLM finds that in the model itself",
}
VLLM: Final = {
    "arguments": f"its settings are keys of their own: {', '.join(LLAMACPP)}",
    "executable": "take it out, since llama.cpp's server comes from the wheel xllamacpp",
}

MODELS: Final = {"llamacpp": "a .gguf file", "vllm": "ORG/NAME, or a folder"}
"""What each kind takes for a model."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def checked_table(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the table [engine] as it was given, with its lengths of time as seconds.

    Raises ConfigError without kind or model, and for a key that the other kind of engine has,
    whatever its value.
    """
    kind = raw.get("kind")
    if kind not in ("llamacpp", "vllm"):
        said = "it is missing" if kind is None else f"{kind!r} is none that there is"
        raise ConfigError(
            f'engine.kind: {said}. Write kind = "llamacpp" or "vllm" (or --engine, or '
            "WELLSPOKEN_ENGINE_KIND)."
        )
    if "model" not in raw:
        raise ConfigError(
            f"engine.model: it is missing. Name {MODELS[kind]} (or --model, or "
            "WELLSPOKEN_ENGINE_MODEL)."
        )
    alien, other = (VLLM, "vllm") if kind == "llamacpp" else (LLAMACPP, "llamacpp")
    for key in raw:
        if key in alien:
            name = "llama.cpp" if kind == "llamacpp" else "vLLM"
            raise ConfigError(
                f'engine.{key}: only kind = "{other}" has this. For {name} {alien[key]}.'
            )
    return {key: timed(key, value) for key, value in raw.items()}


def timed(key: str, value: Any) -> Any:
    """Return seconds for what a text says of a length of time. Raises ConfigError."""
    if key not in DURATIONS or not isinstance(value, str):
        return value
    try:
        return seconds(value)
    except ValueError as error:
        raise ConfigError(f"engine.{key}: {error}") from None


def check_engine(engine: Engine) -> None:
    """Check flags, names of variables and references. Raises ConfigError."""
    if not engine.model.strip():
        raise ConfigError(f"engine.model: it is empty. Name {MODELS[engine.kind]}.")
    for key, file in (("chat_template", engine.chat_template), ("mmproj", engine.mmproj)):
        if file is not None and not file.strip():
            raise ConfigError(f"engine.{key}: it is empty. Name a file, or leave it out.")
    check_arguments(engine.arguments, engine.alias)
    for name in engine.inherit:
        if not _VARIABLE.fullmatch(name.removesuffix("*")):
            raise ConfigError(
                f"engine.inherit: {name!r} is no variable's name. Write NAME or PREFIX_*."
            )
        _refuse_key("inherit", name)
    for name, value in engine.environment.items():
        if not _VARIABLE.fullmatch(name):
            raise ConfigError(f"engine.environment: {name!r} is no variable's name. Correct it.")
        _refuse_key("environment", name)
        if "\0" in value:
            raise ConfigError(f"engine.environment.{name}: it holds a NUL. Take that out.")


def _refuse_key(key: str, name: str) -> None:
    """Refuse a variable with which vLLM would want a key of the proxy. Raises ConfigError."""
    if name == "VLLM_API_KEY":
        raise ConfigError(
            f"engine.{key}: with {name} vLLM would refuse the proxy. Take it out; clients' keys "
            "are named in [auth]."
        )


def check_arguments(arguments: Sequence[str], alias: str | None = None) -> None:
    """Refuse what collides with the flags that the proxy gives vLLM. Raises ConfigError."""
    if arguments and not arguments[0].startswith("-"):
        raise ConfigError(
            f"engine.arguments: {arguments[0]!r} is no flag. The model is --model's (model in "
            "[engine]); what comes here are flags of vllm serve."
        )
    if any("\0" in argument for argument in arguments):
        raise ConfigError("engine.arguments: one holds a NUL. Take that out.")
    for argument in arguments:
        flag, *value = argument.partition("=")[0].split(None, 1)[:2] or [""]
        if flag.startswith("--") and value:
            raise ConfigError(
                f'engine.arguments: {argument!r} is one text. Write "{flag}", "{value[0]}".'
            )
    if problem := forbidden(arguments):
        raise ConfigError(f"engine.arguments: {problem} Take it out.")
    if alias is not None and served(arguments):
        raise ConfigError(
            "engine.arguments: --served-model-name and alias (--alias) exclude each other. Keep "
            "one."
        )


def served_names(engine: Engine) -> tuple[str, ...]:
    """Return what clients call the model, as far as that is known before the engine is asked."""
    if engine.alias is not None:
        return (engine.alias,)
    if engine.kind == "llamacpp":
        return (Path(engine.model).stem,)
    return served(engine.arguments) or (engine.model,)
