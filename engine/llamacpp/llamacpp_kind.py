"""llama.cpp's own HTTP server, from the `xllamacpp` wheel, as a kind of engine.

It runs in `llamacpp_child`, and this process never imports the wheel.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final

from wellspoken.engine.environment import pass_environment
from wellspoken.engine.failure import EngineError, ending, lasting_error
from wellspoken.engine.kind import Command, Facts
from wellspoken.engine.llamacpp import llamacpp_child
from wellspoken.engine.llamacpp.llamacpp_check import (
    check_gguf,
    check_memory,
    check_model,
    check_template,
)
from wellspoken.engine.unix_http import Client

WHEEL: Final = "xllamacpp"
ASK_SECONDS: Final = 5.0
DETAIL_LINES: Final = 3

# The child runs in this interpreter and must find the same packages.
PACKAGES: Final = ("PYTHONPATH", "PYTHONHOME")

_REMEDY: Final = {
    "missing": (
        'The embedded llama.cpp needs the xllamacpp wheel: pip install "xllamacpp>=2026.10".'
    ),
    "library": (
        "A system library that xllamacpp needs is missing. For libgomp: "
        "apt-get install libgomp1 (Debian, Ubuntu), dnf install libgomp (Fedora), "
        "apk add libgomp (Alpine)."
    ),
    "version": (
        "This version of xllamacpp is not one that wellspoken knows: "
        'pip install --upgrade "xllamacpp>=2026.10".'
    ),
    "template": (
        "Check the chat template, given or the model's own: llama.cpp has to read it as jinja."
    ),
    "mmproj": "Check that the mmproj file is a whole one, made for this model.",
    "load": (
        "Check that the file is a whole GGUF model, of an architecture that this llama.cpp knows, "
        "and that the model with its context fits into memory (a smaller context helps)."
    ),
    "memory": (
        "There is too little memory for it: take a smaller context, fewer parallel slots, fewer "
        "gpu_layers or a smaller model, or end what else uses that memory."
    ),
    "socket": "Its socket could not be made: check that the folder may be written and is not full.",
}

# What in its log tells a cause that has a remedy of its own (b11549).
_CAUSES: Final = (
    ("socket", re.compile(r"couldn't bind HTTP server socket")),
    ("memory", re.compile(r"insufficient memory|out of memory|bad_alloc|to allocate", re.I)),
    ("template", re.compile(r"chat template parsing error")),
    ("mmproj", re.compile(r"failed to load multimodal model")),
)
_PASSING: Final = frozenset(("memory", "socket"))  # may not come again

# What it does from the line on that has the first: the child's own notes, and from verbosity 3 on
# llama.cpp's (b11549).
_PHASES: Final = (
    (llamacpp_child.IMPORTING, "loading llama.cpp"),
    (llamacpp_child.LOADING, "loading the model"),
    ("load_model: loading model", "loading the model"),
    ("fitting params to", "fitting the model into memory"),
    ("load_tensors: loading model tensors", "loading weights"),
    ("llama_context: constructing", "allocating the context"),
    ("warming up the model", "warming up"),
    ("chat template, example_format", "preparing the chat template"),
)

_BUILD = re.compile(r"(b[1-9]\d*)(?:-|$)", re.ASCII)  # b0-unknown: built without git
_WHEEL_BUILD = re.compile(r"20\d\d\.\d+\.([1-9]\d*)", re.ASCII)  # year, month, build


@dataclass(slots=True)
class LlamaCpp:
    """llama.cpp with one model, on a unix socket: its settings, and what its output means.

    `model`: its file. `context` tokens are shared by `parallel` slots; 0 takes the model's own, cut
    down to what memory holds. `threads` 0 and `gpu_layers` -1 leave the choice to llama.cpp.
    `alias` is the model's name in /v1/models (the file's stem if None). `chat_template` is the path
    of a jinja file, or the template itself, in place of the model's; `mmproj` the GGUF file with
    which it sees images or hears. `inherit`, `environment` and `own`: see `pass_environment`.
    `verbosity` is llama.cpp's: 1 errors, 3 each request.
    """

    name = "llamacpp"
    title = "llama.cpp"
    start_timeout = 600.0

    model: Path
    _: KW_ONLY
    context: int = 0
    parallel: int = 4
    threads: int = 0
    gpu_layers: int = -1
    alias: str | None = None
    chat_template: str | None = None
    mmproj: Path | None = None
    inherit: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    own: Sequence[str] = ()
    verbosity: int = 1

    def check(self) -> list[str]:
        """See Kind. Names the model file, the wheel, the template or the memory that is missing."""
        size = check_model(_home(self.model))
        if self.mmproj is not None:
            size += check_gguf(_home(self.mmproj), "mmproj")
        if self.chat_template is not None:
            check_template(self.chat_template)
        if importlib.util.find_spec(WHEEL) is None:
            raise lasting_error(_REMEDY["missing"])
        return check_memory(size, self.gpu_layers)

    def command(self, socket: Path, folder: Path, shutdown_timeout: float) -> Command:
        """See Kind. It knows no draining: SIGTERM ends it, so its requests have to end before."""
        # -P: a file named like a library in the working directory must not be imported.
        argv = [sys.executable, "-P", "-m", llamacpp_child.__name__]
        argv += [f"--model={_home(self.model).absolute()}", f"--socket={socket}"]
        argv.append(f"--alias={self.alias or self.model.stem}")
        for number in llamacpp_child.NUMBERS:
            argv.append(f"--{number}={getattr(self, number.replace('-', '_'))}")
        if self.chat_template is not None:
            file = check_template(self.chat_template)
            argv.append(
                f"--chat-template={self.chat_template}"
                if file is None
                else f"--chat-template-file={file.absolute()}"
            )
        if self.mmproj is not None:
            argv.append(f"--mmproj={_home(self.mmproj).absolute()}")
        inherit = (*self.inherit, *PACKAGES)
        environment = pass_environment(os.environ, inherit, self.environment, self.own)
        return Command(tuple(argv), environment, reports=True)

    def phase(self, line: str) -> str | None:
        """See Kind."""
        return next((phase for sign, phase in _PHASES if sign in line), None)

    def pulse(self) -> str | None:
        """See Kind. It downloads nothing."""
        return None

    def explain_report(self, report: Mapping[str, str], tail: Sequence[str]) -> EngineError:
        """See Kind. A want of memory or of a socket may pass; nothing else does."""
        kind, said = report.get("error", "load"), quote_log(tail)
        detail = _sentence(report.get("detail", ""))
        if kind == "load":
            kind, detail = _cause([*tail, detail]) or kind, said or detail
            what = f"llama.cpp could not load {self.model}"
        else:
            what, detail = "llama.cpp can't run", detail or said
        remedy = _REMEDY.get(kind, _REMEDY["version"])
        return EngineError(f"{what}: {detail} {remedy}", lasting=kind not in _PASSING)

    def explain_end(self, code: int, tail: Sequence[str]) -> EngineError:
        """See Kind. Only a processor that lacks an instruction will surely lack it again."""
        said = quote_log(tail)
        what = f"{ending(self.title, code)} while it loaded {self.model}."
        if code == -signal.SIGKILL or _cause(tail) == "memory":
            hint = "Most often the machine ran out of memory: take a smaller model or context."
        elif code == -signal.SIGILL:
            hint = (
                "This processor lacks an instruction that the xllamacpp wheel was built for: "
                "build the wheel here (pip install --no-binary xllamacpp xllamacpp)."
            )
        else:
            hint = "Its log, above, may say more."
        return EngineError(f"{what} {hint} {said}".rstrip(), lasting=code == -signal.SIGILL)

    def warm_up(self, facts: Facts) -> tuple[str, bytes]:
        """See Kind."""
        model = facts.models[0] if facts.models else self.alias or self.model.stem
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "logprobs": 1}
        return "/v1/completions", json.dumps(body).encode()

    async def facts(self, client: Client, argv: Sequence[str], tail: Sequence[str]) -> Facts:
        """See Kind. `context` is that of one slot, since a request gets one."""
        props = await client.json("/props", ASK_SECONDS)
        listed = (await client.json("/v1/models", ASK_SECONDS)).get("data")
        rows: list[Any] = listed if isinstance(listed, list) else []
        models = [row.get("id") for row in rows if isinstance(row, dict)]
        settings = props.get("default_generation_settings")
        context = settings.get("n_ctx") if isinstance(settings, dict) else None
        return Facts(
            version=_version(props.get("build_info")),
            models=tuple(model for model in models if isinstance(model, str)),
            context=context if isinstance(context, int) and context > 0 else None,
        )

    def progress(self, metrics: bytes) -> bytes:
        """See Kind: llama.cpp's computing loop answers GET /metrics itself (b11549)."""
        return b""


def quote_log(lines: Sequence[str]) -> str:
    """Return what llama.cpp's log says went wrong: its first errors, else its last lines.

    A log line is `0.00.005.045 E text`; one failure makes a cascade, whose first lines tell most.
    """
    own = (llamacpp_child.IMPORTING, llamacpp_child.LOADING)
    lines = [line for line in lines if line not in own]
    errors = [text for _, level, text in (line.partition(" E ") for line in lines) if level]
    chosen = list(dict.fromkeys(errors))[:DETAIL_LINES] or lines[-DETAIL_LINES:]
    return _sentence("It said: " + " | ".join(text.strip() for text in chosen)) if chosen else ""


def _cause(lines: Sequence[str]) -> str | None:
    """Return the name of what the log says is the cause, None where it is none of _CAUSES."""
    text = "\n".join(lines)
    return next((name for name, sign in _CAUSES if sign.search(text)), None)


def _home(path: Path) -> Path:
    return Path(os.path.expanduser(path))  # unlike Path.expanduser it takes any ~name


def _sentence(text: str) -> str:
    return text if not text or text.endswith(".") else f"{text}."


def _version(build: object) -> str:
    """Return the build (b11549); wheels made without git tell it in their own version only."""
    found = _BUILD.match(build) if isinstance(build, str) else None
    if found is not None:
        return found[1]
    try:
        wheel = _WHEEL_BUILD.match(importlib.metadata.version(WHEEL))
    except importlib.metadata.PackageNotFoundError:
        return ""
    return f"b{wheel[1]}" if wheel is not None else ""
