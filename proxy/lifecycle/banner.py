"""What is said at the start: what stands behind the proxy, where clients go, a request to copy."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config import Config
from wellspoken.proxy.config.values import UNIX
from wellspoken.proxy.lifecycle.build import version
from wellspoken.proxy.server import Service
from wellspoken.proxy.state import State
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.listing import list_models
from wellspoken.proxy.upstream.target import Target

if TYPE_CHECKING:
    from wellspoken.engine.supervisor import Supervisor

STORE_SECONDS: Final = 6.0
"""How long the banner waits for a database to open before it says that this is under way.

Longer than for a connection to PostgreSQL, after which the spool takes its place.
"""


async def banner(service: Service, host: str, port: int) -> str:
    """Return what is said at the start, at most 13 lines, with a request to copy."""
    state, targets = service.state, service.state.router.targets
    base, words = _address(state.config, host, port)
    lines = [f"wellspoken {version()} listens on {host if host.startswith(UNIX) else base}"]
    away = await _find_out(state)
    reason = await state.why_unready()
    listed, trouble = ((), "") if away else await _list_models(service)
    note = f"not ready yet: {reason}" if reason else trouble and f"no model is known: {trouble}"
    note = " ".join((note or state.store_trouble()).split())
    if reason and not state.config.log.banner:
        state.log.warning("%s", note)
    lines += [_line(target) for target in targets[:4]]
    if len(targets) > 4:
        lines.append(f"  and {len(targets) - 4} more backends")
    if note:
        lines.append(f"  {note}")
    names = [*listed, *(name for target in targets for name in target.names)]
    body = json.dumps(
        {
            "model": names[0] if names else "MODEL",
            "messages": [{"role": "user", "content": "Hello!"}],
            "logprobs": True,
            "top_logprobs": 2,
        }
    ).replace("'", "'\\''")
    key = ['    -H "Authorization: Bearer $OPENAI_API_KEY" \\'] if len(state.keys) else []
    lines += [
        f"  health /readyz, metrics /metrics; OPENAI_BASE_URL={base}/v1",
        "Try:",
        f"  curl {words}{base}/v1/chat/completions \\",
        "    -H 'Content-Type: application/json' \\",
        *key,
        f"    -d '{body}'",
    ]
    return "\n".join(lines)


def _address(config: Config, host: str, port: int) -> tuple[str, str]:
    """Return the base of clients' URLs, and what curl needs to be told beside it."""
    if host.startswith(UNIX):
        return "http://localhost", f"--unix-socket {shlex.quote(host.removeprefix(UNIX))} "
    shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host  # noqa: S104  compared, not bound
    tls = config.tls
    if tls.certificate is None:
        return f"http://{shown}:{port}", ""
    name, words = shown, f"--cacert {shlex.quote(tls.certificate)} "
    if tls.client_ca is not None and tls.client_certificates == "required":
        words += "--cert CLIENT.pem "
    return f"https://{name}:{port}", words


async def _find_out(state: State) -> str:
    """Find out what each backend is and whether the store opens; return why none is there, or "".

    All of it is under way just now, so all of it is waited for at once.
    """
    detectors = [target.detector for target in state.router.targets]
    waits = [detector.wait_known() for detector in detectors if detector is not None]
    away = asyncio.create_task(state.readiness.reason())
    if state.store is not None:
        waits.append(state.store.wait_tried(STORE_SECONDS))
    await asyncio.gather(away, *waits)
    return away.result()


async def _list_models(service: Service) -> tuple[Iterable[str], str]:
    """Return the models, and why there are none if it cannot be told."""
    try:
        return await list_models(service.state.router.targets), ""
    except (UpstreamError, RequestError) as error:
        return (), str(error)


def _line(target: Target) -> str:
    if target.engine is not None:
        return f"  engine {target.name}: {_describe_engine(target.engine)}"
    where = target.upstream.url if target.upstream is not None else "not ready"
    if target.detector is not None:
        return f"  backend {target.name}: {where} ({target.detector.described})"
    return f"  backend {target.name}: {where} (adapter {target.backend.name})"


def _describe_engine(engine: Supervisor) -> str:
    """Return what an engine is, on one line, as far as it has said so."""
    facts = engine.facts
    if engine.first:
        return f"{engine.kind.title}, {'failed' if engine.state == 'failed' else 'starting'}"
    known = [f"{engine.kind.title} {facts.version}".rstrip()]
    if facts.models:
        more = [f"and {len(facts.models) - 2} more"] if len(facts.models) > 2 else []
        known.append(", ".join([*facts.models[:2], *more]))
    if facts.context is not None:
        known.append(f"context {facts.context}")
    if facts.tool_parser:
        known.append(f"tools {facts.tool_parser}")
    if facts.reasoning_parser:
        known.append(f"reasoning {facts.reasoning_parser}")
    return ", ".join(known)
