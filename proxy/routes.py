"""Which route answers a request: the paths that the proxy has, and where each is answered."""

from __future__ import annotations

from collections.abc import Sequence

from wellspoken.adapters.requests.embeddings import EMBEDDINGS
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config.checks import counts_tokens
from wellspoken.proxy.endpoints import health, models, passthrough, stored, ui
from wellspoken.proxy.endpoints.backend_metrics import backend_metrics
from wellspoken.proxy.endpoints.capabilities import capabilities
from wellspoken.proxy.endpoints.chat import chat
from wellspoken.proxy.endpoints.completions import completions
from wellspoken.proxy.endpoints.embeddings import embeddings
from wellspoken.proxy.endpoints.overview import overview
from wellspoken.proxy.endpoints.preflight import preflight
from wellspoken.proxy.endpoints.responses import stored_responses
from wellspoken.proxy.endpoints.responses.create_response import create_response
from wellspoken.proxy.http.cors import is_preflight
from wellspoken.proxy.relay.call import Call, Response, Route, UnknownUrl
from wellspoken.proxy.state import State

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
        (
            ("/v1/responses", "/responses"),
            Route("POST", "responses", create_response, asks=True),
        ),
        (("/v1/models", "/models"), Route("GET", "models", models.models)),
        (("/v1/capabilities",), Route("GET", "capabilities", capabilities)),
        (("/livez",), Route("GET", "livez", health.livez, needs_key=False)),
        (("/readyz", "/health"), Route("GET", "readyz", health.readyz, needs_key=False)),
        (("/metrics",), Route("GET", "metrics", health.metrics, needs_key=False, admin=True)),
        (
            ("/backend/metrics",),
            Route("GET", "backend_metrics", backend_metrics, needs_key=False, admin=True),
        ),
        (("/openapi.json",), Route("GET", "openapi", health.openapi, needs_key=False)),
    )
    for path in paths
}
OWN_PATHS = frozenset(ROUTES) - {"/v1/responses", "/responses"}
"""The paths that never pass through; `responses = "pass"` lets those of the responses."""

_READY = Route("GET", "readyz", health.readyz_in_full, needs_key=False)
ADMIN: dict[str, Route] = {
    "/livez": ROUTES["/livez"],
    "/readyz": _READY,
    "/health": _READY,
    **{path: route for path, route in ROUTES.items() if route.admin},
}
"""What is answered at `server.admin`."""

EXISTING = (
    "POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /v1/models/{id}, "
    "GET /v1/chat/completions, GET, POST and DELETE /v1/chat/completions/{id}, "
    "GET /v1/chat/completions/{id}/messages, POST /v1/responses, "
    "GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items, "
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


def find_route(call: Call) -> Route:
    """Return the route of a request that may have it, and note for whom it is.

    Raises RequestError: 401 without a key where one is needed, also for what is not there; 404
    or 405 for everything that is not there.
    """
    path, method = call.path, call.request.method
    if method == "OPTIONS" and is_preflight(call.request.headers):
        _note_route(call, _PREFLIGHT)
        return _PREFLIGHT  # to which a browser adds no key
    found = ROUTES.get(path)
    routes: tuple[Route, ...] = (found,) if found is not None else ()
    if found is None or method != found.method:
        below = stored.routes(path) or stored_responses.routes(path)
        if found is None and (not below or counts_tokens(path) or path.endswith("/compact")):
            found = _find_elsewhere(call.state, path, method)
            below = below if found is None else ()
        routes = below if found is None else (*below, found)
        wanted = "GET" if method == "HEAD" else method
        found = next((route for route in routes if route.method == wanted), None)
    if routes:
        _note_route(call, found or routes[0])
        if routes[-1].admin:
            _check_admin(call)
    if not routes or routes[-1].needs_key:  # of several the last is not the store's
        call.routing.owner, call.routing.client = call.state.keys.find(call.request.headers)
    if not routes:
        raise UnknownUrl
    if found is None:
        raise _wrong_method(call, routes)
    return found


def _note_route(call: Call, route: Route) -> None:
    call.routing.route = route.label


def _check_admin(call: Call) -> None:
    """Raise RequestError for what is about the proxy itself, to who may not have it here."""
    if call.state.config.server.admin is not None:
        raise RequestError(
            f"{call.path} is answered at an address of its own, which server.admin in this "
            "proxy's configuration says.",
            status=404,
            code="unknown_url",
        )
    call.state.admin.owner(call.request.headers)


def find_admin_route(call: Call) -> Route:
    """Return the route of a request that came in at `server.admin`.

    Raises RequestError as `find_route` does, 401 without a key of `auth.admin` where there are any.
    """
    route = ADMIN.get(call.path)
    if route is None:
        raise RequestError(
            f"{call.path[:200]} is not answered here, only {', '.join(ADMIN)}. Ask for the "
            "rest at the proxy's other address (server.listen).",
            status=404,
            code="unknown_url",
        )
    _note_route(call, route)
    if call.request.method not in ("GET", "HEAD"):
        raise _wrong_method(call, (route,))
    if route.admin:
        call.state.admin.owner(call.request.headers)
    return route


def _find_elsewhere(state: State, path: str, method: str) -> Route | None:
    """Return what answers a path that is not the proxy's own by its whole name."""
    if path.startswith(("/v1/models/", "/models/")):
        return _MODEL
    if passthrough.is_reachable(state.router, path):
        handler = embeddings if path in EMBEDDINGS else passthrough.pass_request
        gets = method in ("GET", "HEAD") and passthrough.is_read(state.router, path)
        return Route("GET" if gets else "POST", passthrough.label(path), handler, asks=True)
    if method in ("GET", "HEAD") and ui.target_of(state.router) is not None:
        if path == "/":
            return _FRONT
        return _PAGE_FILE if ui.is_file(path) else _PAGE_READS
    return _OVERVIEW if path == "/" else None


def unknown_url(call: Call) -> RequestError:
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
