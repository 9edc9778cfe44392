"""What goes wrong with an engine, in words for whoever started it."""

from __future__ import annotations

import signal


class EngineError(Exception):
    """The engine cannot be started; the text says why and what to do.

    `lasting`: starting it again as it is would fail again (a model that is not there, a flag that
    does not exist), so nobody need wait for that.
    """

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


def lasting_error(message: str) -> EngineError:
    """Return what is wrong and stays so until somebody mends it."""
    return EngineError(message, lasting=True)


class NotReady(Exception):
    """A request came while the engine cannot answer it; the text says why, for the client.

    `retry_after`: seconds after which another try makes sense; None where none does.
    """

    def __init__(self, reason: str, retry_after: int | None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


def ending(title: str, code: int) -> str:
    """Return how a process ended, from its exit code (negative: signal)."""
    if code >= 0:
        return f"{title} ended with exit code {code}"
    return f"{title} was ended by {signal.Signals(-code).name}"
