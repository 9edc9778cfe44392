"""The service: dispatch of requests to handlers, and the life of the whole from start to drain."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp.web_protocol import RequestPayloadError

from wellspoken.adapters.embeddings import EMBEDDINGS
from wellspoken.adapters.request_error import RequestError, error_json
from wellspoken.proxy import keeping, pages, passing, stored_completions, ui
from wellspoken.proxy.answer import OUR_FAULT
from wellspoken.proxy.auth import Keys
from wellspoken.proxy.backend_metrics import backend_metrics
from wellspoken.proxy.capabilities import capabilities
from wellspoken.proxy.chat import chat
from wellspoken.proxy.completions import completions
from wellspoken.proxy.config_values import is_loopback, parse_listen
from wellspoken.proxy.connection import Connection, Listener
from wellspoken.proxy.embeddings import embeddings
from wellspoken.proxy.failures import UpstreamError
from wellspoken.proxy.metrics import OTHER, Metrics
from wellspoken.proxy.replies import EVENTS, JSON, EventStream, Reply, identifying
from wellspoken.proxy.replying import NO_RETRY, retrying
from wellspoken.proxy.requests import refuse, request_id, unknown_url
from wellspoken.proxy.waiting import entered

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest
    from aiohttp.web_response import StreamResponse

    from wellspoken.adapters.events import Fault
    from wellspoken.adapters.exchange import Exchange
    from wellspoken.engine.supervisor import Supervisor
    from wellspoken.proxy.config import Config
    from wellspoken.proxy.routing import Router, Target
    from wellspoken.proxy.store.store import Store

Answer = Reply | EventStream
Handler = Callable[["Call"], Awaitable[Answer]]
Route = tuple[str, str, Handler]
"""A method, the route's label in metrics, and the handler."""

ROUTES: dict[str, Route] = {
    path: route
    for paths, route in (
        (("/v1/chat/completions", "/chat/completions"), ("POST", "chat_completions", chat)),
        (
            ("/v1/completions", "/completions", "/completion"),
            ("POST", "completions", completions),
        ),
        (("/v1/models", "/models"), ("GET", "models", pages.models)),
        (("/v1/capabilities",), ("GET", "capabilities", capabilities)),
        (("/livez",), ("GET", "livez", pages.livez)),
        (("/readyz", "/health"), ("GET", "readyz", pages.readyz)),
        (("/metrics",), ("GET", "metrics", pages.metrics)),
        (("/backend/metrics",), ("GET", "backend_metrics", backend_metrics)),
        (("/openapi.json",), ("GET", "openapi", pages.openapi)),
    )
    for path in paths
}
_MODEL: Route = ("GET", "model", pages.model)
_PAGE: Route = ("GET", "ui", ui.page)
_ASKING: frozenset[Handler] = frozenset(
    {chat, completions, embeddings, passing.passed, *stored_completions.HANDLERS}
)
"""Handlers that ask a backend or the store, so that `limits.inflight` holds for them."""
_OPEN: frozenset[Handler] = frozenset(
    {pages.livez, pages.readyz, pages.metrics, backend_metrics, pages.openapi}
)
"""Handlers of what needs no key: what machines look at, and a document that everybody may have."""


class Call:
    """One request on its way: its id, what is known of it so far, and the ways to answer it."""

    __slots__ = (
        "backend",
        "engine",
        "hide",
        "id",
        "kept",
        "model",
        "owner",
        "path",
        "phase",
        "request",
        "route",
        "service",
        "started",
        "streamed",
        "streams",
        "stripped",
        "warning",
    )

    def __init__(self, service: Service, request: BaseRequest) -> None:
        self.service = service
        self.request = request
        self.id = request_id(request)
        self.path = request.raw_path.partition("?")[0]
        self.started = service.loop.time()
        self.route = "other"
        self.backend = ""
        self.hide: Callable[[bytes], bytes] = bytes  # takes the backend's key out of an error
        self.model = OTHER
        self.streams = False
        self.streamed = False
        self.stripped = b""  # the header line that names the keys taken out of the request
        self.owner = ""  # whose stored completions the client may see (auth.owner_of)
        self.kept: bytes | None = None  # the request, while its answer is to be stored
        self.warning = ""  # why it was not stored
        self.phase = "request"  # what a client that leaves now did not wait for
        self.engine: Supervisor | None = None  # what counts this request as open

    def routed(self, target: Target, model: str, streams: bool) -> None:
        """Note where the request goes."""
        self.backend = target.name
        if target.upstream is not None:
            self.hide = target.upstream.hide
        self.model = self.service.router.label(model)
        self.streams = streams

    async def enter(self, target: Target) -> None:
        """Wait for the target's engine, which then runs until the call is over.

        Raises RequestError 503 where it cannot be waited for.
        """
        if target.engine is not None and self.engine is None:
            await entered(target)
            self.engine = target.engine

    def first_token(self) -> None:
        """Note that the first bytes of a streamed answer have left."""
        if not self.streamed:
            self.streamed = True
            self.phase = "streaming"
            waited = self.service.loop.time() - self.started
            self.service.metrics.first_token.labels(self.backend).observe(waited)

    def translated(self, exchange: Exchange) -> None:
        """Count what the answer needed."""
        self.service.metrics.translated(self.backend, exchange)

    def upstream_failed(self, error: UpstreamError) -> None:
        """Count a backend's failure."""
        self.service.metrics.upstream_errors.labels(self.backend, error.reason).inc()

    def lines(self) -> bytes:
        """Return the header lines of an answer that begins now."""
        line = identifying(self.id, self.service.loop.time() - self.started)
        return line + self.stripped + keeping.warned(self) if self.warning else line + self.stripped

    def reply(
        self,
        status: int,
        body: bytes,
        extra: bytes = b"",
        *,
        content_type: bytes = JSON,
        close: bool = False,
    ) -> Reply:
        """Return a whole answer, with the header lines that every one has."""
        if status >= 400:
            extra = retrying(status, body, extra)
        return Reply(
            self.request,
            status,
            body,
            content_type=content_type,
            extra=self.lines() + extra,
            close=close or self.service.draining,
        )

    def stream(
        self, status: int = 200, content_type: bytes = EVENTS, heartbeat: float = 0.0
    ) -> EventStream:
        """Return an answer to be written piece by piece, with the same header lines."""
        return EventStream(
            self.request,
            status=status,
            content_type=content_type,
            lines=self.lines,
            heartbeat=heartbeat,
            close=self.service.draining,
        )

    def fault(self, fault: Fault, extra: bytes = b"") -> Reply:
        """Return a failure as an HTTP answer; `extra` are header lines."""
        body = self.hide(error_json(fault.message, fault.type, fault.param, fault.code))
        return self.reply(fault.status, body, extra or (NO_RETRY if fault.retry is False else b""))

    def refused(self, error: RequestError) -> Reply:
        """Return a refusal; one that leaves a body unread ends the connection."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
        unread = not self.request.content.is_eof()
        if error.status == 408 and isinstance(self.request.protocol, Connection):
            self.request.protocol.end_now()
        return self.reply(error.status, error.body(), lines.encode("ascii"), close=unread)


class Service:
    """One proxy: its configuration, its backends, its metrics, and the socket it listens on."""

    def __init__(
        self, config: Config, router: Router, metrics: Metrics, store: Store | None = None
    ) -> None:
        self.config = config
        self.store = store
        self.router = router
        self.keys = Keys.of(config)
        self.metrics = metrics
        self.loop = asyncio.get_running_loop()
        self.log = logging.getLogger("wellspoken")
        self.draining = False
        self.readiness = pages.Readiness(self)
        self.inflight = 0
        metrics.watch_inflight(lambda: self.inflight)
        self._idle = asyncio.Event()
        self._idle.set()
        self._hosts = _hosts(config)
        self._scoring: dict[str, asyncio.Semaphore] = {}
        self._server: asyncio.Server | None = None
        timeouts, limits = config.timeouts, config.limits
        self.listener = Listener(
            self.handle,
            head_seconds=timeouts.client_header,
            head_size=limits.header,
            max_line_size=limits.header,
            max_field_size=limits.header,
            keepalive_timeout=timeouts.client_keep_alive,
            access_log=None,
            auto_decompress=False,
            logger=self.log,
        )

    def scoring(self, target: Target) -> asyncio.Semaphore:
        """Return what bounds how many prompts a backend scores at a time."""
        bound = self._scoring.get(target.name)
        if bound is None:
            bound = self._scoring[target.name] = asyncio.Semaphore(self.config.limits.scoring)
        return bound

    @staticmethod
    def new_id() -> str:
        """Return a fresh random id of 24 characters."""
        return secrets.token_hex(12)

    async def start(self) -> tuple[str, int]:
        """Listen; return the address, with the port that port 0 became. Raises OSError."""
        host, port = parse_listen(self.config.server.listen)
        self._server = await self.loop.create_server(self.listener, host, port, backlog=1024)
        return host, self._server.sockets[0].getsockname()[1]

    async def drain(self) -> None:
        """Stop in order: not ready, then no new connections, then the end of what is open.

        Cancel it to stop at once.
        """
        self.draining = True
        await asyncio.sleep(self.config.server.drain_delay)
        if self._server is not None:
            self._server.close()
        self.listener.close_idle()
        try:
            async with asyncio.timeout(self.config.server.drain_timeout):
                await self._idle.wait()
        except TimeoutError:
            self.log.warning("%d requests did not end in time and are cut off", self.inflight)
        await self.listener.flushed(1.0)

    async def stop(self) -> None:
        """Close the socket, every connection of a client and every one to a backend."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        await self.listener.shutdown(0.01)
        for target in self.router.targets:
            if target.upstream is not None:
                await target.upstream.close()

    async def handle(self, request: BaseRequest) -> StreamResponse:
        """Answer one request (aiohttp calls this), whatever happens on the way."""
        call = Call(self, request)
        self.inflight += 1
        self._idle.clear()
        code = 499  # until something was answered: the client has left
        try:
            answer = await self._answer(call)
            await answer.write_eof()
            code = answer.status
            return answer.response()
        except (asyncio.CancelledError, ConnectionError):
            if not self.draining:
                self.metrics.disconnects.labels(call.phase).inc()
            raise
        finally:
            if call.engine is not None:
                call.engine.leave()
            self.inflight -= 1
            if not self.inflight:
                self._idle.set()
            self.metrics.finished(
                call.route,
                call.backend,
                call.model,
                code,
                "true" if call.streams else "false",
                self.loop.time() - call.started,
            )

    async def _answer(self, call: Call) -> Answer:
        try:
            refuse(call.request, self._hosts)
            handler = self._route(call)
            if self.inflight > self.config.limits.inflight and handler in _ASKING:
                raise RequestError(
                    "The proxy is at its limit of open requests. Wait a moment, or raise "
                    "limits.inflight.",
                    status=429,
                    type="rate_limit_error",
                    code="rate_limit_exceeded",
                    headers={"Retry-After": "1"},
                )
            return await handler(call)
        except RequestError as error:
            return call.refused(error)
        except UpstreamError as error:
            call.upstream_failed(error)
            return call.fault(error.fault)
        except RequestPayloadError:
            return call.refused(
                RequestError("The request's body is not framed as HTTP/1.1. Send it again.")
            )
        except ConnectionError:
            raise
        except Exception as error:
            self.failed(error)
            return call.fault(OUR_FAULT)

    def failed(self, error: Exception) -> None:
        """Log a failure of the proxy's own."""
        self.log.error("a request failed in the proxy itself", exc_info=error)

    def _route(self, call: Call) -> Handler:
        """Return the handler of a request that may have it, and note its owner.

        Raises RequestError: 401 without a key where one is needed, also for what is not there; 404
        or 405 for everything that is not there.
        """
        method = call.request.method
        found = ROUTES.get(call.path)
        stored = None
        if found is None or method != found[0]:
            stored = stored_completions.routes(call.path)
        if found is None and stored is None:
            found = self._elsewhere(call.path, method)
        routes: dict[str, tuple[str, Handler]] = {**stored} if stored is not None else {}
        if found is not None:
            routes[found[0]] = found[1:]
        if routes:
            call.route = next(iter(routes.values()))[0]
        if found is None or not _needs_no_key(found, call.path):
            call.owner = self.keys.owner(call.request.headers)
        if not routes:
            raise unknown_url(call)
        return _by_method(call, routes)

    def _elsewhere(self, path: str, method: str) -> Route | None:
        """Return what answers a path that is not the proxy's own by its whole name."""
        if path.startswith(("/v1/models/", "/models/")):
            return _MODEL
        if passing.reachable(self, path):
            return "POST", passing.label(path), embeddings if path in EMBEDDINGS else passing.passed
        return _PAGE if method in ("GET", "HEAD") and ui.target_of(self) is not None else None


def _needs_no_key(route: Route, path: str) -> bool:
    return route[2] in _OPEN or (route is _PAGE and ui.is_file(path))


def _by_method(call: Call, routes: Mapping[str, tuple[str, Handler]]) -> Handler:
    """Return the handler of the request's method; raises RequestError 405 for another one."""
    method = call.request.method
    found = routes.get("GET" if method == "HEAD" else method)
    if found is not None:
        call.route, handler = found
        return handler
    raise RequestError(
        f"Not allowed to {method[:16]} on {call.path[:200]}. Use {' or '.join(routes)}.",
        status=405,
        code="method_not_supported",
        headers={"Allow": ", ".join(routes).replace("GET", "GET, HEAD")},
    )


def _hosts(config: Config) -> frozenset[str] | None:
    """Return the extra Host names of a loopback bind; None where every name is welcome."""
    host, _ = parse_listen(config.server.listen)
    if not is_loopback(host):
        return None
    return frozenset(name.lower() for name in config.server.hosts)
