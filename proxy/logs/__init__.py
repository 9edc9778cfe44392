"""The log on stderr: text on a terminal, else one JSON object a line, never in the loop's way.

Beside messages it has a line for each request (`Access`). No line has a prompt, an answer, a key or
a header's value; with `log.bodies` and at level debug bodies.py adds bodies, without keys.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Final, Protocol, TextIO

from wellspoken.adapters.events import Fault
from wellspoken.proxy.config.secrets import redact
from wellspoken.proxy.config.tables import Log
from wellspoken.proxy.logs import bodies
from wellspoken.proxy.logs.line_writer import Descriptor, LogWriter
from wellspoken.proxy.logs.lines import JsonFormat, Request, TextLines, traceback_of
from wellspoken.proxy.relay.call import Call, Hooks
from wellspoken.proxy.relay.outcome import QUIET, level_of, outcome_of
from wellspoken.proxy.terminal.colour import Colour

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
SECONDS: Final = 2.0
"""For which the end of the process waits for whoever reads its log."""

_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_LONGEST: Final = 200  # characters of a client's word


class Screen(Protocol):
    """Stderr, with an engine's start below what is logged: `Progress` in lifecycle/."""

    file: TextIO
    terminal: bool

    def attach(self, log: Logs | None, *, draws: bool) -> None:
        """Have `log` write, None: nobody else; `draws`: also the progress, on a terminal."""

    def show(self, text: str) -> bool:
        """Write whole lines above the progress; say whether that was possible."""


class Logs:
    """The log of a process from `set_up` until `close`."""

    def __init__(self, config: Log, screen: Screen) -> None:
        self.config = config
        self.level = LEVELS[config.level]
        json = config.format == "json" or (config.format == "auto" and not screen.terminal)
        self.lines = JsonFormat() if json else _text_lines(config, screen)
        self._json = json
        self._screen = screen
        self._descriptor = _descriptor_of(screen)
        write = self._show if self._descriptor is None else self._descriptor.write
        self._writer = LogWriter(write, self._loss_line)
        self.put = self._writer.put
        self.handler = _Handler(self)
        # How logging was in this process, for `close`.
        self._levels = [(log, log.level) for log in map(logging.getLogger, ("", "wellspoken"))]
        self._hooks = threading.excepthook, sys.unraisablehook

    def start(self) -> None:
        """Begin: what is logged, warned of, or raised where nobody catches it, comes here."""
        self._writer.start()
        self._screen.attach(self, draws=not self._json)
        logging.captureWarnings(True)
        threading.excepthook = _thread_failed
        sys.unraisablehook = _unraisable
        logging.getLogger().addHandler(self.handler)
        # What other packages say below a warning is their own affair, and may quote anything.
        logging.getLogger().setLevel(max(self.level, logging.WARNING))
        logging.getLogger("wellspoken").setLevel(self.level)

    def line(self, text: str) -> None:
        """Have a line of an engine's written: as it is, or as a message."""
        if self.level <= logging.INFO:
            said = {"event": "engine"}
            told = self.lines.message("info", text, said) if self._json else None
            self.put(told or f"{text}\n".encode("utf-8", "backslashreplace"))

    def flush(self, seconds: float = SECONDS) -> bool:
        """Wait until what was put is written; say whether that came about in time."""
        return self._writer.flush(seconds)

    def close(self) -> None:
        """Write what waits, at most for 2 s, and give logging back as it was."""
        for log, level in self._levels:
            log.setLevel(level)
        threading.excepthook, sys.unraisablehook = self._hooks
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self.handler)
        self._screen.attach(None, draws=True)
        if self._writer.close(SECONDS) and self._descriptor is not None:
            self._descriptor.close()

    def _show(self, lines: list[bytes]) -> int:
        return 0 if self._screen.show(b"".join(lines).decode()) else len(lines)

    def _loss_line(self, count: int) -> bytes:
        text = f"{count} lines of the log are lost: stderr could not be written so fast, or at all"
        return self.lines.message("warning", text, {"lost": count})


def _text_lines(config: Log, screen: Screen) -> TextLines:
    if not screen.terminal:
        return TextLines()
    from wellspoken.proxy.logs.terminal_lines import TerminalLines

    return TerminalLines(screen.file, Colour.of(screen.file), verbose=config.verbose)


def _descriptor_of(screen: Screen) -> Descriptor | None:
    """Return what to write to; None: a terminal, or a file without a descriptor."""
    if not screen.terminal:
        try:
            return Descriptor(screen.file.fileno())
        except (OSError, ValueError, AttributeError):  # no file of the system's, or a closed one
            pass
    return None


class _Handler(logging.Handler):
    """Makes lines of log records; `extra={"fields": {...}}` adds to those of JSON."""

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        """Have one record written."""
        try:
            text = record.getMessage()
            if record.name == "asyncio":
                text = text.partition("\n")[0]  # below it stands the repr of whatever there is
            fields: Mapping[str, Any] = getattr(record, "fields", {})
            if not record.name.startswith("wellspoken"):
                fields = {"logger": record.name, **fields}
            error = record.exc_info[1] if record.exc_info else None
            trace = traceback_of(error, whole=self._logs.config.bodies) if error is not None else ""
            line = self._logs.lines.message(_level(record.levelno), redact(text), fields, trace)
        except Exception as error:
            where = f"{record.pathname}:{record.lineno}"
            text = f"a message could not be logged ({where}, {type(error).__name__})"
            line = self._logs.lines.message("error", text, {})
        self._logs.put(line)

    def flush(self) -> None:
        """Wait for the writer: logging calls this when the process ends."""
        self._logs.flush()


def _level(number: int) -> str:
    return next((name for name, at in reversed(LEVELS.items()) if number >= at), "debug")


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit:
        name = failed.thread.name if failed.thread is not None else "?"
        log = logging.getLogger("wellspoken")
        log.error("the thread %s failed", name, exc_info=failed.exc_value)


def _unraisable(failed: sys.UnraisableHookArgs) -> None:
    what = failed.err_msg or "an exception was ignored in"
    log = logging.getLogger("wellspoken")
    log.error("%s %s", what, type(failed.object).__name__, exc_info=failed.exc_value)


class Access:
    """Writes a line for each request that is over: an observer (see `observe`)."""

    def __init__(self, config: Log, log: Logs) -> None:
        self._put = log.put
        self._lines = log.lines
        self._level = LEVELS[config.level]

    def __call__(self, call: Call, code: int) -> None:
        """Write the line of one request; `code` is its status, 499 where the client had left."""
        outcome = outcome_of(call, code)
        quiet = call.routing.route in QUIET
        level = "debug" if quiet else "info" if outcome == "ok" else level_of(outcome)
        if LEVELS[level] < self._level:
            return
        now = perf_counter()
        routing, timing, results = call.routing, call.timing, call.results
        exchange = results.exchange
        usage = exchange.result.usage if exchange is not None else results.usage
        request = Request(
            self._lines.now(),
            level,
            "request",
            call.id,
            call.request.method[:16],
            routing.route,
            code,
            outcome,
            routing.streams,
            int((now - call.began) * 1e6) / 1e6,  # microseconds; a third of the cost of round()
            routing.model[:_LONGEST],
            routing.backend,
        )
        if routing.client is not None:
            request.client = routing.client.name
        if timing.sent:
            asked = max(timing.sent - call.began - timing.waited, 0.0)
            request.overhead = int((asked + timing.worked) * 1e6) / 1e6
        if results.streamed and timing.first:
            request.ttft = int((timing.first - call.began) * 1e6) / 1e6
        if usage is not None:
            request.prompt_tokens = usage.prompt
            request.completion_tokens = usage.completion
        if exchange is not None:
            request.repairs = exchange.notes.counts
        if results.fault is not None:
            request.error = _error(results.fault, routing.hide)
        if results.trace is not None:
            request.trace_id = results.trace.id
        if routing.route == "other":
            request.path = redact(call.path[:_LONGEST])
        self._put(self._lines.request(request))


def _error(fault: Fault, hide: Callable[[bytes], bytes]) -> str:
    """Return the code of the error that the client was told, if it looks like one."""
    for word in (fault.code, fault.type):
        if word and _CODE.fullmatch(word):
            return redact(hide(word.encode()).decode("utf-8", "replace"))
    return ""


def set_up(config: Log, screen: Screen) -> Logs:
    """Send what is logged in this process to stderr, as `config` says, until `Logs.close`.

    Each process has its own; several may write to one stderr.
    """
    logs = Logs(config, screen)
    logs.start()
    return logs


def observe(hooks: Hooks, log: Logs) -> None:
    """Have a service's requests logged, as far as that is wanted."""
    if log.config.access:
        hooks.observers.append(Access(log.config, log))
    if log.config.bodies:
        hooks.tap = bodies.tap_request
        hooks.observers.append(bodies.log_answer)
