"""The sockets that clients connect to: which addresses, and what happens where one is taken."""

from __future__ import annotations

import io
import socket

import pytest

from tests.ports import free_port
from wellspoken.proxy.http.sockets import listening
from wellspoken.proxy.terminal.colour import Colour


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", ":0"])
def test_it_listens_at_once(listen: str) -> None:
    made = listening(listen)
    try:
        assert made
        for one in made:
            assert not one.getblocking()
            port = one.getsockname()[1]
            host = "::1" if one.family == socket.AF_INET6 else "127.0.0.1"
            with socket.create_connection((host, port), timeout=60):
                pass
    finally:
        for one in made:
            one.close()


def test_a_taken_port_is_an_error_and_can_be_had_later() -> None:
    where = f"127.0.0.1:{free_port()}"  # which nobody else gets in between
    (first,) = listening(where)
    with pytest.raises(OSError, match="in use"):
        listening(where)
    first.close()
    (second,) = listening(where)
    second.close()


def test_a_host_that_is_none() -> None:
    with pytest.raises(OSError):
        listening("no-such-host.invalid:0")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "on"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_for_terminals(stream: io.StringIO, environ: dict[str, str], on: bool) -> None:
    colour = Colour.of(stream, environ)
    assert colour.put("red", "x") == ("\x1b[31mx\x1b[0m" if on else "x")
