"""The sockets on which clients connect, made before the rest of the proxy is loaded."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from wellspoken.proxy.config.values import UNIX, parse_listen

BACKLOG = 1024  # connections that may wait to be accepted
MODE: Final = 0o660
_LACKING: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class UnixListener(socket.socket):
    """A listening unix socket that takes its file away when it is closed, but no other's."""

    __slots__ = ("_file", "_identity")

    def hold(self, file: str, mode: int) -> None:
        """Listen at a path, whose file is for whom `mode` says from its first moment.

        A socket that nobody listens on any more, left by a program that was killed, is replaced;
        what listens, or is no socket, is not: EADDRINUSE, EEXIST. Raises OSError.
        """
        if refuse_taken(file):
            os.unlink(file)
        before = os.umask(0o777 & ~mode)
        try:
            self.bind(file)
        finally:
            os.umask(before)
        self._file, self._identity = file, _identify(file)
        self.setblocking(False)
        self.listen(BACKLOG)

    def close(self) -> None:
        """Close it, and remove its file unless another program has put its own there."""
        file, self._file = getattr(self, "_file", ""), ""
        if file:
            with suppress(OSError):
                if _identify(file) == self._identity:
                    os.unlink(file)
        super().close()


def _identify(file: str) -> tuple[int, int]:
    found = os.lstat(file)
    return found.st_dev, found.st_ino


def refuse_taken(file: str) -> bool:
    """Say whether there is a socket's file behind which nobody listens any more.

    Raises OSError for what must stay: EADDRINUSE where somebody does, EEXIST for no socket.
    """
    try:
        kind = os.lstat(file).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISSOCK(kind):
        raise OSError(errno.EEXIST, "what is there is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        tried.setblocking(False)
        try:
            tried.connect(file)
        except ConnectionRefusedError:
            return True
        except BlockingIOError:
            pass  # its queue is full, so somebody listens
    raise OSError(errno.EADDRINUSE, "another program listens there")


def listening(listen: str, *, shared: bool = False, mode: int = MODE) -> list[socket.socket]:
    """Return a listening socket for each address that `listen`, as configured, stands for.

    From now on a client that connects waits instead of being refused, which counts where both are
    started at once. Of several addresses one that this machine lacks (IPv6 may be switched off) is
    left out. `shared`: other processes listen there too. `mode`: whom a unix socket is for. Raises
    OSError.
    """
    host, port = parse_listen(listen)
    made: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        if host.startswith(UNIX):
            file = UnixListener(socket.AF_UNIX, socket.SOCK_STREAM)
            made.append(file)
            file.hold(host.removeprefix(UNIX), mode)
            return made
        for family, kind, protocol, _, address in _resolve(host, port):
            one = socket.socket(family, kind, protocol)
            made.append(one)
            try:
                _hold(one, address, shared)
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                lacking = error
                made.pop().close()
        if not made and lacking is not None:
            raise lacking
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


def _resolve(host: str, port: int) -> Iterable[tuple[int, int, int, str, Any]]:
    flags = socket.AI_PASSIVE
    return dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))


def _hold(one: socket.socket, address: Any, shared: bool) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if one.family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.setblocking(False)
    one.bind(address)
    one.listen(BACKLOG)
