"""The sockets on which clients connect, made before the rest of the proxy is loaded."""

from __future__ import annotations

import socket

from wellspoken.proxy.config.values import parse_listen

BACKLOG = 1024  # connections that may wait to be accepted


def listening(listen: str) -> list[socket.socket]:
    """Return a listening socket for each address that `listen`, as configured, stands for.

    From now on a client that connects waits instead of being refused, which counts where both are
    started at once. Raises OSError.
    """
    host, port = parse_listen(listen)
    passive = socket.AI_PASSIVE
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=passive)
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setblocking(False)
            one.bind(address)
            one.listen(BACKLOG)
    except BaseException:
        for one in made:
            one.close()
        raise
    return made
