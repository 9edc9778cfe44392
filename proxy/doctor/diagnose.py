"""Each probe on both sides: the backend, and a proxy in front of it."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wellspoken.proxy.config import Config, load
from wellspoken.proxy.config.backend_headers import read_headers
from wellspoken.proxy.config.values import find_endpoint, normal_url, read_key
from wellspoken.proxy.doctor import probe_requests as requests
from wellspoken.proxy.doctor.contract import error_words
from wellspoken.proxy.doctor.probe import (
    Probe,
    ProbeContext,
    ProbeRequest,
    ProbeResponse,
    Report,
    Result,
    Unclear,
    Verdict,
    judge,
    plain,
)
from wellspoken.proxy.doctor.sender import Sender
from wellspoken.proxy.lifecycle.build import build, version
from wellspoken.proxy.server import Service
from wellspoken.proxy.tls.certificates import client_context
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.target import stop_detectors

SPARE: Final = 2.0  # seconds that the proxy's answer may take longer than the backend's
NAMELESS: Final = "default"
OnProbe = Callable[[int, int, str], None]
"""Is told how many probes of how many are done, and which one comes."""

_REPAIRS: Final = re.compile(rb"^: repairs (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class DoctorOptions:
    """What server to probe, and how; `limit` in seconds for one answer. `key` is a reference.

    `tls`: as [backend.tls]. `table`: more of a [[backend]], over which the rest wins. `name`: what
    a configuration calls the server.
    """

    url: str
    probes: Sequence[Probe]
    adapter: str | None = None
    key: str | None = None
    model: str | None = None
    tokenizer: str | None = None
    limit: float = 30.0
    tls: Mapping[str, str] | None = None
    table: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


class NoServer(Exception):
    """The server cannot be examined; the text says why and what to do."""


async def diagnose(
    options: DoctorOptions, on_probe: OnProbe = lambda done, count, name: None
) -> Report:
    """Run the probes and return what came of them.

    Raises ConfigError for a URL, a key or an adapter that cannot be used.
    """
    began = time.perf_counter()
    url = normal_url(options.url)
    endpoint = find_endpoint(options.url)
    notes = [f"{endpoint} is an endpoint and was taken off the URL."] if endpoint else []
    async with _open_sides(options) as (service, backend, proxy):
        on_probe(0, len(options.probes), "first words")
        try:
            context = await _find_model(options, url, backend, proxy, notes)
        except NoServer as error:
            spent = time.perf_counter() - began
            return Report(url, version(), seconds=spent, error=str(error), name=options.name)
        results = []
        for done, probe in enumerate(options.probes):
            on_probe(done, len(options.probes), probe.name)
            results.append(await _run_probe(probe, context, backend, proxy))
        return Report(
            url=url,
            version=version(),
            model=context.model,
            backend=_describe_backend(service),
            results=tuple(results),
            seconds=time.perf_counter() - began,
            notes=tuple(notes),
            name=options.name,
        )


@asynccontextmanager
async def _open_sides(options: DoctorOptions) -> AsyncIterator[tuple[Service, Sender, Sender]]:
    """Give a service on a port of this machine, the backend as it is, and as the service has it.

    Whoever else is on this machine has no use of the port: a key that is nobody's guards it.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wellspoken-")))
        guard = folder / "key"
        guard.write_text(secrets.token_hex(16))
        config = _config(options, f"file:{guard}")
        service = build(config)
        part = config.backend[0]
        key = read_key(part.key) if part.key is not None else None
        headers = read_headers(part.headers)
        stack.push_async_callback(service.stop)
        stack.push_async_callback(stop_detectors, service.state.router.targets)
        host, port = await service.start()
        url = normal_url(options.url)
        tls = client_context(url, part.tls)
        raw = Upstream(url, config.timeouts, key=key, headers=headers, tls=tls)
        stack.push_async_callback(raw.close)
        front = Upstream(f"http://{host}:{port}", config.timeouts, key=guard.read_text())
        stack.push_async_callback(front.close)
        explained = b"x-wellspoken-explain: 1\r\n"
        yield service, Sender(raw, options.limit), Sender(front, options.limit + SPARE, explained)


def _config(options: DoctorOptions, guard: str) -> Config:
    """Return the configuration of the proxy; the environment has no say, as it may open a store."""
    given = {name: getattr(options, name) for name in ("url", "adapter", "key", "tokenizer", "tls")}
    table = {key: value for key, value in given.items() if value is not None}
    limit = options.limit
    return load(
        None,
        {
            "server": {"listen": "127.0.0.1:0"},
            "auth": {"keys": [guard]},
            "timeouts": {
                "connect": min(limit, 5.0),
                **dict.fromkeys(
                    ("first_token_body", "first_token_stream", "between_chunks"), limit
                ),
            },
            "backend": [{**options.table, **table}],
        },
        {},
    )


def _describe_backend(service: Service) -> str:
    target = service.state.router.targets[0]
    if target.detector is not None:
        return target.detector.described
    return f"adapter {target.backend.name}"


async def _find_model(
    options: DoctorOptions, url: str, backend: Sender, proxy: Sender, notes: list[str]
) -> ProbeContext:
    """Find out the model, and whether there is a server at all. Raises NoServer."""
    listed = await backend.send(ProbeRequest("/v1/models", method="GET"))
    if listed.failure and not listed.status and not listed.late:
        raise NoServer(_reword(listed.failure))
    names = _list_models(listed.body)
    model = options.model or next(iter(names), NAMELESS)
    if options.model is None and not names:
        notes.append(
            f"It lists no model, so it is asked for {NAMELESS!r}: name another with --model."
        )
    context = ProbeContext(model, listed=model in names, now=time.time())
    question = requests.chat(context)
    raw = await backend.send(question)
    if raw.status in (401, 403):
        raise NoServer(_explain_refused_key(options, url, raw))
    if raw.late and not raw.status:
        listing = ", though it lists its models" if names else ""
        raise NoServer(
            f"The backend at {url} does not answer a chat request{listing}: {raw.failure}. "
            "Look at its log; if it is only slow, give it longer: --timeout 120."
        )
    repaired = await proxy.send(question)
    if not _is_answer(raw) and not _is_answer(repaired):
        if not _is_answer(await backend.send(requests.completion(context))):
            raise NoServer(_explain_no_answer(url, raw, context, names))
    text = _read_text(repaired) or _read_text(raw)
    return ProbeContext(model, context.listed, text, context.now)


def _reword(failure: str) -> str:
    """Return why there was no answer, for somebody who gave a URL and configured no proxy."""
    return failure.replace("host and port that the proxy was given", "URL's host and port")


def _decode(body: bytes) -> Any:
    """Return the JSON value of a body, None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _list_models(body: bytes) -> list[str]:
    """Return the models' names, in whatever form a server lists them."""
    decoded = _decode(body)
    items = decoded.get("data") if isinstance(decoded, dict) else decoded
    listed = items if isinstance(items, list) else []
    found = [one.get("id") for one in listed if isinstance(one, dict)]
    return [name for name in found if isinstance(name, str) and name and _is_unicode(name)]


def _is_unicode(text: str) -> bool:
    """Say whether a text can be sent: JSON's escapes can hold half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_answer(response: ProbeResponse) -> bool:
    """Say whether a request was answered, with JSON."""
    whole = response.status == 200 and not response.failure
    return whole and isinstance(_decode(response.body), dict)


def _explain_refused_key(options: DoctorOptions, url: str, response: ProbeResponse) -> str:
    said = f"status {response.status}: {error_words(response.body)}"
    key = options.key or options.table.get("key")
    if key is None:
        return (
            f"The backend at {url} wants a key ({said}). Name it with --key env:NAME or file:PATH."
        )
    return f"The backend at {url} refuses the key of {key} ({said}). Check that it is the one."


def _explain_no_answer(
    url: str, response: ProbeResponse, context: ProbeContext, names: list[str]
) -> str:
    """Return why a chat request got no answer, and what to do."""
    failure, status = response.failure, response.status
    server, said = f"The backend at {url}", f"status {status}: {error_words(response.body)}"
    if failure.startswith("The backend"):
        return _reword(failure)
    if failure:
        longer = "; if it is only slow, give it longer: --timeout 120" if response.late else ""
        return f"{server} answers no chat request: {failure}. Look at its log{longer}."
    where = response.headers.get("location", "")
    if 300 <= status < 400 and where:
        return (
            f"{server} sends requests on to {plain(where)} (status {status}), where the "
            "proxy does not follow. If that is the server you mean, give its URL."
        )
    if response.content_type == "text/html" or response.body.lstrip()[:1] == b"<":
        return (
            f"{server} answers with a web page ({said}). Check that the URL is that of an LLM "
            "server's API, and that what stands before it reaches it."
        )
    if status == 404 and names:
        known = plain(", ".join(names[:5]))
        return (
            f"{server} does not answer for the model {context.model!r} ({said}). "
            f"Name another with --model: {known}."
        )
    if status == 503:
        return f"{server} is not ready ({said}). Run this again when it is."
    return (
        f"{server} answers no chat request ({said}). Check the URL, the model (--model NAME), "
        "and the server's log; what it is may be said with --adapter."
    )


def _read_text(response: ProbeResponse) -> str:
    """Return the text of a chat answer, "" where there is none."""
    try:
        found = _decode(response.body)["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        return ""
    return found if isinstance(found, str) and _is_unicode(found) else ""


async def _run_probe(probe: Probe, context: ProbeContext, backend: Sender, proxy: Sender) -> Result:
    began = time.perf_counter()
    try:
        sent = probe.requests(context)
        theirs = await backend.send_all(sent, together=probe.together)
        for one in theirs:
            if one.unsent:
                raise Unclear(one.failure)
    except Unclear as error:
        nothing = Verdict("unclear", str(error))
        return Result(probe, nothing, nothing)
    ours = await proxy.send_all(sent, together=probe.together)
    return Result(
        probe,
        judge(probe, theirs, context),
        judge(probe, ours, context),
        _list_repairs(ours),
        time.perf_counter() - began,
    )


def _list_repairs(responses: Sequence[ProbeResponse]) -> tuple[str, ...]:
    """Return the names of what the proxy repaired: a header says it, or a comment."""
    found: dict[str, None] = {}
    for one in responses:
        parts = one.headers.get("x-wellspoken-repairs", "").split(",")
        for comment in _REPAIRS.findall(one.body):
            parts += comment.decode("ascii", "replace").split(",")
        found |= dict.fromkeys(part.partition("=")[0].strip() for part in parts)
    for nothing in ("", "none"):
        found.pop(nothing, None)
    return tuple(found)
