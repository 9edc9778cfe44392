"""Reads the log of `vllm serve`: what a start is doing, and the first cause of one that failed.

Its lines begin like `(EngineCore pid=7) INFO 11-22 04:56:16 [core.py:402] ` (0.11 and later) or
`INFO 07-25 10:00:00 core.py:402] `; bars are tqdm's. The texts are those of 0.6 to 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from wellspoken.engine.vllm.vllm_causes import CAUSES, FOLLOW, SIGNALS

SAID: Final = 300
"""Characters of vLLM's own words in a message."""

_PREFIX = re.compile(
    r"^(?:\([^()]*pid=\d+\) ?)?"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[?[\w./]+:\d+\] ?)?"
)
_HARMLESS = ("DEBUG", "INFO", "WARNING")
_SOURCE = ("    ", "  File ")
"""What begins the lines of a traceback that quote code; a message may be indented by two."""
_BAR = re.compile(
    r"^(?P<what>[^:|%]+): +(?P<percent>\d{1,3})%(?:\|| Completed)(?:[^|]*\|)? *"
    r"(?P<count>\d+/\d+)?"
)
_FILE = re.compile(r"[\w.-]+\.(?:json|txt|model|safetensors|bin|py|jinja|gguf|tiktoken)")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?(?P<name>[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (?P<text>.*\S)"
)
_REFUSED = re.compile(r"validation errors? for \w+$")
_WRAPPERS = (
    "See root cause above",
    "EngineCore failed to start",
    "WorkerProc failed to start",
    "WorkerProc initialization failed due to an exception",
    "Failed core proc(s)",
    "See stack trace",
)

_PHASES: Final = (
    (r"non-default args:", "reading the configuration"),
    (r"Resolved architecture:", "checking the model's configuration"),
    (r"Initializing (?:a V1|an) LLM engine", "starting its workers"),
    (r"Starting to load model", "loading the model"),
    (r"Time spent downloading weights for", "loading weights"),
    (r"(?:Loading weights|Model loading) took", "preparing the model"),
    (r"Directly load (?:AOT compilation|the compiled graph)", "loading compiled code"),
    (r"Dynamo bytecode transform time|Warming up model for the compilation", "compiling"),
    (r"Compiling a graph for", "compiling"),
    (r"torch\.compile (?:took|takes)", "measuring memory"),
    (r"Available KV cache memory:|KV cache size:", "reserving the KV cache"),
    (r"Graph capturing finished", "warming up its kernels"),
    (r"init engine \(profile|Starting vLLM (?:server on|API server)", "starting its HTTP server"),
)


class Diagnosis(NamedTuple):
    """Why a start failed, for people; `lasting`: the next one would fail again."""

    text: str
    lasting: bool


def plain(line: str) -> str:
    """Return a line of the log without what vLLM's logging put before it."""
    return _PREFIX.sub("", line, count=1).strip()


def phase(line: str) -> str | None:
    """Return what vLLM does from this line on, in words of at most 60 characters; else None."""
    text = plain(line)
    bar = _BAR.match(text)
    if bar is not None:
        return _progress(bar["what"].strip(), bar["percent"], bar["count"])
    return next((words for sign, words in _PHASES if re.search(sign, text)), None)


def _progress(what: str, percent: str, count: str | None) -> str | None:
    """Return the phase of a progress bar; None for one that tells nothing."""
    lower = what.lower()
    if _FILE.fullmatch(what):
        return f"downloading {what[-40:]} {percent} %"
    if lower.startswith("fetching"):
        return f"downloading {count or ''} files".replace("  ", " ")
    if "loading" in lower and ("shard" in lower or "safetensors" in lower):
        return f"loading weights {percent} %"
    if lower.startswith("capturing"):
        return f"capturing CUDA graphs {count or percent + ' %'}"
    if lower.startswith("compiling"):
        return f"compiling {percent} %"
    if "warmup" in lower:
        return f"warming up its kernels {percent} %"
    return None


def diagnosis(code: int, lines: Sequence[str]) -> Diagnosis:
    """Return why vLLM's process ended with `code` (negative: a signal) during its start.

    `lines`: the end of its log. The first cause counts: one failure makes a cascade of others.
    """
    texts = _errors(lines)
    for text in texts:
        for cause in CAUSES:
            if re.search(cause.sign, text):
                return Diagnosis(f"{_message_of(text)}. {cause.remedy}", cause.lasting)
    for text in texts:
        if _EXCEPTION.match(text) and not any(wrapper in text for wrapper in _WRAPPERS):
            return Diagnosis(f"{_short(text)}. {FOLLOW}", False)
    return _last_words(code, [plain(line) for line in lines])


def _errors(lines: Sequence[str]) -> list[str]:
    """Return the lines that may say what failed: no quoted code, nothing below an error's level."""
    found: list[str] = []
    for line in lines:
        prefix = _PREFIX.match(line)
        rest = line[prefix.end() :] if prefix is not None else line
        harmless = prefix is not None and prefix["level"] in _HARMLESS
        if not rest.strip() or harmless or rest.startswith(_SOURCE):
            continue
        if found and _REFUSED.search(found[-1]):  # pydantic says on the next line what it means
            found[-1] = rest.strip()
        else:
            found.append(rest.strip())
    return found


def _last_words(code: int, texts: Sequence[str]) -> Diagnosis:
    end = SIGNALS.get(-code)
    if end is not None:
        return Diagnosis(end, False)
    last = " | ".join([text for text in texts if text][-3:])
    said = f"its log ends with: {_short(last)}" if last else "it logged nothing"
    return Diagnosis(f"{said}. {FOLLOW}", False)


def _message_of(text: str) -> str:
    """Return what a line says, without the exception's class and what pydantic adds."""
    raised = _EXCEPTION.match(text)
    words = raised["text"] if raised is not None else text
    words = re.sub(r"^vllm(?: serve)?: error: |^(?:Value|Assertion) error, ", "", words)
    return _short(re.sub(r" \[type=\w+, input_value=.*$", "", words))


def _short(text: str) -> str:
    """Return at most SAID characters of a text, whole sentences if it has some."""
    if len(text) > SAID:
        sentences = text[:SAID].rpartition(". ")[0]
        text = sentences or f"{text[: SAID - 3]}..."
    return text.rstrip(" .:")
