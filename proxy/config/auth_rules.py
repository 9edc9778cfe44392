"""What types cannot say of [auth]: who may use the proxy, and the clients with names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import UNSET

from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, path_text
from wellspoken.proxy.config.tables import Auth, AuthClient, Config
from wellspoken.proxy.config.values import (
    ConfigError,
    check_reference,
    counters_url,
    is_loopback,
    is_reference,
)


def auth_rules(auth: Auth | Literal["none"], host: str) -> Iterator[Problem]:
    """Give what is wrong with it.

    A proxy that other machines reach and nobody needs a key for is refused, unless that is said.
    """
    if isinstance(auth, Auth):
        yield from _references(auth)
        yield from _clients(auth)
        if auth.counters is not None and not is_reference(auth.counters.strip()):
            try:
                counters_url(auth.counters)
            except ConfigError as error:
                yield Problem(("auth", "counters"), str(error))
    closed = isinstance(auth, Auth) and auth.needs_key
    if not closed and auth != "none" and not is_loopback(host):
        yield Problem(
            ("server", "listen"),
            f"listen: {host} is reached from other machines, and no keys say who may use the "
            "proxy. Name keys (--key env:NAME, or keys under [auth]), or listen on 127.0.0.1, or "
            'let everybody in (--auth none, or auth = "none" at the top of the file).',
        )


def reference_lists(auth: Auth) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Give each list of references to keys, with where it stands."""
    yield ("auth", "keys"), auth.keys
    yield ("auth", "admin"), auth.admin
    for at, client in enumerate(auth.client):
        yield ("auth", "client", at, "keys"), client.keys


def _references(auth: Auth) -> Iterator[Problem]:
    for path, references in reference_lists(auth):
        for at, reference in enumerate(references):
            here = (*path, at)
            try:
                check_reference(reference)
            except ConfigError as error:
                text = str(error).removeprefix("key: ")
                yield Problem(here, f"{path_text(here)}: {text}")


def _clients(auth: Auth) -> Iterator[Problem]:
    """Refuse names and keys that two clients have, and clients that can do nothing."""
    names: dict[str, int] = {}
    homes = dict.fromkeys(auth.keys, "auth.keys")
    for at, client in enumerate(auth.client):
        path: Path = ("auth", "client", at)
        where = path_text(path)
        if names.setdefault(client.name, at) != at:
            text = f"{where}: two are named {client.name!r}. Give each its own name."
            yield Problem((*path, "name"), text)
        if not client.keys:
            yield Problem(
                (*path, "keys"),
                f"{where}: {client.name} has no keys, so nobody can be this client. Add "
                'keys = ["env:NAME"], or take it out.',
            )
        if not client.models:
            yield Problem(
                (*path, "models"),
                f"{where}: {client.name} may use no model. List some, or leave models out for all.",
            )
        for number, reference in enumerate(client.keys):
            home = homes.setdefault(reference, where)
            if home != where:
                yield Problem(
                    (*path, "keys", number),
                    f"{where}: {home} has the keys of {reference} too. Give each client keys of "
                    "its own.",
                )


def doubtful_clients(config: Config, now: datetime) -> Iterator[Problem]:
    """Give the clients that have expired, patterns that fit no model, counters for nobody."""
    auth = config.auth if isinstance(config.auth, Auth) else Auth()
    clients = auth.client
    if auth.counters is not None and not any(map(has_quota, clients)):
        text = "auth.counters: no client has a limit to be counted. Set one, or take it out."
        yield Problem(("auth", "counters"), text, at_key=True)
    known = _known_models(config)
    for at, client in enumerate(clients):
        path: Path = ("auth", "client", at)
        expires = expiry_of(client)
        if expires is not None and expires <= now:
            text = f"{client.name} has expired. Set a later day, or take the client out."
            yield Problem((*path, "expires"), f"{path_text(path)}.expires: {text}")
        for number, pattern in enumerate(client.models):
            here = (*path, "models", number)
            if known and not any(fnmatchcase(name, pattern) for name in known):
                listed = ", ".join(sorted(known)[:8])
                text = f"no backend has a model {pattern!r}. They have {listed}."
                yield Problem(here, f"{path_text(here)}: {text}")


def has_quota(client: AuthClient) -> bool:
    """Say whether a client has a limit that is counted."""
    return any((client.requests_per_minute, client.tokens_per_minute, client.concurrent))


def expiry_of(client: AuthClient) -> datetime | None:
    """Return when a client's keys end."""
    expires = client.expires
    return expires.replace(tzinfo=UTC) if expires and expires.tzinfo is None else expires


def _known_models(config: Config) -> set[str]:
    """Return the names that are configured; none where a backend has those that it lists."""
    if not config.backend or len(config.backend) == 1 or config.engine is not UNSET:
        return set()
    return {name for one in config.backend for name in (*one.models, *one.aliases)}
