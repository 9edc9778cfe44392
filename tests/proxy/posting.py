"""POST to a proxy at any path, with the bytes of a body or what they say."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import ClientResponse

from tests.proxy.conftest import Proxy, envelope

Json = dict[str, Any]
ODD = b' {"x": 1.50,\t"model" : "caf\\u00e9", "prompt":"\\ud83d\\ude00", "y":{"model": "z"}}\n'
"""A body that a decoder would write again in another way."""


async def post(
    proxy: Proxy, path: str, data: bytes | Json = ODD, headers: Json | None = None
) -> ClientResponse:
    """Return the answer to a body."""
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    kind = {"Content-Type": "application/json", **(headers or {})}
    return await proxy.session.post(proxy.url(path), data=body, headers=kind)


async def refused(proxy: Proxy, path: str, status: int, data: bytes | Json = ODD) -> Json:
    """Return the error object of the answer, which has to have this status."""
    async with await post(proxy, path, data) as response:
        text = await response.text()
        assert response.status == status, text
        return envelope(text)
