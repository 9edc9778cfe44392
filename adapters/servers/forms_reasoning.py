"""Forms of requests: the reasoning of past answers, which a client gives back with its messages.

Clients get it as `reasoning_content`, whatever the server calls it, and send that again; some send
`reasoning` or both. A template that shows past reasoning needs it under the name that the server
reads: what has another name is dropped without a word (vLLM 0.16 to 0.21, its issue #38488; Ollama,
its issue #18534), and the model no longer knows what it thought between two calls.
"""

from __future__ import annotations

from typing import Any, Final

from wellspoken.adapters.servers.forms import messages_in

NAMES: Final = ("reasoning_content", "reasoning")
_NOTHING: Final = (b"null", b'""')


def as_reasoning_content(sent: dict[str, Any]) -> None:
    """`messages`: past reasoning as `reasoning_content`, whatever the client calls it."""
    _name_reasoning(sent, NAMES[:1])


def as_reasoning(sent: dict[str, Any]) -> None:
    """`messages`: past reasoning as `reasoning`, whatever the client calls it."""
    _name_reasoning(sent, NAMES[1:])


def as_both(sent: dict[str, Any]) -> None:
    """`messages`: past reasoning under both names, for servers whose templates get all keys."""
    _name_reasoning(sent, NAMES)


def without_reasoning(sent: dict[str, Any]) -> None:
    """`messages`: without past reasoning."""
    _name_reasoning(sent, ())


def _name_reasoning(sent: dict[str, Any], names: tuple[str, ...]) -> None:
    """Give past reasoning these names alone: what the client sent by the first of them, if any."""
    messages = messages_in(sent)
    for message in messages:
        given = {name: message.pop(name) for name in NAMES if name in message}
        told = [given[name] for name in (*names, *NAMES) if name in given]
        best = next((value for value in told if bytes(value) not in _NOTHING), None)
        if best is not None:
            message.update(dict.fromkeys(names, best))
    sent["messages"] = messages
