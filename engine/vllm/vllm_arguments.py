"""What the arguments for `vllm serve` say, and which of them cannot be passed on.

vLLM's parser takes `_` for `-` in a flag, `--flag=value`, and any unambiguous beginning of a flag;
of a repeated flag the last counts (vllm/utils/argparse_utils.py, 0.32.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

_SOCKET = "wellspoken serves vLLM on a private unix socket; `listen` says where clients connect"
_TLS = "vLLM answers on a private unix socket; TLS is for wellspoken's own listener"

FORBIDDEN: Final = {
    "--uds": _SOCKET,
    "--host": _SOCKET,
    "--port": _SOCKET,
    "--root-path": _SOCKET,
    "--grpc": "wellspoken speaks HTTP with it",
    "--grpc-port": "nothing would ask clients for keys there",
    "--headless": "it then serves nothing; start such a node with `vllm serve` itself",
    "--data-parallel-multi-port-external-lb": "its servers would not end with wellspoken",
    "-dpm": "its servers would not end with wellspoken",
    "--api-key": "only wellspoken can reach the socket; the keys of clients go into `keys`",
    "--ssl-keyfile": _TLS,
    "--ssl-certfile": _TLS,
    "--ssl-ca-certs": _TLS,
    "--ssl-cert-reqs": _TLS,
    "--ssl-ciphers": _TLS,
    "--enable-ssl-refresh": _TLS,
    "--shutdown-timeout": "wellspoken sets it to the server's drain_timeout",
    "--model": "the model is the setting `model`",
    "--model-tag": "the model is the setting `model`",
    "--config": "wellspoken must see all that is set: write what is in that file as arguments",
    "--help": "it would print its help and end",
    "-h": "it would print its help and end",
    "--version": "it would print its version and end",
    "-v": "it would print its version and end",
}
"""Flags that may not be given, with the reason."""


_WHOLE: Final = frozenset({"--data-parallel-size"})
"""Flags that begin as another one does, but are no beginning of it."""


def forbidden(arguments: Sequence[str]) -> str | None:
    """Return which of these arguments may not be given and why, in a sentence; else None.

    Values are not looked at: the word after a flag is taken for one only if it begins with `-`.
    """
    for argument in arguments:
        written = argument.partition("=")[0]
        flag = _normal(written)
        for name, reason in FORBIDDEN.items():
            if _is(flag, name):
                whole = "" if flag == name else f" (the beginning of {name})"
                return f"{written}{whole} cannot be among vLLM's arguments: {reason}."
    return None


def option(arguments: Sequence[str], *names: str) -> str | None:
    """Return the last value given for a flag, by any of its names; "" if it has no value."""
    found = None
    for words in _words_after(arguments, names):
        found = words[0] if words else ""
    return found


def number(arguments: Sequence[str], default: float, *names: str) -> float:
    """Return the number given for a flag; `default` where none is, or what is no number."""
    try:
        return float(option(arguments, *names) or default)
    except ValueError:
        return default


def model_names_in(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the names after the last --served-model-name, () if it is not there."""
    found: tuple[str, ...] = ()
    for words in _words_after(arguments, ("--served-model-name",)):
        found = tuple(words)
    return found


def has(arguments: Sequence[str], *names: str) -> bool:
    """Say whether a flag is given, by any of its names."""
    return option(arguments, *names) is not None


def _words_after(arguments: Sequence[str], names: Sequence[str]) -> Iterator[list[str]]:
    """Give the values of a flag each time that it is given, by any of its names."""
    for at, argument in enumerate(arguments, 1):
        flag, equals, value = argument.partition("=")
        if any(_is(_normal(flag), name) for name in names):
            after = takewhile(lambda word: not word.startswith("-"), arguments[at:])
            yield [value] if equals else list(after)


def _is(flag: str, name: str) -> bool:
    """Say whether `flag` is `name`, or a beginning of it that the parser may take for it."""
    if flag == name:
        return True
    whole = flag in FORBIDDEN or flag in _WHOLE
    return flag.startswith("--") and len(flag) > 3 and name.startswith(flag) and not whole


def _normal(flag: str) -> str:
    return flag.replace("_", "-") if flag.startswith("--") else flag
