"""The servers of a configuration file, each as the doctor examines it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import to_builtins

from wellspoken.proxy.config import examine
from wellspoken.proxy.config.rules.pool_rules import names_of_servers
from wellspoken.proxy.config.tables import Backend
from wellspoken.proxy.config.values import ConfigError, normal_url

# What of a table says how its server is reached, and what it is. What a client may send is left
# out: the probes ask for all there is.
_KEPT: Final = frozenset(
    {"adapter", "key", "headers", "tls", "tokenizer", "tokenizer_download", "past_reasoning"}
    | {"recover", "system", "streams"}
)


class ConfiguredServer(NamedTuple):
    """One URL of a backend: what metrics call it, what to ask it for, and the rest of its table.

    `model` None: what it lists first.
    """

    name: str
    url: str
    model: str | None
    table: Mapping[str, Any]


def configured_servers(file: Path) -> list[ConfiguredServer]:
    """Return all servers of a file's backends, in its order.

    Raises ConfigError for a file that cannot be read, or whose backends cannot be used. What is
    wrong with other tables is for `wellspoken check` to say.
    """
    examined = examine(file)
    for problem in examined.problems:
        if problem.path[:1] in ((), ("backend",)):
            raise ConfigError(examined.describe(problem))
    found = [each for backend in examined.config.backend for each in _servers_of(backend)]
    if not found:
        raise ConfigError(
            f"{file}: it has no [[backend]], and an engine is examined while it runs, through the "
            "proxy: wellspoken doctor URL"
        )
    return found


def _servers_of(backend: Backend) -> list[ConfiguredServer]:
    given = to_builtins(backend)
    table = {key: given[key] for key in _KEPT if given[key] is not None}
    names = (backend.upstream_model, *backend.models, *backend.aliases.values())
    model = next(filter(None, names), None)
    called = names_of_servers(backend)
    plain = {key: value for key, value in table.items() if key != "tls"}  # of a list with both
    return [
        ConfiguredServer(name, url, model, table if _is_secured(url) else plain)
        for name, url in zip(called, backend.urls, strict=True)
    ]


def _is_secured(url: str) -> bool:
    return normal_url(url).startswith("https:")
