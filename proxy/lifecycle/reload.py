"""Taking over another configuration while requests are answered, wholly or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import structs

from wellspoken.proxy.config import Config, check
from wellspoken.proxy.config.tables import Auth, Backend
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.http.auth import Keys
from wellspoken.proxy.lifecycle.build import Outside, outside, targets_of
from wellspoken.proxy.lifecycle.watch import aside
from wellspoken.proxy.server import Service
from wellspoken.proxy.tls.certificates import ServerContexts, expiries, server_contexts
from wellspoken.proxy.upstream.target import Target, start_detectors, stop_detectors

if TYPE_CHECKING:
    from wellspoken.proxy.lifecycle.hosted import Hosted

_FIXED: Final = ("store", "engine", "log", "traces")
_FIXED_KEYS: Final = ("listen", "admin", "workers")


class Change(NamedTuple):
    """A configuration that can be taken over: all that it needs has been read.

    `basis` is the one in use when that was done. `warnings` name what holds after a restart only.
    """

    basis: Config
    config: Config
    keys: Keys
    admin: Keys
    contexts: ServerContexts
    backends: tuple[Outside, ...]
    warnings: list[str]


class Reloader:
    """Puts a service on another configuration: wholly, or not at all.

    A backend whose table has not changed keeps its connections, what was detected, and its tokens.
    The connections of one that is removed close as their requests end. `hosted` is the service's
    engine. Only the service's loop may call this.
    """

    def __init__(self, service: Service, hosted: Hosted | None = None) -> None:
        self._service = service
        self._hosted = hosted
        # Requests go on while a configuration is prepared; two that were prepared at once would
        # have the same basis, and the second would be refused.
        self._lock = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self.described = ""

    async def apply(self, config: Config) -> list[str]:
        """Take over a configuration; return what of it needs a restart, a sentence each.

        `described` says what has changed then, "" for nothing. Raises ConfigError, and then all
        stays as it was.
        """
        async with self._lock:
            return self.take(await self.prepare(config))

    async def prepare(self, config: Config) -> Change:
        """Read all that a configuration needs, and change nothing. Raises ConfigError."""
        basis = self._service.state.config
        return await aside(lambda: _read(config, basis))

    def take(self, change: Change) -> list[str]:
        """Take over what was prepared, in one step of the loop; return its warnings.

        Raises ConfigError where another one was taken over since.
        """
        # No await from here on: a request sees the old configuration or the new one, never a
        # mixture.
        service = self._service
        present = service.state.router.targets
        if service.state.config is not change.basis:
            raise ConfigError("another configuration was taken over meanwhile. Reload again.")
        before = {backend.name: backend for backend in change.basis.backend}
        targets: list[Target] = []
        renewed = change.contexts.digest != service.contexts.digest
        for backend, found in zip(change.config.backend, change.backends, strict=True):
            kept: list[Target] = []
            if _is_like(before.get(backend.name), backend):
                kept = [target for target in present if target.backend_name == backend.name]
            for target in targets_of(backend, found, change.config, kept):
                if target in kept and (upstream := target.upstream) is not None:
                    tls = found.tls if upstream.peer.secure else None
                    renewed |= upstream.use(found.key, found.headers, tls)
                targets.append(target)
        targets += [x for x in present if x.backend_name not in before]  # the engine's, which stays
        also = "certificates changed" if renewed else ""
        self.described = "; ".join(filter(None, (_describe(service, change, targets), also)))
        gone = [target for target in present if target not in targets]
        service.become(change.config, targets, change.keys, change.admin, change.contexts)
        if self._hosted is not None:
            self._hosted.timeouts = change.config.timeouts  # of the connections to its next start
        start_detectors(targets)
        if gone:
            task = asyncio.create_task(stop_detectors(gone))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return change.warnings

    async def close(self) -> None:
        """Stop looking at the present backends, and wait until that is so for removed ones."""
        await stop_detectors(self._service.state.router.targets)
        await asyncio.gather(*self._ending)


def _is_like(old: Backend | None, new: Backend) -> bool:
    """Say whether a backend's servers stay what they are, though some may come, go, or get more."""
    return old is not None and structs.replace(old, url=new.url, weight=new.weight) == new


def _read(config: Config, basis: Config) -> Change:
    """Return the change from `basis` to `config`. Raises ConfigError."""
    config, warnings = _possible(config, basis)
    found = tuple(outside(each, f"backend[{at}]") for at, each in enumerate(config.backend))
    keys, admin, contexts = Keys.of(config), Keys.of_admin(config), server_contexts(config.tls)
    warnings += [problem.text for problem in expiries(config)]
    return Change(basis, config, keys, admin, contexts, found, warnings)


def _possible(config: Config, basis: Config) -> tuple[Config, list[str]]:
    """Return a configuration with those parts of `basis` that cannot change now; and which differ.

    Raises ConfigError where the two do not go together: an address that other machines reach stays
    one until the restart, and keys are needed until then.
    """
    parts = {name: getattr(basis, name) for name in _FIXED}
    keys = {name: getattr(basis.server, name) for name in _FIXED_KEYS}
    names = [f"server.{key}" for key in keys if getattr(config.server, key) != keys[key]]
    names += [f"[{name}]" for name in parts if getattr(config, name) != parts[name]]
    if isinstance(config.auth, Auth) and config.auth.counters != _counters(basis):
        names.append("auth.counters")
        parts["auth"] = structs.replace(config.auth, counters=_counters(basis))
    if not names:
        return config, []
    server = structs.replace(config.server, **keys)
    config = structs.replace(config, server=server, **parts)
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    try:
        check(config)
    except ConfigError as error:
        raise ConfigError(
            f"{error} (A change of {listed} needs a restart. Until then the rest has to go "
            "together with what is in use.)"
        ) from None
    return config, [f"{listed}: a change needs a restart, so the old one holds until then."]


def _counters(config: Config) -> str | None:
    return config.auth.counters if isinstance(config.auth, Auth) else None


def _describe(service: Service, change: Change, targets: list[Target]) -> str:
    """Return what is other than before, "" for nothing."""
    old, new = ({one.name: one for one in c.backend} for c in (change.basis, change.config))
    said = _count(
        f"backends: {len(new)}",
        new=len(new.keys() - old.keys()),
        changed=sum(old[name] != new[name] for name in old.keys() & new.keys()),
        gone=len(old.keys() - new.keys()),
    )
    came, went = change.keys.compared(service.state.keys)
    keys = _count(f"client keys: {len(change.keys)}", new=came, gone=went)
    others = structs.replace(change.config, backend=change.basis.backend) != change.basis
    return "; ".join(filter(None, (said, keys, "settings changed" if others else "")))


def _count(what: str, **counts: int) -> str:
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{what} ({told})" if told else ""
