"""The address that several workers share: nobody else has it, and nobody gets it in between."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

TRIES = 20
"""How many free ports are tried until one is free at each address of a name."""


@dataclass(slots=True)
class Port:
    """An address held for workers that listen on it with SO_REUSEPORT.

    Sockets with that option may share a port with any other of the same user, so that two proxies
    with several workers would take each other's clients without a word. Therefore the port is first
    bound without it, which fails as it does for one process. Then a socket that is bound and never
    listens holds it, so that no other program gets it while the workers are started again.
    """

    number: int
    _held: list[socket.socket] = field(default_factory=list)

    @classmethod
    async def reserve(cls, host: str, number: int) -> Port:
        """Return the address held; port 0 becomes a free one. Raises OSError where it is taken."""
        found = await asyncio.get_running_loop().getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = [(family, address) for family, _, _, _, address in dict.fromkeys(found)]
        left = 1 if number else TRIES
        while True:
            left -= 1
            port = cls(number)
            try:
                port._hold_all(addresses)
                return port
            except OSError as error:
                port.release()
                # One that the system found free at the first address may be taken at the second.
                if not left or error.errno != errno.EADDRINUSE:
                    raise

    def _hold_all(self, addresses: Iterable[tuple[int, tuple[Any, ...]]]) -> None:
        unusable: OSError | None = None
        for family, address in addresses:
            where = (address[0], self.number, *address[2:])
            try:
                self.number = _hold(family, where, self._held)
            except OSError as error:
                # IPv6 may be switched off, and `localhost` is then the other address alone.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                unusable = error
        if not self._held and unusable is not None:
            raise unusable

    def release(self) -> None:
        """Let go of it."""
        for each in self._held:
            each.close()


def _hold(family: int, where: tuple[object, ...], held: list[socket.socket]) -> int:
    """Hold one address; return its port."""
    with _bind(family, where) as first:
        # From here on sockets with the same option may join, as the one that holds it does.
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        address = first.getsockname()
        second = _bind(family, address, shared=True)
        held.append(second)
        # Without this option nobody who lacks SO_REUSEPORT can listen beside it.
        second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return int(address[1])


def _bind(family: int, where: tuple[object, ...], *, shared: bool = False) -> socket.socket:
    """Return a socket that is bound as asyncio binds a server's."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(where)
    except OSError:
        made.close()
        raise
    return made
