"""Sends the probes' requests to one side: the backend, or the proxy in front of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from msgspec import DecodeError, Struct, json

from wellspoken.proxy.doctor.probe import PREVIOUS, ProbeRequest, ProbeResponse
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError

LARGEST: Final = 16 * 1024 * 1024  # bytes of an answer
PATIENCE: Final = 3  # requests without an answer, one after the other, until no more are sent


class Sender:
    """Sends requests to one address, each once, and gives up on a server that answers none.

    `limit`: seconds for an answer, whole. `extra`: header lines of each request.
    """

    def __init__(self, upstream: Upstream, limit: float, extra: bytes = b"") -> None:
        self._upstream = upstream
        self._limit = limit
        self._extra = extra
        self._known: dict[ProbeRequest, ProbeResponse] = {}
        self._failed = 0

    async def send_all(
        self, requests: Sequence[ProbeRequest], *, together: bool = False
    ) -> list[ProbeResponse]:
        """Return the answers, in the requests' order."""
        if together:
            return list(await asyncio.gather(*(self.send(request) for request in requests)))
        return [await self.send(request) for request in requests]

    async def send(self, request: ProbeRequest) -> ProbeResponse:
        """Return the answer to a request, the same one each time."""
        found = self._known.get(request)
        if found is not None:
            return found
        if self._failed >= PATIENCE:
            why = f"not asked any more: {PATIENCE} requests in a row were not answered"
            return ProbeResponse(failure=why, unsent=True)
        body = request.body
        if request.follows is not None:
            body = body.replace(PREVIOUS.encode(), _id_of(await self.send(request.follows)))
        found = self._known[request] = await self._send_once(request, body)
        late = found.failure or found.status == 504  # the proxy says it for the backend
        self._failed = self._failed + 1 if late else 0
        return found

    async def _send_once(self, request: ProbeRequest, sent: bytes) -> ProbeResponse:
        began = time.perf_counter()
        status, headers, failure, late = 0, dict[str, str](), "", False
        body = bytearray()
        try:
            async with asyncio.timeout(self._limit):
                answer = await self._upstream.open(
                    request.method, request.path, sent, extra=self._extra
                )
                status = answer.status
                headers = {
                    name.lower(): self._upstream.hide(value.encode("utf-8", "replace")).decode()
                    for name, value in answer.headers.items()
                }
                while data := await answer.chunk():
                    body += data
                    if request.leave and status == 200:
                        answer.close()
                        break
                    if len(body) > LARGEST:
                        answer.close()
                        failure = f"the answer has more than {LARGEST >> 20} MiB"
                        break
        except TimeoutError:
            late = True
            said = f"only {len(body)} bytes" if status else "no answer"
            failure = f"{said} within {self._limit:g} s"
        except UpstreamError as error:
            failure = str(error)
        return ProbeResponse(
            status=status,
            headers=headers,
            body=self._upstream.hide(bytes(body)),
            seconds=time.perf_counter() - began,
            failure=failure,
            late=late,
        )


def _id_of(response: ProbeResponse) -> bytes:
    """Return the id in an answer as a JSON string's inside; what has none stays as it is."""
    try:
        return json.encode(_decode_named(response.body).id)[1:-1]
    except (DecodeError, UnicodeError):
        return PREVIOUS.encode()


class _NamedAnswer(Struct):
    id: str


_decode_named = json.Decoder(_NamedAnswer).decode
