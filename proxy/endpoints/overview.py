"""GET /: what this proxy is, for whoever opens its address: a page in a browser, else JSON.

No script and nothing from elsewhere. It needs no key, so where keys are needed it names models and
servers only to who sends one.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.metadata import version
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType, json

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.limits.clients import KnownClient
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.listing import list_models
from wellspoken.proxy.upstream.target import Target

_encode = json.Encoder().encode
MOST: Final = 100  # models on the page; JSON has them all
LINKS: Final = {
    "/v1/models": "the models, as OpenAI lists them",
    "/v1/capabilities": "what becomes of each parameter, model by model",
    "/readyz": "whether requests would be answered",
    "/metrics": "metrics for Prometheus",
    "/backend/metrics": "the server's own metrics",
    "/openapi.json": "every endpoint, as OpenAPI",
}
"""Where to go from here. What is below /v1 needs a key where keys are needed."""


class Overview(Struct, kw_only=True):
    """What a proxy is and how it is.

    `reason`: why it is not ready, else why no model is known. That names servers, so it is absent
    where `models` and `servers` are, which are for those with a key; why the proxy is not ready
    also where /readyz would not tell it. Each of several servers has its state there: in, out,
    trial.
    """

    name: Literal["wellspoken"] = "wellspoken"
    version: str
    status: Literal["ok", "unavailable"]
    reason: str | UnsetType = UNSET
    needs_key: bool
    models: list[str] | UnsetType = UNSET
    servers: list[str] | UnsetType = UNSET
    links: dict[str, str]


async def overview(call: Call) -> Reply:
    """Describe this proxy, 200 also while it is not ready: /readyz is for who has to know."""
    found = await _describe(call)
    if not _wants_page(call.request.headers.getall("Accept", ())):
        return call.reply(200, _encode(found), _LINES)
    page = _make_page(found).encode()
    return call.reply(200, page, _LINES, content_type=b"text/html; charset=utf-8")


async def _describe(call: Call) -> Overview:
    state, headers = call.state, call.request.headers
    reason = await state.why_unready(in_full=state.is_private)
    found = Overview(
        version=_version(),
        status="unavailable" if reason else "ok",
        needs_key=len(state.keys) > 0,
        links=LINKS,
    )
    try:
        _, client = state.keys.find(headers)
    except RequestError:
        return found
    if state.config.server.admin is None and state.admin.admits(headers):  # as /readyz
        found.reason = reason or state.store_trouble(in_full=state.is_private) or UNSET
    states = {each.name: f" ({each.state})" for each in state.router.tell_states()}
    found.servers = [
        _server(each) + states.get(each.name, "")
        for each in state.router.targets
        if _is_for(client, each)
    ]
    try:
        models = await list_models(state.router.targets)
        found.models = [name for name in models if client is None or client.may_use(name)]
    except (UpstreamError, RequestError) as error:
        found.models, found.reason = [], found.reason or str(error)
    return found


def _is_for(client: KnownClient | None, target: Target) -> bool:
    """Say whether a backend may have a model for a client."""
    return client is None or not target.names or any(map(client.may_use, target.names))


@cache
def _version() -> str:
    return version("wellspoken")


def _server(target: Target) -> str:
    what = target.detector.described if target.detector is not None else target.backend.title
    return f"{target.name}: {what}"


def _wants_page(accepts: Sequence[str]) -> bool:
    """Say whether HTML is asked for by its name, which programs do not do."""
    kinds = (each.partition(";")[0].strip().lower() for each in ",".join(accepts).split(","))
    return "text/html" in kinds


_STYLE: Final = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;"
    "margin:2rem auto;padding:0 1rem}h1{font-size:1.4rem;margin-bottom:0}h2{font-size:1rem;"
    "margin:1.5rem 0 .25rem}ul{margin:0;padding-left:1.2rem}code{font-size:.9em;"
    "overflow-wrap:anywhere}"
    ".ok{color:#1a7f37}.unavailable{color:#cf222e}"
)
# Nothing runs and nothing is loaded, whatever a model's name may hold; the style is the page's own.
_LINES: Final = (
    "Cache-Control: no-store\r\nVary: Accept\r\nX-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\nContent-Security-Policy: default-src 'none'; style-src "
    f"'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'\r\n"
).encode("ascii")


def _make_page(found: Overview) -> str:
    """Return the page; every text in it is escaped."""
    reason = "." if isinstance(found.reason, UnsetType) else f": {found.reason}"
    status, why, unlisted = "not ready", reason, "."
    if found.status == "ok":
        status, why, unlisted = "ready", ".", reason
    key = " Clients need a key of this proxy." if found.needs_key else ""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>wellspoken</title>'
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>wellspoken {escape(found.version)}</h1>",
        "<p>A reverse proxy that makes an LLM server speak OpenAI's contract exactly. OpenAI "
        f"clients use this address with <code>/v1</code> behind it as base URL.{key}</p>",
        f'<p>It is <strong class="{found.status}">{status}</strong>{escape(why)}</p>',
        _make_list("Servers", found.servers),
        _make_list("Models", found.models, unlisted),
        "<h2>Links</h2><ul>",
        *(
            f'<li><a href="{path}"><code>{path}</code></a>: {escape(text)}</li>'
            for path, text in found.links.items()
        ),
        "</ul></body></html>\n",
    ]
    return "\n".join(filter(None, parts))


def _make_list(title: str, names: list[str] | UnsetType, unlisted: str = ".") -> str:
    if isinstance(names, UnsetType):
        return ""
    items = [f"<li><code>{escape(name)}</code></li>" for name in names[:MOST]]
    if len(names) > MOST:
        items.append(f"<li>and {len(names) - MOST} more</li>")
    shown = (
        f"<ul>{''.join(items)}</ul>" if items else f"<p>none that is known{escape(unlisted)}</p>"
    )
    return f"<h2>{title}</h2>\n{shown}"
