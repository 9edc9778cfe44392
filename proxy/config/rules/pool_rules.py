"""What types cannot say of several servers of a model: names, and keys that hold for all of them.

A pool is the servers of one model, whichever backends and engine they are configured in. What a
request's choice among them goes by (`affinity`, `retry`, `fallback`) is the pool's, so all of its
tables have to say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec import UNSET

from wellspoken.proxy.config.engine_keys import names_of_models
from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, path_text, suggestion
from wellspoken.proxy.config.tables import Backend, Config, Engine
from wellspoken.proxy.config.values import ConfigError, normal_url

LEAST: Final = 0.001
"""The least weight but 0: with less, sums of weights would lose it."""
_SHARED: Final = ("affinity", "retry", "fallback", "responses")


class PoolPart(NamedTuple):
    """A backend or the engine, with where its table is and the models that clients may name."""

    path: Path
    table: Backend | Engine
    models: tuple[str, ...]

    @property
    def where(self) -> str:
        """Its table, as messages name it."""
        return path_text(self.path)


def parts_of(config: Config) -> list[PoolPart]:
    """Return all backends, and the engine behind them."""
    found = [
        PoolPart(("backend", at), each, tuple(dict.fromkeys((*each.models, *each.aliases))))
        for at, each in enumerate(config.backend)
    ]
    if config.engine is not UNSET:
        found.append(PoolPart(("engine",), config.engine, names_of_models(config.engine)))
    return found


def pools_of(parts: Sequence[PoolPart]) -> dict[str, list[PoolPart]]:
    """Return who has each model, by its name."""
    pools: dict[str, list[PoolPart]] = {}
    for part in parts:
        for model in part.models:
            pools.setdefault(model, []).append(part)
    return pools


def names_of_servers(part: Backend | Engine) -> tuple[str, ...]:
    """Return what metrics and messages call its servers: NAME, or NAME/1, NAME/2, ..."""
    count = len(part.urls) if isinstance(part, Backend) else 1
    if count == 1:
        return (part.name,)
    return tuple(f"{part.name}/{number}" for number in range(1, count + 1))


def pool_rules(config: Config) -> Iterator[Problem]:
    """Give what is wrong with names, and with what several servers of a model have to share."""
    parts = parts_of(config)
    yield from _names(parts)
    yield from _pages(config)
    for part in parts:
        if 0 < part.table.weight < LEAST:
            text = f"{part.where}.weight: {part.table.weight:g} is as good as none. Write 0, or at "
            yield Problem((*part.path, "weight"), text + f"least {LEAST:g}.")
    pools = pools_of(parts)
    yield from _shared(pools)
    for part in parts:
        yield from _fallback(part, parts, pools)


def _names(parts: Sequence[PoolPart]) -> Iterator[Problem]:
    """Refuse a name that two have, also where one of them has it for one of several servers."""
    homes: dict[str, PoolPart] = {}
    for part in sorted(parts, key=lambda part: part.path == ("engine",), reverse=True):
        name = part.table.name
        servers = {name, *names_of_servers(part.table)}
        same = next((each for each in sorted(servers) if each in homes), None)
        if same == name and homes[name].table.name == name:
            text = f"backend: two are named {name!r}. Give each its own name."
            yield Problem((*part.path, "name"), text)
        elif same is not None:
            other = homes[same]
            text = f"{same!r} is a server of {other.where} ({other.table.name!r}) too."
            yield Problem((*part.path, "name"), f"{part.where}.name: {text} Choose another.")
        for each in servers:
            homes.setdefault(each, part)


def _pages(config: Config) -> Iterator[Problem]:
    pages = [at for at, backend in enumerate(config.backend) if backend.ui]
    if len(pages) > 1:
        text = "backend: two have ui = true, but one page fits at /. Leave one."
        yield Problem(("backend", pages[1], "ui"), text)


def _shared(pools: dict[str, list[PoolPart]]) -> Iterator[Problem]:
    """Refuse other words on choice and failure in two tables of one model, each pair once."""
    told: set[tuple[Path, str]] = set()
    for model, (first, *others) in pools.items():
        for other in others:
            for key in _SHARED:
                here = (*other.path, key)
                ours, theirs = getattr(first.table, key), getattr(other.table, key)
                if ours == theirs or (here, first.where) in told:
                    continue
                told.add((here, first.where))
                yield Problem(
                    here,
                    f"{path_text(here)}: it is {_said(theirs)} here and {_said(ours)} in "
                    f"{first.where}, but both have the model {model!r}, whose servers share it. "
                    "Write the same in both.",
                )


def _said(value: str | tuple[str, ...]) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return "[" + ", ".join(f'"{name}"' for name in value) + "]"


def _fallback(
    part: PoolPart, parts: Sequence[PoolPart], pools: dict[str, list[PoolPart]]
) -> Iterator[Problem]:
    """Refuse names that nothing has, twice the same one, and those of a part's own servers."""
    by_name = {each.table.name: [each] for each in parts} | pools
    # Whoever shares a model with it has to name the same ones, for models of its own as well.
    alike = [each for model in part.models for each in pools[model]]
    own = [_paths(pools[model]) for each in alike for model in each.models] or [_paths(parts)]
    for at, name in enumerate(part.table.fallback):
        here = (*part.path, "fallback", at)
        where = path_text(here)
        if name not in by_name:
            hint = suggestion(name, by_name)
            yield Problem(here, f"{where}: no model and no backend is called {name!r}.{hint}")
        elif name in part.table.fallback[:at]:
            yield Problem(here, f"{where}: {name!r} stands there twice. Remove one.")
        elif any(each.table.responses != part.table.responses for each in by_name[name]):
            yield Problem(
                here,
                f"{where}: {name!r} has another word for responses, and a request for a response "
                "is made for one of the two. Write the same on both.",
            )
        elif all(_paths(by_name[name]) <= pool for pool in own):
            yield Problem(
                here,
                f"{where}: the servers of {name!r} are those that a request has been to already, "
                "so this would do nothing. Name another model or backend, or take it out.",
            )


def _paths(parts: Sequence[PoolPart]) -> set[Path]:
    return {part.path for part in parts}


def doubtful_pools(config: Config) -> Iterator[Problem]:
    """Give servers that one model has twice, and models whose servers all have the weight 0."""
    pools = pools_of(parts_of(config))
    told: set[Path] = set()
    for model, pool in pools.items():
        yield from _same_servers(model, pool, told)
        last = (*pool[-1].path, "weight")
        if last not in told and all(part.table.weight == 0 for part in pool):
            told.add(last)
            yield Problem(
                last,
                f"{path_text(last)}: every server of {model!r} has the weight 0, which is for one "
                "that is asked only if no other is there. Give one another weight.",
            )


def _same_servers(model: str, pool: Sequence[PoolPart], told: set[Path]) -> Iterator[Problem]:
    """Give the URLs that two backends have, and are asked there for the same by one model's name.

    Two of one server may be meant where they are asked for different ones of its models.
    """
    homes: dict[tuple[str, str], PoolPart] = {}
    for part in pool:
        table = part.table
        if not isinstance(table, Backend):
            continue
        asked = table.upstream_model or table.aliases.get(model, model)
        for at, given in enumerate(table.urls):
            here: Path = (*part.path, "url", *((at,) if not isinstance(table.url, str) else ()))
            with suppress(ConfigError):  # told already
                home = homes.setdefault((normal_url(given), asked), part)
                if home is not part and here not in told:
                    told.add(here)
                    text = f"{home.where} has this server for the model {model!r} too, so it gets "
                    text += "more requests than the others. Take one out, or set weight."
                    yield Problem(here, f"{path_text(here)}: {text}")
