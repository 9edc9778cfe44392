"""From a checked configuration to a service: adapters, keys, tokenizers, upstreams together."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, structs

from wellspoken.adapters.servers import registry
from wellspoken.adapters.servers.backend import Backend as Adapter
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
from wellspoken.proxy.routes import ROUTES
from wellspoken.proxy.server import Service
from wellspoken.proxy.tls.certificates import ClientContext, client_context
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.detector import Detector
from wellspoken.proxy.upstream.target import Router, Target, TargetSettings
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
    targets = [target_of(part, each, config) for part, each in found]
    metrics = Metrics(version())
    service = Service(config, Router(targets), metrics, _store(config, metrics))
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
            tls = client_context(normal_url(part.url), part.tls)
        refuse_endpoints(part.endpoints or (), ROUTES)
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


def target_of(part: Backend | Engine, found: Outside, config: Config) -> Target:
    """Return the target of a backend or an engine, within a running loop."""
    settings = _read_settings(part, found, config)
    adapter = settings.fit(found.adapter)
    if isinstance(part, Engine):  # its upstream comes when the engine has an address
        models = names_of_models(part)
        return Target(part.name, adapter, None, models=models, settings=settings)
    upstream = Upstream(
        normal_url(part.url),
        config.timeouts,
        key=found.key,
        headers=found.headers,
        tls=found.tls,
        alias=part.name if settings.places else "",
        places=settings.places,
    )
    target = Target(part.name, adapter, upstream, models=part.models, settings=settings)
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
        endpoints=part.endpoints,
        forwards=client_headers(part),
        caps=part.caps,
        places=tuple(find_places(part)) if elsewhere else (),
        elsewhere=elsewhere,
    )
    if isinstance(part, Engine):
        return settings
    return structs.replace(
        settings,
        aliases=part.aliases,
        upstream_model=part.upstream_model,
        auth_pass=part.auth == "pass",
        # llama.cpp's page names no model and sends max_tokens -1.
        bounds="backend" if part.ui else part.bounds,
        ui=part.ui,
        streams=part.streams,
    )
