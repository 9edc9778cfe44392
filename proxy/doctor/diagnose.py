"""The examination: a proxy in front of the backend, and each probe on both."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wellspoken.proxy.config import load
from wellspoken.proxy.config.values import normal_url, read_key
from wellspoken.proxy.doctor import questions
from wellspoken.proxy.doctor.asking import Side
from wellspoken.proxy.doctor.model import (
    Ask,
    Context,
    Heard,
    Probe,
    Report,
    Result,
    Unclear,
    Verdict,
    judged,
    plain,
)
from wellspoken.proxy.doctor.rules import message_of
from wellspoken.proxy.lifecycle.build import build, version
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.target import stop_detectors

if TYPE_CHECKING:
    from wellspoken.proxy.config import Config
    from wellspoken.proxy.server import Service

SPARE: Final = 2.0  # seconds that the proxy's answer may take longer than the backend's
NAMELESS: Final = "default"
Tell = Callable[[int, int, str], None]
"""Is told how many probes of how many are done, and which one comes."""

_REPAIRS: Final = re.compile(rb"^: repairs (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Options:
    """What to examine, and how; `limit` in seconds for one answer. `key` is a reference."""

    url: str
    probes: Sequence[Probe]
    adapter: str | None = None
    key: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    limit: float = 30.0


class NotExamined(Exception):
    """The server cannot be examined; the text says why and what to do."""


async def examine(options: Options, tell: Tell = lambda done, count, name: None) -> Report:
    """Run the probes and return what came of them.

    Raises ConfigError for a URL, a key or an adapter that cannot be used.
    """
    began = time.perf_counter()
    url = normal_url(options.url)
    notes: list[str] = []
    async with _sides(options) as (service, backend, proxy):
        tell(0, len(options.probes), "first words")
        try:
            context = await _introduced(options, url, backend, proxy, notes)
        except NotExamined as error:
            spent = time.perf_counter() - began
            return Report(url, version(), seconds=spent, error=str(error))
        results = []
        for done, probe in enumerate(options.probes):
            tell(done, len(options.probes), probe.name)
            results.append(await _result(probe, context, backend, proxy))
        return Report(
            url=url,
            version=version(),
            model=context.model,
            backend=_described(service),
            results=tuple(results),
            seconds=time.perf_counter() - began,
            notes=tuple(notes),
        )


@asynccontextmanager
async def _sides(options: Options) -> AsyncIterator[tuple[Service, Side, Side]]:
    """Give a service on a port of this machine, the backend as it is, and as the service has it.

    Whoever else is on this machine has no use of the port: a key that is nobody's guards it.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wellspoken-")))
        guard = folder / "key"
        guard.write_text(secrets.token_hex(16))
        config = _config(options, f"file:{guard}")
        key = read_key(options.key) if options.key is not None else None
        service = build(config)
        stack.push_async_callback(service.stop)
        stack.push_async_callback(stop_detectors, service.state.router.targets)
        host, port = await service.start()
        raw = Upstream(normal_url(options.url), config.timeouts, key=key)
        stack.push_async_callback(raw.close)
        front = Upstream(f"http://{host}:{port}", config.timeouts, key=guard.read_text())
        stack.push_async_callback(front.close)
        explained = b"x-wellspoken-explain: 1\r\n"
        yield service, Side(raw, options.limit), Side(front, options.limit + SPARE, explained)


def _config(options: Options, guard: str) -> Config:
    """Return the configuration of the proxy; the environment has no say, as it may open a store."""
    backend = {
        "url": options.url,
        "adapter": options.adapter,
        "key": options.key,
        "tokenizer": options.tokenizer,
    }
    limit = options.limit
    return load(
        None,
        {
            "server": {"listen": "127.0.0.1:0"},
            "auth": {"keys": [guard]},
            "timeouts": {
                "connect": min(limit, 5.0),
                "first_token_body": limit,
                "first_token_stream": limit,
                "between_chunks": limit,
            },
            "backend": [{key: value for key, value in backend.items() if value is not None}],
        },
        {},
    )


def _described(service: Service) -> str:
    target = service.state.router.targets[0]
    if target.detector is not None:
        return target.detector.described
    return f"adapter {target.backend.name}"


async def _introduced(
    options: Options, url: str, backend: Side, proxy: Side, notes: list[str]
) -> Context:
    """Find out the model, and whether there is a server at all. Raises NotExamined."""
    listed = await backend.one(Ask("/v1/models", method="GET"))
    if listed.failure and not listed.status and not listed.late:
        raise NotExamined(_worded(listed.failure))
    names = _names(listed.body)
    model = options.model or next(iter(names), NAMELESS)
    if options.model is None and not names:
        notes.append(
            f"It lists no model, so it is asked for {NAMELESS!r}: name another with --model."
        )
    context = Context(model, listed=model in names, now=time.time())
    ask = questions.chat(context)
    raw = await backend.one(ask)
    if raw.status in (401, 403):
        raise NotExamined(_locked(options, url, raw))
    if raw.late and not raw.status:
        listing = ", though it lists its models" if names else ""
        raise NotExamined(
            f"{_peer(url)} does not answer a chat request{listing}: {raw.failure}. Look at its "
            "log; if it is only slow, give it longer: --timeout 120."
        )
    repaired = await proxy.one(ask)
    if not _speaks(raw) and not _speaks(repaired):
        if not _speaks(await backend.one(questions.completion(context))):
            raise NotExamined(_not_a_server(url, raw, context, names))
    text = _text(repaired) or _text(raw)
    return Context(model, context.listed, text, context.now)


def _worded(failure: str) -> str:
    """Return why there was no answer, for somebody who gave a URL and configured no proxy."""
    return failure.replace("host and port that the proxy was given", "URL's host and port")


def _peer(url: str) -> str:
    return f"The backend at {url}"


def _names(body: bytes) -> list[str]:
    """Return the models' names, in whatever form a server lists them."""
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return []
    items = decoded.get("data") if isinstance(decoded, dict) else decoded
    found = (
        [one.get("id") for one in items if isinstance(one, dict)] if isinstance(items, list) else []
    )
    return [name for name in found if isinstance(name, str) and name and _is_unicode(name)]


def _is_unicode(text: str) -> bool:
    """Say whether a text can be sent: JSON's escapes can hold half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _speaks(heard: Heard) -> bool:
    """Say whether a request was answered, with JSON."""
    try:
        found = json.loads(heard.body)
    except (ValueError, RecursionError):
        return False
    return heard.status == 200 and not heard.failure and isinstance(found, dict)


def _locked(options: Options, url: str, heard: Heard) -> str:
    said = f"status {heard.status}: {message_of(heard.body)}"
    if options.key is None:
        return f"{_peer(url)} wants a key ({said}). Name it with --key env:NAME or file:PATH."
    return f"{_peer(url)} refuses the key of {options.key} ({said}). Check that it is the one."


def _not_a_server(url: str, heard: Heard, context: Context, names: list[str]) -> str:
    """Return why a chat request got no answer, and what to do."""
    if heard.failure:
        if heard.failure.startswith("The backend"):
            return _worded(heard.failure)
        longer = "; if it is only slow, give it longer: --timeout 120" if heard.late else ""
        return f"{_peer(url)} answers no chat request: {heard.failure}. Look at its log{longer}."
    where = heard.headers.get("location", "")
    if 300 <= heard.status < 400 and where:
        return (
            f"{_peer(url)} sends requests on to {plain(where)} (status {heard.status}), where the "
            "proxy does not follow. If that is the server you mean, give its URL."
        )
    page = heard.content_type == "text/html" or heard.body.lstrip()[:1] == b"<"
    said = f"status {heard.status}: {message_of(heard.body)}"
    if page:
        return (
            f"{_peer(url)} answers with a web page ({said}). Check that the URL is that of an LLM "
            "server's API, and that what stands before it reaches it."
        )
    if heard.status == 404 and names:
        known = plain(", ".join(names[:5]))
        return (
            f"{_peer(url)} does not answer for the model {context.model!r} ({said}). "
            f"Name another with --model: {known}."
        )
    if heard.status == 503:
        return f"{_peer(url)} is not ready ({said}). Run this again when it is."
    return (
        f"{_peer(url)} answers no chat request ({said}). Check the URL, the model (--model NAME), "
        "and the server's log; what it is may be said with --adapter."
    )


def _text(heard: Heard) -> str:
    """Return the text of a chat answer, "" where there is none."""
    try:
        found = json.loads(heard.body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) and _is_unicode(found) else ""


async def _result(probe: Probe, context: Context, backend: Side, proxy: Side) -> Result:
    began = time.perf_counter()
    try:
        asks = probe.asks(context)
    except Unclear as error:
        nothing = Verdict("unclear", str(error))
        return Result(probe, nothing, nothing)
    theirs = await backend.hear(asks, together=probe.together)
    given_up = next((one for one in theirs if one.unasked), None)
    if given_up is not None:
        nothing = Verdict("unclear", given_up.failure)
        return Result(probe, nothing, nothing)
    ours = await proxy.hear(asks, together=probe.together)
    return Result(
        probe,
        judged(probe, theirs, context),
        judged(probe, ours, context),
        _repairs(ours),
        time.perf_counter() - began,
    )


def _repairs(heard: Sequence[Heard]) -> tuple[str, ...]:
    """Return the names of what the proxy repaired: a header says it, or a comment."""
    found: dict[str, None] = {}
    for one in heard:
        parts = one.headers.get("x-wellspoken-repairs", "").split(",")
        for comment in _REPAIRS.findall(one.body):
            parts += comment.decode("ascii", "replace").split(",")
        found |= dict.fromkeys(part.partition("=")[0].strip() for part in parts)
    for nothing in ("", "none"):
        found.pop(nothing, None)
    return tuple(found)
