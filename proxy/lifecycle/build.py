"""From a checked configuration to a service: adapters, keys, tokenizers, upstreams together."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, structs

from wellspoken.adapters.servers import registry
from wellspoken.adapters.servers.backend import Backend as Adapter
from wellspoken.proxy.balance.router import Router
from wellspoken.proxy.config.backend_headers import StaticHeaders, client_headers, read_headers
from wellspoken.proxy.config.checks import refuse_endpoints
from wellspoken.proxy.config.engine_keys import names_of_models
from wellspoken.proxy.config.tables import Auth, Backend, Config, Engine
from wellspoken.proxy.config.values import (
    ConfigError,
    counters_url,
    find_places,
    is_reached_from_elsewhere,
    normal_url,
    read_key,
)
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.routes import OWN_PATHS
from wellspoken.proxy.server import Service
from wellspoken.proxy.tls.certificates import ClientContext, client_context
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.detector import Detector
from wellspoken.proxy.upstream.target import Target, TargetSettings
from wellspoken.proxy.upstream.tokenizer import Tokenizer

if TYPE_CHECKING:
    from wellspoken.proxy.limits.redis_counters import RedisCounters
    from wellspoken.proxy.store.completions import CompletionStore


def version() -> str:
    """Return the installed version of this distribution."""
    return importlib.metadata.version("wellspoken")


class Outside(NamedTuple):
    """What belongs to a backend or engine and does not stand in the configuration itself."""

    key: str | None
    headers: StaticHeaders
    adapter: Adapter
    tokenizer: Tokenizer | None
    tls: ClientContext | None = None


def build(config: Config) -> Service:
    """Return the service of `config`, within a running loop; nothing is connected or read yet.

    Raises ConfigError for an unknown adapter, a key that cannot be read, or a tokenizer that is not
    there.
    """
    parts: list[tuple[str, Backend | Engine]] = [
        (f"backend[{at}]", backend) for at, backend in enumerate(config.backend)
    ]
    if config.engine is not UNSET:
        parts.append(("engine", config.engine))
    found = [(part, outside(part, where)) for where, part in parts]
    targets = [target for part, each in found for target in targets_of(part, each, config)]
    metrics = Metrics(version())
    service = Service(config, _router(targets, config), metrics, _store(config, metrics))
    if isinstance(config.auth, Auth) and config.auth.counters is not None:
        service.state.counters = counters = open_counters(config.auth)
        counters.start()
    return service


def open_counters(auth: Auth) -> RedisCounters:
    """Return what counts for several proxies; it is not asked yet. Raises ConfigError."""
    url = counters_url(auth.counters or "")
    try:
        from wellspoken.proxy.limits.redis_counters import RedisCounters
    except ModuleNotFoundError as error:
        raise ConfigError("auth.counters: it needs redis: pip install 'redis>=6'") from error
    try:
        return RedisCounters(url)
    except ValueError as error:  # which does not repeat the password
        raise ConfigError(f"auth.counters: {error}. Correct the URL.") from None


def _store(config: Config, metrics: Metrics) -> CompletionStore | None:
    """Return the store if one is configured; what it needs is loaded only then."""
    if not config.store.configured:
        return None
    from wellspoken.proxy.metrics.store_families import StoreMetrics
    from wellspoken.proxy.store.completions import CompletionStore
    from wellspoken.proxy.store.database import StoreError

    try:
        log = logging.getLogger("wellspoken")
        return CompletionStore(config.store, StoreMetrics(metrics.registry), log)
    except StoreError as error:  # a place or a driver that is not there
        raise ConfigError(f"store: {error}") from error


def outside(part: Backend | Engine, where: str) -> Outside:
    """Return what a backend or an engine needs, from its files; any thread may ask.

    `where`: its table, as messages name it. Raises ConfigError as `build` does.
    """
    key = tokenizer = tls = None
    headers = StaticHeaders()
    try:
        if isinstance(part, Backend):
            key = read_key(part.key) if part.key is not None else None
            headers = read_headers(part.headers)
            urls = [normal_url(url) for url in part.urls]
            secure = next((url for url in urls if url.startswith("https:")), urls[0])
            tls = client_context(secure, part.tls)
        refuse_endpoints(part.endpoints or (), OWN_PATHS)
        adapter = _adapter(part.kind if isinstance(part, Engine) else part.adapter)
        if part.tokenizer is not None:
            tokenizer = Tokenizer(part.tokenizer, download=part.tokenizer_download)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from error
    return Outside(key, headers, adapter, tokenizer, tls)


def _adapter(name: str) -> Adapter:
    try:
        return registry.find(name)
    except ValueError as error:
        raise ConfigError(f"adapter: {error}.") from error


def _router(targets: Sequence[Target], config: Config) -> Router:
    return Router(targets, config.health, config.limits.retries)


def targets_of(
    part: Backend | Engine, found: Outside, config: Config, present: Sequence[Target] = ()
) -> list[Target]:
    """Return the targets of a backend, one a server, or of an engine, within a running loop.

    `present`: those that there were before a reload, of which each is kept whose URL still stands
    there, under the name that it has. A further one takes the first number that is free.
    """
    settings = _read_settings(part, found, config)
    if isinstance(part, Engine):  # its upstream comes when the engine has an address
        return [
            Target(
                part.name,
                settings.fit(found.adapter),
                None,
                settings=settings,
                models=names_of_models(part),
                backend_name=part.name,
                weight=part.weight,
            )
        ]
    urls = list(dict.fromkeys(normal_url(url) for url in part.urls))
    kept = {target.upstream.url: target for target in present if target.upstream is not None}
    if (len(kept) == 1) != (len(urls) == 1):
        kept = {}  # the name of a sole one has no number
    taken = {target.name for url, target in kept.items() if url in urls}
    free = (name for at in count(1) if (name := f"{part.name}/{at}") not in taken)
    targets = []
    for url in urls:
        target = kept.get(url) or _server_of(
            part, part.name if len(urls) == 1 else next(free), url, settings, found, config
        )
        target.weight = part.weight
        targets.append(target)
    return targets


def _server_of(
    part: Backend, name: str, url: str, settings: TargetSettings, found: Outside, config: Config
) -> Target:
    upstream = Upstream(
        url,
        config.timeouts,
        key=found.key,
        headers=found.headers,
        tls=found.tls if url.startswith("https:") else None,
        alias=name if settings.places else "",
        places=settings.places,
    )
    adapter = settings.fit(found.adapter)
    target = Target(
        name, adapter, upstream, settings=settings, models=part.models, backend_name=part.name
    )
    if part.adapter.strip().lower() == "auto":
        log = logging.getLogger("wellspoken")
        target.detector = Detector(
            target.name, upstream, target.recognise, target.learn_labels, log
        )
    return target


def _read_settings(part: Backend | Engine, found: Outside, config: Config) -> TargetSettings:
    """Return what requests need of a backend's or an engine's table."""
    elsewhere = is_reached_from_elsewhere(config.server.listen)
    settings = TargetSettings(
        extensions=part.extensions,
        keep=frozenset(part.keep),
        bounds=part.bounds,
        tokenizer=found.tokenizer,
        vendor=part.vendor,
        past_reasoning=part.past_reasoning,
        recover=frozenset(part.recover),
        system=part.system,
        responses=part.responses,
        endpoints=part.endpoints,
        forwards=client_headers(part),
        caps=part.caps,
        places=tuple(find_places(part)) if elsewhere else (),
        elsewhere=elsewhere,
        affinity=part.affinity,
        retry=part.retry,
        fallback=part.fallback,
    )
    if isinstance(part, Engine):
        return structs.replace(settings, models=tuple(names_of_models(part)))
    return structs.replace(
        settings,
        models=part.models,
        aliases=part.aliases,
        upstream_model=part.upstream_model,
        auth_pass=part.auth == "pass",
        # llama.cpp's page names no model and sends max_tokens -1.
        bounds="backend" if part.ui else part.bounds,
        ui=part.ui,
        streams=part.streams,
        health_path=part.health_path,
    )
