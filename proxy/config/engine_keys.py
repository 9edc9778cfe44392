"""What the types of [engine] cannot say: keys of one kind alone, flags that are the proxy's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wellspoken.engine.vllm.vllm_arguments import forbidden, model_names_in
from wellspoken.proxy.config.problems import Problem
from wellspoken.proxy.config.tables import Engine

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


def engine_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Give what is wrong with the table [engine] as it was given.

    That is: no kind or model, and a key that the other kind of engine has, whatever its value.
    """
    kind = raw.get("kind")
    if not (isinstance(kind, str) and kind in MODELS):
        said = "it is missing" if kind is None else f"{kind!r} is none that there is"
        yield _problem(
            "kind",
            f'{said}. Write kind = "llamacpp" or "vllm" (or --engine, or WELLSPOKEN_ENGINE_KIND).',
        )
    else:
        if "model" not in raw:
            name = MODELS[kind]
            yield _problem(
                "model",
                f"it is missing. Name {name} (or --model, or WELLSPOKEN_ENGINE_MODEL).",
            )
        alien, other = (VLLM, "vllm") if kind == "llamacpp" else (LLAMACPP, "llamacpp")
        name = "llama.cpp" if kind == "llamacpp" else "vLLM"
        for key in raw:
            if key in alien:
                text = f'only kind = "{other}" has this. For {name} {alien[key]}.'
                yield _problem(key, text, at_key=True)


def _problem(key: str, text: str, *, at_key: bool = False) -> Problem:
    return Problem(("engine", *key.split(".")), f"engine.{key}: {text}", at_key)


def engine_rules(engine: Engine) -> Iterator[Problem]:
    """Give what is wrong with flags, names of variables and references."""
    if not engine.model.strip():
        yield _problem("model", f"it is empty. Name {MODELS[engine.kind]}.")
    for key, file in (("chat_template", engine.chat_template), ("mmproj", engine.mmproj)):
        if file is not None and not file.strip():
            yield _problem(key, "it is empty. Name a file, or leave it out.")
    yield from _argument_problems(engine.arguments, engine.alias)
    for name in engine.inherit:
        if not _VARIABLE.fullmatch(name.removesuffix("*")):
            yield _problem("inherit", f"{name!r} is no variable's name. Write NAME or PREFIX_*.")
        yield from _key_problem("inherit", name)
    for name, value in engine.environment.items():
        if not _VARIABLE.fullmatch(name):
            yield _problem("environment", f"{name!r} is no variable's name. Correct it.")
        yield from _key_problem("environment", name)
        if "\0" in value:
            yield _problem(f"environment.{name}", "it holds a NUL. Take that out.")


def _key_problem(key: str, name: str) -> Iterator[Problem]:
    """Refuse a variable with which vLLM would want a key of the proxy."""
    if name == "VLLM_API_KEY":
        yield _problem(
            key,
            f"with {name} vLLM would refuse the proxy. Take it out; clients' keys are named in "
            "[auth].",
        )


def _argument_problems(arguments: Sequence[str], alias: str | None) -> Iterator[Problem]:
    """Give what in `arguments` collides with the flags that the proxy gives vLLM."""
    if arguments and not arguments[0].startswith("-"):
        yield _problem(
            "arguments",
            f"{arguments[0]!r} is no flag. The model is --model's (model in [engine]); what comes "
            "here are flags of vllm serve.",
        )
    if any("\0" in argument for argument in arguments):
        yield _problem("arguments", "one holds a NUL. Take that out.")
    for argument in arguments:
        flag, *value = argument.partition("=")[0].split(None, 1)[:2] or [""]
        if flag.startswith("--") and value:
            text = f'{argument!r} is one text. Write "{flag}", "{value[0]}".'
            yield _problem("arguments", text)
    if problem := forbidden(arguments):
        yield _problem("arguments", f"{problem} Take it out.")
    if alias is not None and model_names_in(arguments):
        yield _problem(
            "arguments", "--served-model-name and alias (--alias) exclude each other. Keep one."
        )


def names_of_models(engine: Engine) -> tuple[str, ...]:
    """Return what clients call the model, as far as that is known before the engine is asked."""
    if engine.alias is not None:
        return (engine.alias,)
    if engine.kind == "llamacpp":
        return (Path(engine.model).stem,)
    return model_names_in(engine.arguments) or (engine.model,)
