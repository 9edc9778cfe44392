"""The service: dispatch of requests to handlers, and the life of the whole from start to drain."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from wellspoken.adapters.requests.embeddings import EMBEDDINGS
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config import Config
from wellspoken.proxy.config.checks import counts_tokens
from wellspoken.proxy.config.values import is_loopback, parse_listen
from wellspoken.proxy.endpoints import health, models, passthrough, stored, ui
from wellspoken.proxy.endpoints.backend_metrics import backend_metrics
from wellspoken.proxy.endpoints.capabilities import capabilities
from wellspoken.proxy.endpoints.chat import chat
from wellspoken.proxy.endpoints.completions import completions
from wellspoken.proxy.endpoints.embeddings import embeddings
from wellspoken.proxy.endpoints.overview import overview
from wellspoken.proxy.endpoints.preflight import preflight
from wellspoken.proxy.http.auth import Keys
from wellspoken.proxy.http.connection import Listener
from wellspoken.proxy.http.cors import Origins, is_preflight
from wellspoken.proxy.http.requests import refuse
from wellspoken.proxy.http.sockets import BACKLOG
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.relay.answer import note_failure
from wellspoken.proxy.relay.call import Call, Hooks, Response, Route, UnknownUrl, begin_call
from wellspoken.proxy.relay.outcome import RequestCounter
from wellspoken.proxy.state import State
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.readiness import Readiness
from wellspoken.proxy.upstream.target import Router, Target

if TYPE_CHECKING:
    from wellspoken.proxy.store.completions import CompletionStore

ROUTES: dict[str, Route] = {
    path: route
    for paths, route in (
        (
            ("/v1/chat/completions", "/chat/completions"),
            Route("POST", "chat_completions", chat, asks=True),
        ),
        (
            ("/v1/completions", "/completions", "/completion"),
            Route("POST", "completions", completions, asks=True),
        ),
        (("/v1/models", "/models"), Route("GET", "models", models.models)),
        (("/v1/capabilities",), Route("GET", "capabilities", capabilities)),
        (("/livez",), Route("GET", "livez", health.livez, needs_key=False)),
        (("/readyz", "/health"), Route("GET", "readyz", health.readyz, needs_key=False)),
        (("/metrics",), Route("GET", "metrics", health.metrics, needs_key=False)),
        (
            ("/backend/metrics",),
            Route("GET", "backend_metrics", backend_metrics, needs_key=False),
        ),
        (("/openapi.json",), Route("GET", "openapi", health.openapi, needs_key=False)),
    )
    for path in paths
}
EXISTING = (
    "POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /v1/models/{id}, "
    "GET /v1/chat/completions, GET, POST and DELETE /v1/chat/completions/{id}, "
    "GET /v1/chat/completions/{id}/messages, "
    "GET /, GET /livez, GET /readyz, GET /health, GET /metrics, GET /backend/metrics, "
    "GET /openapi.json, GET /v1/capabilities"
)
"""What the error for any other path lists, beside what passes through."""

_OVERVIEW = Route("GET", "overview", overview, needs_key=False)


async def _show_front(call: Call) -> Response:
    """Return the page of the backend with `ui = true`, the proxy's own where that has none."""
    target = ui.target_of(call.state.router)
    if target is not None:
        await target.ready()
        if target.backend.ui is not None:
            return await ui.page(call)
    return await overview(call)


_FRONT = Route("GET", "ui", _show_front, needs_key=False)
_PREFLIGHT = Route("OPTIONS", "preflight", preflight, needs_key=False)
_MODEL = Route("GET", "model", models.model)
_PAGE_FILE = Route("GET", "ui", ui.page, needs_key=False)
_PAGE_READS = Route("GET", "ui", ui.page)


class Service:
    """One proxy: its configuration, its backends, its metrics, and the socket it listens on."""

    def __init__(
        self, config: Config, router: Router, metrics: Metrics, store: CompletionStore | None = None
    ) -> None:
        self.state = State(
            config=config,
            router=router,
            readiness=Readiness(router.targets),
            keys=Keys.of(config),
            metrics=metrics,
            store=store,
            expose=metrics.expose,
            loop=asyncio.get_running_loop(),
            log=logging.getLogger("wellspoken"),
            origins=_origins(config),
        )
        self.hooks = Hooks([RequestCounter(metrics)])
        # Asked at a scrape, rather than set twice by each request.
        metrics.inflight.set_function(lambda: self.state.inflight)
        self._idle: asyncio.Future[None] | None = None  # of a drain that waits for the last answer
        self._hosts = _hosts(config)
        self._retired: list[Upstream] = []  # of removed backends, with requests on their way
        self._servers: list[asyncio.Server] = []
        self.listener = Listener(
            self.handle,
            self._count_refusal,
            **_connection(config),
            access_log=None,
            auto_decompress=False,
            logger=self.state.log,
        )

    def become(self, config: Config, targets: Sequence[Target], keys: Keys) -> None:
        """Take over a configuration, in one step of the loop.

        A request keeps the target that it has. What a client's connection is allowed holds for new
        ones; `server.listen` is not looked at again.
        """
        state = self.state
        gone = [target for target in state.router.targets if target not in targets]
        known = [target.name for target in targets if target in state.router.targets]
        keep = config.limits.scoring == state.config.limits.scoring
        state.scoring = {
            name: scorer for name, scorer in state.scoring.items() if keep and name in known
        }
        state.config = config
        state.recipes.clear()
        state.origins = _origins(config)
        state.router = Router(targets)
        state.keys = keys
        state.readiness = Readiness(targets)  # what a probe under way finds is no longer asked
        self._hosts = _hosts(config)
        self.listener.settings.update(_connection(config))
        for target in targets:
            if target.upstream is not None:
                target.upstream.timeouts = config.timeouts
        self._retired = [upstream for upstream in self._retired if upstream.busy]
        for upstream in (target.upstream for target in gone):
            if upstream is not None:
                upstream.retire()
                self._retired.append(upstream)

    async def start(
        self, *, shared: bool = False, sockets: Sequence[socket.socket] = ()
    ) -> tuple[str, int]:
        """Listen; return the address, with the port that port 0 became. Raises OSError.

        `shared`: other processes listen there too, and the system deals the connections out.
        `sockets`: those that listen already.
        """
        host, port = parse_listen(self.state.config.server.listen)
        create = self.state.loop.create_server
        if sockets:
            self._servers = [
                await create(self.listener, sock=each, backlog=BACKLOG) for each in sockets
            ]
        else:
            made = await create(
                self.listener, host, port, backlog=BACKLOG, reuse_port=shared or None
            )
            self._servers = [made]
        return host, self._servers[0].sockets[0].getsockname()[1]

    async def drain(self) -> None:
        """Stop in order: not ready, then no new connections, then the end of what is open.

        Meanwhile requests go on, also new ones on open connections, whose answers end these
        (`draining`). Nothing is cancelled here: what is open after it, `stop` cuts off. Cancel it
        to stop at once; it holds nothing that would have to be given back.
        """
        state = self.state
        state.draining = True
        await asyncio.sleep(state.config.server.drain_delay)
        for server in self._servers:
            server.close()
        self.listener.close_idle()
        try:
            async with asyncio.timeout(state.config.server.drain_timeout):
                while state.inflight:
                    self._idle = state.loop.create_future()
                    await self._idle
        except TimeoutError:
            state.log.warning("%d requests did not end in time and are cut off", state.inflight)
        await self.listener.flush(1.0)

    async def stop(self) -> None:
        """Close the socket, every connection of a client and every one to a backend."""
        self.state.draining = self.state.stopping = True
        for server in self._servers:
            server.close()
        await self.listener.shutdown(0.01)
        present = [target.upstream for target in self.state.router.targets]
        for upstream in (*present, *self._retired):
            if upstream is not None:
                await upstream.close()

    async def handle(self, request: BaseRequest) -> Response:
        """Answer one request (aiohttp calls this), whatever happens on the way."""
        call = begin_call(self.state, self.hooks, request)
        self.state.inflight += 1
        code = 499  # until something was answered: the client has left
        try:
            try:
                refuse(request, call.notable, self._hosts)
                route = self._route(call)
                if route.asks and self.state.inflight > self.state.config.limits.inflight:
                    raise _too_many()
                answer = await route.handler(call)
            except Exception as error:
                answer = _explain(call, error)
            await answer.write_eof()
            code = answer.status
            return answer
        except (asyncio.CancelledError, ConnectionError):
            if not self.state.draining:
                self.state.metrics.disconnects.labels(call.phase).inc()
            raise
        finally:
            if call.routing.engine is not None:
                call.routing.engine.leave()
            self.state.inflight -= 1
            if self._idle is not None and not self.state.inflight and not self._idle.done():
                self._idle.set_result(None)
            self._tell_observers(call, code)

    def _count_refusal(self, request: BaseRequest, code: int) -> str:
        """Count what was refused before it was a request; return the id of its answer."""
        call = begin_call(self.state, self.hooks, request)
        self._tell_observers(call, code)
        return call.id

    def _tell_observers(self, call: Call, code: int) -> None:
        """Tell the observers of a request; what one fails at changes no answer and no other."""
        for tell in self.hooks.observers:
            try:
                tell(call, code)
            except Exception as error:
                note_failure(call, error)

    def _route(self, call: Call) -> Route:
        """Return the route of a request that may have it, and note its owner.

        Raises RequestError: 401 without a key where one is needed, also for what is not there; 404
        or 405 for everything that is not there.
        """
        path, method = call.path, call.request.method
        if method == "OPTIONS" and is_preflight(call.request.headers):
            call.routing.route = _PREFLIGHT.label
            return _PREFLIGHT  # to which a browser adds no key
        found = ROUTES.get(path)
        routes: tuple[Route, ...] = (found,) if found is not None else ()
        if found is None or method != found.method:
            below = stored.routes(path)
            if found is None and (not below or counts_tokens(path)):
                found = self._elsewhere(path, method)
                below = below if found is None else ()
            routes = below if found is None else (*below, found)
            wanted = "GET" if method == "HEAD" else method
            found = next((route for route in routes if route.method == wanted), None)
        if routes:
            call.routing.route = (found or routes[0]).label
        if not routes or routes[-1].needs_key:  # of several the last is not the store's
            call.routing.owner = self.state.keys.owner(call.request.headers)
        if not routes:
            raise UnknownUrl
        if found is None:
            raise _wrong_method(call, routes)
        return found

    def _elsewhere(self, path: str, method: str) -> Route | None:
        """Return what answers a path that is not the proxy's own by its whole name."""
        if path.startswith(("/v1/models/", "/models/")):
            return _MODEL
        if passthrough.is_reachable(self.state.router, path):
            handler = embeddings if path in EMBEDDINGS else passthrough.pass_request
            gets = method in ("GET", "HEAD") and passthrough.is_read(self.state.router, path)
            return Route("GET" if gets else "POST", passthrough.label(path), handler, asks=True)
        if method in ("GET", "HEAD") and ui.target_of(self.state.router) is not None:
            if path == "/":
                return _FRONT
            return _PAGE_FILE if ui.is_file(path) else _PAGE_READS
        return _OVERVIEW if path == "/" else None


def _explain(call: Call, error: Exception) -> Response:
    """Return what a client is told of a failure before anything was sent."""
    if isinstance(error, ConnectionError):
        raise error
    if isinstance(error, RequestPayloadError):
        error = RequestError("The request's body is not framed as HTTP/1.1. Send it again.")
    elif isinstance(error, UnknownUrl):
        error = _unknown_url(call)
    if isinstance(error, RequestError):
        return call.refuse(error)
    return call.fail(note_failure(call, error))


def _too_many() -> RequestError:
    return RequestError(
        "The proxy is at its limit of open requests. Wait a moment, or raise limits.inflight.",
        status=429,
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": "1"},
    )


def _unknown_url(call: Call) -> RequestError:
    passing = sorted({path for target in call.state.router.targets for path in target.passes})
    also = "".join(f", POST {path}" for path in passing)
    return RequestError(
        f"Unknown request URL: {call.request.method[:16]} {call.path[:200]}. This proxy answers "
        f"{EXISTING}{also}.",
        status=404,
        code="unknown_url",
    )


def _wrong_method(call: Call, routes: Sequence[Route]) -> RequestError:
    """Return the error for a method that a path does not take."""
    allowed = [route.method for route in routes]
    return RequestError(
        f"Not allowed to {call.request.method[:16]} on {call.path[:200]}. "
        f"Use {' or '.join(allowed)}.",
        status=405,
        code="method_not_supported",
        headers={"Allow": ", ".join(allowed).replace("GET", "GET, HEAD")},
    )


def _connection(config: Config) -> dict[str, float]:
    """Return what a client's connection is allowed, as `Connection` takes it."""
    timeouts, limits = config.timeouts, config.limits
    return {
        "head_seconds": timeouts.client_header,
        "head_size": limits.header,
        "max_line_size": limits.header,
        "max_field_size": limits.header,
        "keepalive_timeout": timeouts.client_keep_alive,
    }


def _origins(config: Config) -> Origins | None:
    return Origins(config.server.cors) if config.server.cors else None


def _hosts(config: Config) -> frozenset[str] | None:
    """Return the extra Host names of a loopback bind; None where every name is welcome."""
    host, _ = parse_listen(config.server.listen)
    if not is_loopback(host):
        return None
    return frozenset(name.lower() for name in config.server.hosts)
