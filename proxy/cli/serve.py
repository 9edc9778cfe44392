"""The command `wellspoken serve`: a configuration file, an engine of the proxy's own, or both."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

from wellspoken.engine.vllm.vllm_arguments import forbidden
from wellspoken.proxy.cli.options import (
    COMMANDS,
    Parser,
    add_options,
    serving_flags,
    serving_parser,
    start,
)

_HELP: Final = """\
examples:
  wellspoken serve --config wellspoken.toml
  wellspoken serve --engine llamacpp --model model.gguf --context 16384
  wellspoken serve --engine vllm --model Qwen/Qwen3-8B
  wellspoken serve --engine vllm --model ORG/NAME -- --max-model-len 32768
  wellspoken serve --engine llamacpp --model model.gguf --idle-unload 15m
  wellspoken serve --config wellspoken.toml --listen 0.0.0.0:8010 --key env:KEY

Serves what a configuration file says, and an engine that it starts, watches and
ends itself. What stands behind -- goes to vllm serve as it is. Flags win over
the file's [engine].
"""
_ANY_ENGINE: Final = {
    "--engine {llamacpp,vllm}": "start this one, and end it",
    "--model MODEL": "a .gguf file; for vllm ORG/NAME, or a folder",
    "--alias NAME": "the model's name for clients",
    "--idle-unload TIME": "unload it after so long without a request (15m); the next one loads it",
    "--start-timeout TIME": "how long a start may take (default: as is usual)",
}
_LLAMACPP: Final = {
    "--context N": "tokens shared by the slots (0: the model's own)",
    "--threads N": "0: llama.cpp chooses",
    "--gpu-layers N": "layers on a GPU (-1: llama.cpp chooses)",
    "--parallel N": "slots (default 4)",
    "--chat-template FILE": "a Jinja file, in place of the model's own",
    "--mmproj FILE": "the projector of a multimodal model",
}
_EXAMPLES: Final = {
    "llamacpp": "wellspoken serve --engine llamacpp --model FILE.gguf",
    "vllm": "wellspoken serve --engine vllm --model ORG/NAME",
}
_IN_VLLM: Final = {
    "context": "-- --max-model-len 8192",
    "threads": "--, with OMP_NUM_THREADS=8 in the environment",
    "gpu_layers": "-- --cpu-offload-gb 10",
    "parallel": "-- --max-num-seqs 16",
    "chat_template": "-- --chat-template FILE",
    "mmproj": "--, since vLLM finds that in the model itself",
}
_ENGINE: Final = ("model", "alias", "idle_unload", "start_timeout", *_IN_VLLM)


def main(arguments: Sequence[str]) -> int:
    """Run `serve`, the first argument; return the exit code."""
    ours, theirs = split_arguments(arguments[1:])
    parser = parser_of("serve")
    options, unknown = parser.parse_known_args(ours)
    problem = _unknown(parser, options.engine, unknown) if unknown else _mistaken(options, theirs)
    if problem:
        print(f"wellspoken: {problem}", file=sys.stderr)
        return 2
    return start(options.config, flags_of(options, theirs))


def parser_of(command: str) -> Parser:
    """Return the parser of `serve`."""
    usage = f"wellspoken {command} [options] [-- FLAGS OF VLLM SERVE]"
    return serve_options(f"wellspoken {command}", usage, _HELP)


def split_arguments(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return what stands before the first -- and what behind it."""
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def serve_options(prog: str, usage: str, description: str) -> Parser:
    """Return a parser with the options of `serve`, which other commands look at as well."""
    parser = serving_parser(prog, usage, description)
    add_options(parser, {"--config FILE": "a TOML file; wellspoken config example prints one"})
    add_options(parser.add_argument_group("an engine of its own"), _ANY_ENGINE)
    add_options(parser.add_argument_group("llamacpp"), _LLAMACPP)
    return parser


def _unknown(parser: Parser, kind: str | None, words: Sequence[str]) -> str:
    """Return what to do about words that are none of the command's."""
    near = parser.suggestion(words[0])
    said = f"unknown: {' '.join(words)}.{near} wellspoken serve --help lists what there is"
    flags = kind != "llamacpp" and words[0].startswith("-")
    if flags and (problem := forbidden(words)):
        return f"{problem} wellspoken serve --help lists what there is."
    if flags:
        given = f"{_EXAMPLES['vllm']} -- {' '.join(words)}"
        return f"{said}; flags of vllm serve go behind --: {given}"
    if kind is None and words[0] not in COMMANDS:
        return f"{said}; in front of a server that runs already: wellspoken {words[0]}"
    return f"{said}."


def _mistaken(options: argparse.Namespace, theirs: Sequence[str]) -> str:
    """Return what is wrong with options that do not go together, "" for nothing."""
    kind, engine = options.engine, _engine_of(options)
    own = [key for key in _IN_VLLM if key in engine]
    if kind == "llamacpp" and theirs:
        names = ", ".join(map(_flag, _IN_VLLM))
        return f"what stands behind -- goes to vllm serve. llama.cpp's settings are {names}."
    if kind == "vllm" and own:
        return f"{_flag(own[0])} is llama.cpp's. Write {_EXAMPLES['vllm']} {_IN_VLLM[own[0]]}"
    if options.config is not None or any(
        f"WELLSPOKEN_ENGINE_{key}" in os.environ for key in ("KIND", "MODEL")
    ):
        return ""  # what is missing may stand there
    if (engine or theirs) and (kind is None or options.model is None):
        file = (options.model or "").endswith(".gguf")
        probable = "llamacpp" if (file or own) and not theirs else "vllm"
        return f"--engine and --model go together: {_EXAMPLES[kind or probable]}"
    return ""


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def flags_of(options: argparse.Namespace, theirs: Sequence[str]) -> dict[str, Any]:
    """Return what the options of `serve` say, shaped like a configuration file."""
    engine = _engine_of(options)
    if theirs:
        engine["arguments"] = list(theirs)
    flags = serving_flags(options)
    return {**flags, "engine": engine} if engine else flags


def _engine_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is given of [engine]."""
    given = {"kind": options.engine, **{key: getattr(options, key) for key in _ENGINE}}
    return {key: value for key, value in given.items() if value is not None}
