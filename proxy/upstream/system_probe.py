"""How a server's template takes system messages, where the server tells what prompt it makes.

llama.cpp leaves out what a template does not take, or puts it into the mouth of whoever speaks next
(b11549), and says nothing: so a short conversation is looked at, once, before one that may meet it.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import json

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.system import SystemForm, refuses_role, refuses_system
from wellspoken.adapters.servers.known.llamacpp_native import read_template
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError

LIMIT: Final = 1024 * 1024  # bytes of a prompt; some templates begin with a page of their own
FIRST, LATE = "wsfirst", "wslate"  # no template trims or rewrites a word

_ALONE: Final = [{"role": "system", "content": FIRST}]
_SEVERAL: Final = [
    *_ALONE,
    {"role": "user", "content": "u"},
    {"role": "assistant", "content": "a"},
    {"role": "system", "content": LATE},
    {"role": "user", "content": "u"},
]


async def probe_system(upstream: Upstream, path: str, model: str) -> SystemForm | None:
    """Return in which form the template of `model` takes system messages; None if unknown.

    As they are, if a late one is in the prompt; as the user's, if one that stands alone is left out
    or refused; else as one, the first. `path` answers as POST /apply-template does.
    """
    status, said = await _apply(upstream, path, model, _SEVERAL)
    if status == 200 and FIRST in said and LATE in said:
        return "pass"
    if status != 200 and not refuses_system(status, said.encode()):
        return None
    status, said = await _apply(upstream, path, model, _ALONE)
    if status == 0:
        return None
    lost = FIRST not in said if status == 200 else refuses_role(status, said.encode())
    return "user" if lost else "fold"


async def _apply(upstream: Upstream, path: str, model: str, messages: Any) -> tuple[int, str]:
    """Return 200 and the prompt, or another status and what the server says; 0: nothing."""
    named = {"model": model} if model else {}
    try:
        status, body = await upstream.post(
            path, json.encode({**named, "messages": messages}), LIMIT
        )
        return status, read_template(body) if status == 200 else body.decode("utf-8", "replace")
    except (UpstreamError, RequestError):
        return 0, ""
