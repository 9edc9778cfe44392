"""The service: dispatch of requests to handlers, and the life of the whole from start to drain."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.balance.looks import Looks
from wellspoken.proxy.balance.router import Router
from wellspoken.proxy.config import Config
from wellspoken.proxy.config.values import is_reached_from_elsewhere, is_unix, parse_listen
from wellspoken.proxy.http.acceptor import Acceptor
from wellspoken.proxy.http.auth import Keys
from wellspoken.proxy.http.cors import Origins
from wellspoken.proxy.http.listener import Listener
from wellspoken.proxy.http.requests import refuse
from wellspoken.proxy.http.sockets import listening
from wellspoken.proxy.limits.budget import MemoryBudget, default_limit
from wellspoken.proxy.limits.descriptors import default_connections
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.relay.admission import settle
from wellspoken.proxy.relay.answer import note_failure
from wellspoken.proxy.relay.call import Call, Hooks, Response, UnknownUrl, begin_call
from wellspoken.proxy.relay.outcome import RequestCounter
from wellspoken.proxy.routes import find_admin_route, find_route, unknown_url
from wellspoken.proxy.state import State
from wellspoken.proxy.store.memory_responses import open_responses
from wellspoken.proxy.tls.certificates import ServerContexts, server_contexts
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.readiness import Readiness
from wellspoken.proxy.upstream.target import Target

if TYPE_CHECKING:
    from wellspoken.proxy.store.completions import CompletionStore

ADMIN_CONNECTIONS: Final = 50
"""At `server.admin`, where those who look after the proxy connect, whatever clients do."""


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
            admin=Keys.of_admin(config),
            metrics=metrics,
            store=store,
            responses=open_responses(config, store),
            expose=metrics.expose,
            loop=asyncio.get_running_loop(),
            log=logging.getLogger("wellspoken"),
            origins=_origins(config),
            memory=MemoryBudget(_memory(config), metrics.refused_memory.inc),
        )
        self.hooks = Hooks([RequestCounter(metrics)])
        # Asked at a scrape, rather than set twice by each request.
        metrics.inflight.set_function(lambda: self.state.inflight)
        metrics.held.set_function(lambda: self.state.memory.used)
        metrics.servers.watch(lambda: self.state.router.targets)
        self.looks = Looks()
        self._idle: asyncio.Future[None] | None = None  # of a drain that waits for the last answer
        self._hosts, self._admin_hosts = _hosts(config)
        self._retired: list[Upstream] = []  # of removed backends, with requests on their way
        self._servers: list[Acceptor] = []
        self._admin_servers: list[Acceptor] = []
        self.listener, self.admin_listener = (
            Listener(
                handler,
                self._count_refusal,
                most,
                **_connection(config),
                access_log=None,
                auto_decompress=False,
                logger=self.state.log,
            )
            for handler, most in (
                (self.handle, _connections(config)),
                (partial(self.handle, admin=True), ADMIN_CONNECTIONS),
            )
        )
        self._secure(server_contexts(config.tls))

    def become(
        self,
        config: Config,
        targets: Sequence[Target],
        keys: Keys,
        admin: Keys,
        contexts: ServerContexts,
    ) -> None:
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
        state.memory.limit = _memory(config)
        state.recipes.clear()
        state.origins = _origins(config)
        state.router = Router(targets, config.health, config.limits.retries)
        state.keys = keys
        state.admin = admin
        state.readiness = Readiness(targets)  # what a probe under way finds is no longer asked
        self._hosts, self._admin_hosts = _hosts(config)
        for listener in (self.listener, self.admin_listener):
            listener.settings.update(_connection(config))
        self.listener.room.most = _connections(config)
        self._secure(contexts)
        for target in targets:
            if target.upstream is not None:
                target.upstream.timeouts = config.timeouts
        self.looks.watch(targets)
        self._retired = [upstream for upstream in self._retired if upstream.busy]
        for upstream in (target.upstream for target in gone):
            if upstream is not None:
                upstream.retire()
                self._retired.append(upstream)

    def _secure(self, contexts: ServerContexts) -> None:
        """Have the connections to come secured so."""
        self.contexts = contexts
        self.listener.tls, self.admin_listener.tls = contexts.clients, contexts.admin

    async def start(
        self, *, shared: bool = False, sockets: Sequence[socket.socket] = ()
    ) -> tuple[str, int]:
        """Listen; return host and port, the one that port 0 became. Raises OSError.

        Of a unix socket the host is `unix:/path`, the port 0. `shared`: other processes listen
        there too, and the system deals the connections out. `sockets`: those that listen already.
        """
        server = self.state.config.server
        made = sockets or listening(server.listen, shared=shared, mode=int(server.socket_mode, 8))
        self._servers = _serve(self.listener, made)
        return parse_listen(server.listen)[0], _port(made)

    async def start_admin(self, *, shared: bool = False) -> int:
        """Listen at `server.admin`; return the port, 0 where there is none. Raises OSError.

        It is there until the end, also while the service drains.
        """
        server = self.state.config.server
        if server.admin is None:
            return 0
        made = listening(server.admin, shared=shared, mode=int(server.socket_mode, 8))
        self._admin_servers = _serve(self.admin_listener, made)
        return _port(made)

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
        end = state.loop.time() + state.config.server.drain_timeout
        try:
            async with asyncio.timeout_at(end):
                while state.inflight:
                    self._idle = state.loop.create_future()
                    await self._idle
        except TimeoutError:
            state.log.warning("%d requests did not end in time and are cut off", state.inflight)
        await self.listener.flush(max(end - state.loop.time(), 1.0))

    async def stop(self) -> None:
        """Close the socket, every connection of a client and every one to a backend."""
        self.state.draining = self.state.stopping = True
        await self.looks.close()
        for server in (*self._servers, *self._admin_servers):
            server.close()
        await self.listener.shutdown(0.01)
        await self.admin_listener.shutdown(0.01)
        present = [target.upstream for target in self.state.router.targets]
        for upstream in (*present, *self._retired):
            if upstream is not None:
                await upstream.close()

    async def handle(self, request: BaseRequest, admin: bool = False) -> Response:
        """Answer one request (aiohttp calls this), whatever happens on the way.

        `admin`: it came in at `server.admin`.
        """
        call = begin_call(self.state, self.hooks, request)
        self.state.inflight += 1
        code = 499  # until something was answered: the client has left
        holder: str | None = None  # of a slot
        try:
            try:
                refuse(request, call.notable, self._admin_hosts if admin else self._hosts)
                route = find_admin_route(call) if admin else find_route(call)
                if route.asks:
                    client = call.routing.owner or request.remote or ""
                    self.state.slots.take(client, self.state.config.limits)
                    holder = client
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
            call.leave_server()
            if call.results.reservation is not None:
                settle(call, call.results.reservation, code)
            if holder is not None:
                self.state.slots.give_back(holder)
            if call.results.held:
                self.state.memory.give(call.results.held)
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


def _serve(listener: Listener, sockets: Sequence[socket.socket]) -> list[Acceptor]:
    """Have a listener's connections begin at sockets that listen."""
    return [Acceptor(each, listener.take, listener.fail_to_accept) for each in sockets]


def _port(sockets: Sequence[socket.socket]) -> int:
    return 0 if sockets[0].family == socket.AF_UNIX else int(sockets[0].getsockname()[1])


def _explain(call: Call, error: Exception) -> Response:
    """Return what a client is told of a failure before anything was sent."""
    if isinstance(error, ConnectionError):
        raise error
    if isinstance(error, RequestPayloadError):
        error = RequestError("The request's body is not framed as HTTP/1.1. Send it again.")
    elif isinstance(error, UnknownUrl):
        error = unknown_url(call)
    if isinstance(error, RequestError):
        return call.refuse(error)
    return call.fail(note_failure(call, error))


def _connection(config: Config) -> dict[str, float]:
    """Return what a client's connection is allowed, as `Connection` takes it."""
    timeouts, limits = config.timeouts, config.limits
    return {
        "head_seconds": timeouts.client_header,
        "head_size": limits.header,
        "write_seconds": timeouts.client_write,
        "total": timeouts.total,
        "max_line_size": limits.header,
        "max_field_size": limits.header,
        "keepalive_timeout": timeouts.client_keep_alive,
    }


def _memory(config: Config) -> int:
    """Return how many bytes this process may hold."""
    workers = config.server.workers
    return config.limits.memory // workers or default_limit(workers)


def _connections(config: Config) -> int:
    """Return how many connections of clients this process may have."""
    return config.limits.connections or default_connections()


def _origins(config: Config) -> Origins | None:
    return Origins(config.server.cors) if config.server.cors else None


def _hosts(config: Config) -> list[frozenset[str] | None]:
    """Return the extra Host names of `server.listen` and of `server.admin`, where that is loopback.

    None where every name is welcome.
    """
    names = frozenset(name.lower() for name in config.server.hosts)
    # No web page reaches a unix socket, and what does, a server in front, may pass any name on.
    places = (config.server.listen, config.server.admin)
    return [
        None if each and (is_unix(each) or is_reached_from_elsewhere(each)) else names
        for each in places
    ]
