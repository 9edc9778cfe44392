"""What a stream writes to its client, piece by piece."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from wellspoken.proxy.http.responses import EventStream, TappedStream


@pytest.mark.parametrize("tapped", [False, True])
async def test_nothing_is_no_end(tapped: bool) -> None:
    """A chunk of no bytes would end the reply."""
    transport = Mock()
    transport.is_closing.return_value = False
    protocol = Mock(transport=transport, writing_paused=False)
    request = Mock(protocol=protocol, method="POST", version=(1, 1), keep_alive=True)
    noted: list[bytes] = []
    stream = TappedStream(noted.append, request) if tapped else EventStream(request)
    pieces = [b"data: a\n\n", b"", b"data: b\n\n"]
    for data in pieces:
        assert not stream.put(data)
    assert noted == (pieces if tapped else [])
    written = b"".join(call.args[0] for call in transport.write.call_args_list)
    _, _, body = written.partition(b"\r\n\r\n")
    assert body == b"9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n"
