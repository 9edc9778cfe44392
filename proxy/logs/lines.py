"""Lines of the log: as JSON, one object each, or as text; nothing that is quoted can forge one.

Control characters, what turns the direction of text and line separators leave as escapes, in JSON
as its own. A message that is no request's is one of the program's, but may quote a backend or an
exception: keys are blanked out in it (`redact`), and the message of an exception that may quote a
request is left out.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, json, to_builtins

from wellspoken.proxy.config.secrets import redact

_MESSAGE: Final = 32_768  # characters of one
_FRAMES: Final = 50
_CHAIN: Final = 8  # exceptions of which one led to the next, or that are one group

_SPECIAL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_WORD: Final = re.compile(r"[\w./:@+=~-]+")
_TIMES: Final = "%Y-%m-%dT%H:%M:%S"

_HARMLESS: Final = (
    AttributeError, ImportError, MemoryError, NameError, NotImplementedError, OSError,
    RecursionError, TypeError,
)  # fmt: skip
"""Exceptions whose messages are about the program or the system, and quote no data."""


def escape(text: str) -> str:
    """Return the text on one line, with escapes for what a terminal or a reader would act on."""
    return text if text.isprintable() else _SPECIAL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def word(text: str) -> str:
    """Return a client's word so that it is seen where it ends: quoted unless it is plain."""
    if _WORD.fullmatch(text):
        return escape(text)
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escape(text)}"'


class Request(Struct, omit_defaults=True):
    """What is said of one request that is over; times are in seconds.

    `client` is one that the configuration names, `path` that of a route that is not known, `error`
    the code that the client was told, `ttft` of a stream alone, `overhead` where a backend was
    asked; `repairs` are names and how often each was needed.
    """

    time: str
    level: str
    event: str
    id: str
    method: str
    route: str
    status: int
    outcome: str
    stream: bool
    duration: float
    model: str = ""
    backend: str = ""
    client: str = ""
    path: str = ""
    error: str = ""
    ttft: float | None = None
    overhead: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    repairs: dict[str, int] = {}
    trace_id: str = ""


class JsonFormat:
    """One JSON object a line."""

    def __init__(self) -> None:
        self._encode = json.Encoder(enc_hook=repr).encode
        self._now = (0, "")

    def now(self) -> str:
        """Return the time in UTC, to the millisecond."""
        milliseconds = int(time.time() * 1000)
        known, text = self._now
        if milliseconds != known:
            second, rest = divmod(milliseconds, 1000)
            if second == known // 1000:
                text = f"{text[:-4]}{rest:03d}Z"
            else:
                text = f"{time.strftime(_TIMES, time.gmtime(second))}.{rest:03d}Z"
            self._now = milliseconds, text  # one assignment: any thread may come by
        return text

    def message(self, level: str, text: str, fields: Mapping[str, Any], trace: str = "") -> bytes:
        """Return the line of a message; `trace` is an exception's."""
        said: dict[str, Any] = {"time": self.now(), "level": level, "message": text, **fields}
        if trace:
            said["exception"] = trace
        return self._line(said)

    def request(self, request: Request) -> bytes:
        """Return the line of a request."""
        return self._line(request)

    def _line(self, said: dict[str, Any] | Request) -> bytes:
        try:
            line = self._encode(said)
        except UnicodeEncodeError:  # half a surrogate pair, of a path or header that is no UTF-8
            line = self._encode(_whole(to_builtins(said, enc_hook=repr)))
        if not line.isascii() or b"\x7f" in line:  # JSON lets these stand as they are
            line = escape(line.decode()).encode()
        return line + b"\n"


class TextLines:
    """Lines for people, with the date and the time in UTC."""

    def now(self) -> str:
        """Return the time."""
        now = time.time()
        return f"{time.strftime(_TIMES, time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"

    def shown_time(self) -> str:
        """Return the time as a line begins with it."""
        return self.now()

    def shown_level(self, level: str) -> str:
        """Return how a message begins."""
        return "" if level == "info" else f"{level}: "

    def message(self, level: str, text: str, fields: Mapping[str, Any], trace: str = "") -> bytes:
        """Return a message; what follows its first line is indented, so that none looks new."""
        said = "\n".join((text, *(f"{name}: {value}" for name, value in fields.items()), trace))
        lines = [escape(line) for line in said.rstrip("\n").split("\n")]
        begin = f"{self.shown_time()} {self.shown_level(level)}"
        return encode_line(begin + "\n  ".join(lines))

    def request(self, request: Request) -> bytes:
        """Return the line of a request, the status and how it ended first."""
        said = [f"{request.time} {request.status}"]
        if request.outcome != "ok":
            said.append(f"{request.outcome} {word(request.error)}".removesuffix(' ""'))
        said.append(f"{escape(request.method)} {word(request.path or request.route)}")
        if request.model:
            said.append(word(request.model))
        if request.backend:
            said.append(f"on {word(request.backend)}")
        if request.client:
            said.append(f"for {request.client}")
        parts = [" ".join(said), "stream"] if request.stream else [" ".join(said)]
        parts.append(duration_text(request.duration))
        if request.ttft is not None:
            parts.append(f"first token {duration_text(request.ttft)}")
        if request.overhead is not None:
            parts.append(f"overhead {duration_text(request.overhead)}")
        if request.prompt_tokens is not None:
            parts.append(f"{request.prompt_tokens}+{request.completion_tokens} tokens")
        if request.repairs:
            parts.append(f"repairs {' '.join(request.repairs)}")
        parts.append(request.id)
        return encode_line(", ".join(parts))


def encode_line(line: str) -> bytes:
    """Return a line of text as it leaves."""
    return f"{line}\n".encode("utf-8", "backslashreplace")


def duration_text(seconds: float) -> str:
    """Return a time as people read it."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _whole(value: Any) -> Any:
    """Return the value with every lone surrogate in it spelt out."""
    if isinstance(value, str):
        return _SURROGATES.sub(_escape, value)
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value


def traceback_of(error: BaseException, *, whole: bool) -> str:
    """Return an exception with the places it passed, then those that led to it.

    Its message is there if that is harmless, or `whole` says that what it quotes may be logged.
    """
    parts: list[str] = []
    waiting, seen = [("", error)], {id(error)}
    while waiting and len(parts) < _CHAIN:
        how, error = waiting.pop(0)
        places = "".join(traceback.format_tb(error.__traceback__, -_FRAMES))
        parts.append(f"{how}{_name_of(error, whole)}\n{places}")
        after = [("caused by ", error.__cause__)]
        if error.__cause__ is None and not error.__suppress_context__:
            after.append(("while handling ", error.__context__))
        if isinstance(error, BaseExceptionGroup):
            after += [("in it ", one) for one in error.exceptions]
        for link, one in after:
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                waiting.append((link, one))
    return redact("".join(parts)[:_MESSAGE]).rstrip("\n")


def _name_of(error: BaseException, whole: bool) -> str:
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    if not (whole or isinstance(error, _HARMLESS)):
        return f"{name} (its message may quote a request; log.bodies shows it)"
    try:
        return f"{name}: {error}"
    except Exception as other:  # a __str__ that fails is no reason to say nothing
        return f"{name} (whose message cannot be had: {type(other).__name__})"
