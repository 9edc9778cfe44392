"""What a request's answer tells of its amendments, however its first bytes arrive."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conforming import role, sse
from tests.fakes.upstream import event
from wellspoken.adapters.readers.sse import SSEDecoder
from wellspoken.proxy.relay import send
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.planning.plan import Amendment, BackendRequest, Outcome
from wellspoken.proxy.upstream.target import Target

CALL = SimpleNamespace(
    state=SimpleNamespace(config=SimpleNamespace(limits=SimpleNamespace(response=1000)))
)
ERROR = event({"error": {"message": "Unknown parameter: stream_options"}})
ANSWER = sse([role()])
PING = b": ping\n\n"


class Response:
    """An answer whose reads are `pieces`, each as one."""

    def __init__(self, pieces: list[bytes], content_type: str = "text/event-stream") -> None:
        self.status = 200
        self.content_type = content_type
        self.pieces = list(pieces)
        self.closed = False

    async def chunk(self) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def close(self) -> None:
        self.closed = True


async def ask(
    monkeypatch: pytest.MonkeyPatch, *responses: Response
) -> tuple[Response, bytes, list[Outcome], list[bytes]]:
    """Send a request with an amendment; return the answer, what was read, notes and payloads."""
    notes: list[Outcome] = []
    sent: list[bytes] = []
    left = list(responses)

    async def send_request(_call: Call, _target: Target, request: BackendRequest) -> Response:
        sent.append(request.payload)
        return left.pop(0)

    monkeypatch.setattr(send, "send_request", send_request)
    amendment = Amendment(lambda _, data: b"stream_options" in data, lambda: b"less", notes.append)
    request = BackendRequest("/v1/completions", b"more", True, amendments=(amendment,))
    found = await send.send_accepted(cast(Any, CALL), cast(Any, None), request, True)
    assert found[1]
    return cast(Any, found[0]), found[2], notes, sent


@pytest.mark.parametrize(
    "pieces",
    [
        [ERROR],
        [PING, ERROR],
        [PING, PING + ERROR[:9], ERROR[9:]],
        [ERROR[:4], ERROR[4:30], ERROR[30:]],
        [b"data:\n\n", b"data: null\n\n", ERROR],
        [event({"type": "ping"}), b'event: ping\ndata: {"type":"ping"}\n\n', ERROR],
        [b"event: error\n", ERROR],
        [PING, ERROR.rstrip()],
        [PING, b"error:" + ERROR.removeprefix(b"data:"), ANSWER],
    ],
    ids=[
        "whole",
        "ping",
        "ping and cut",
        "cut",
        "empty",
        "event",
        "name",
        "unended",
        "error field",
    ],
)
@pytest.mark.parametrize("content_type", ["text/event-stream", "text/plain"])
async def test_an_error_that_begins_a_stream_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], content_type: str
) -> None:
    if content_type == "text/plain" and not pieces[0].startswith((b"data:", b":", b"event:")):
        pieces = [PING, *pieces]  # by what it begins with it is known for a stream
    first, second = Response(pieces, content_type), Response([PING, ANSWER])
    response, read, notes, sent = await ask(monkeypatch, first, second)
    assert (response, first.closed) == (second, True)
    assert (read, notes, sent) == (PING + ANSWER, ["amended"], [b"more", b"less"])


@pytest.mark.parametrize(
    "pieces",
    [[ANSWER], [PING, ANSWER[:30], ANSWER[30:]], [ANSWER, ERROR], [PING], []],
    ids=["whole", "cut", "fails later", "no event", "nothing"],
)
async def test_a_stream_that_begins_with_an_answer_is_accepted_and_all_of_it_read_on(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    only = Response(pieces)
    response, read, notes, sent = await ask(monkeypatch, only)
    assert read + b"".join(only.pieces) == b"".join(pieces)
    assert (response, only.closed, notes, sent) == (only, False, ["as it was"], [b"more"])
    assert only.pieces == ([ERROR] if ERROR in pieces else [])


@pytest.mark.parametrize("piece", [b": " + b"x" * 50 + b"\n\n", b"data: " + b"x" * 50])
async def test_no_more_is_read_than_an_event_may_have(
    monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(send, "SSEDecoder", partial(SSEDecoder, 100))
    only = Response([piece] * 9)
    _, read, _, _ = await ask(monkeypatch, only)
    assert read == piece * 2
    assert len(only.pieces) == 7
