"""Requests and answers in the log, for whoever asks for it with `log.bodies` and level debug.

Each is cut after some kilobytes. Keys are blanked out: the client's own, the backend's, and what
looks like one; a model that spells out a key piece by piece in a stream is beyond that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp.web_request import BaseRequest

from wellspoken.proxy.config.secrets import HIDDEN, redact
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.state import State

SHOWN: Final = 16_384  # bytes of a body
_BEYOND: Final = 4_096  # bytes behind these, so that no key is cut before it is seen to be one
_KEYED: Final = ("Authorization", "x-api-key", "Proxy-Authorization")


@dataclass(slots=True, eq=False)
class BodyTap:
    """Notes the bodies of one request: the client's at once, the answer when it is over."""

    _state: State
    _request: BaseRequest
    _id: str
    _answer: bytearray = field(default_factory=bytearray)
    _size: int = 0

    def request(self, body: bytes) -> None:
        """Log the body of the request."""
        self._log("request_body", body[: SHOWN + _BEYOND], len(body))

    def answer(self, data: bytes) -> None:
        """Note a body that leaves, or a piece of it."""
        self._size += len(data)
        self._answer += data[: max(SHOWN + _BEYOND - len(self._answer), 0)]

    def end(self) -> None:
        """Log the body of the answer."""
        self._log("answer_body", bytes(self._answer), self._size)

    def _log(self, event: str, start: bytes, size: int) -> None:
        for secret in _keys_of(self._request):
            start = start.replace(secret, HIDDEN.encode())
        for target in self._state.router.targets:  # where it goes may not be known yet
            if target.upstream is not None:
                start = target.upstream.hide(start)
        text = redact(start.decode("utf-8", "replace"))
        fields: dict[str, Any] = {
            "event": event,
            "id": self._id,
            "size": size,
            "body": text[:SHOWN],
        }
        what = event.replace("_", " ")
        told = {"fields": fields}
        self._state.log.debug("%s of %s, %d bytes", what, self._id, size, extra=told)


def _keys_of(request: BaseRequest) -> list[bytes]:
    """Return the keys that the client sent, the longest first."""
    headers = request.headers  # an empty dict where aiohttp could not read the head
    values = [one for name in _KEYED if name in headers for one in headers.getall(name)]
    words = {word for value in values for word in (value.strip(), value.rpartition(" ")[2])}
    found = (word.encode("utf-8", "surrogateescape") for word in words if len(word) >= 4)
    return sorted(found, key=len, reverse=True)


def tap_request(state: State, request: BaseRequest, id: str) -> BodyTap | None:
    """Return what notes the bodies of a request, where the log's level lets them through."""
    return BodyTap(state, request, id) if state.log.isEnabledFor(logging.DEBUG) else None


def log_answer(call: Call, code: int) -> None:
    """Log the answer of a request that is over: an observer."""
    if call.tap is not None:
        call.tap.end()
