"""Whether the servers of one model fit each other, as far as they tell without generating a token.

A request may go to any of them, so each has to know the model, take as long a prompt, and mean the
same by a token id. Each is asked what it is, for its list of models, for context lengths and the
size of its vocabulary, and for the token ids of one text; an engine of the proxy's own is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from msgspec import Raw, json, structs

from wellspoken.adapters.servers.model_list import NOTHING_LISTED, Listed
from wellspoken.adapters.tokens.tokenize import read_ids, text_request
from wellspoken.proxy.config import Config
from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, path_text
from wellspoken.proxy.config.rules.pool_rules import parts_of, pools_of
from wellspoken.proxy.config.tables import Backend, Server
from wellspoken.proxy.lifecycle.build import outside, targets_of
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.listing import list_server
from wellspoken.proxy.upstream.target import Target, stop_detectors

TEXT: Final = 'Grüße, 東京! def f(x): return {"n": x ** 2}  # 1234567'
"""Whose tokens differ from one vocabulary to the next: scripts, code, digits and blanks."""

_SHOWN: Final = 5  # listed models that a warning names
_ASKED: Final = 8  # models of one pool without configured names whose vocabulary is asked for
_LIMIT: Final = 65_536  # bytes of the text's tokens


@dataclass(eq=False)
class _Server:
    """One server: where its URL stands, and what it told; `answers`: whether it did."""

    path: Path
    target: Target
    listed: Listed = NOTHING_LISTED
    answers: bool = False

    @property
    def where(self) -> str:
        return path_text(self.path)

    @property
    def name(self) -> str:
        return self.target.name

    def calls(self, model: str) -> str:
        """Return what it is asked for where a client asks for `model`."""
        return self.target.model_for(model) or model

    def lists(self, model: str) -> bool:
        """Say whether it lists a client's model; Ollama does with a tag."""
        theirs = self.calls(model)
        return theirs in self.listed.models or f"{theirs}:latest" in self.listed.models


def survey(config: Config) -> list[Problem]:
    """Return in what the servers of a model differ, and which do not answer, as warnings.

    It asks them, each question in `timeouts.probe`. The configuration must be good.
    """
    return asyncio.run(_survey(config))


async def _survey(config: Config) -> list[Problem]:
    config = structs.replace(
        config,
        server=Server(),  # where other machines reach the proxy, errors do not name a URL
        timeouts=structs.replace(
            config.timeouts, connect=min(config.timeouts.connect, config.timeouts.probe)
        ),
    )
    async with AsyncExitStack() as stack:
        parts = parts_of(config)
        servers = {
            part.path: _open_servers(part.table, part.path, config, stack)
            for part in parts
            if isinstance(part.table, Backend)
        }
        pools = {
            model: [server for part in having for server in servers.get(part.path, ())]
            for model, having in pools_of(parts).items()
        }
        if not pools:  # a sole backend, where any model's name passes
            pools = {"": [server for each in servers.values() for server in each]}
        pools = {model: pool for model, pool in pools.items() if len(pool) > 1}
        asked = list(dict.fromkeys(server for pool in pools.values() for server in pool))
        told = [*await asyncio.gather(*map(_meet, asked))]
        told += await asyncio.gather(*(_compare(model, pool) for model, pool in pools.items()))
        return list(dict.fromkeys(problem for each in told for problem in each))


def _open_servers(
    backend: Backend, path: Path, config: Config, stack: AsyncExitStack
) -> list[_Server]:
    """Return a backend's servers, none of which is connected yet."""
    found = []
    targets = targets_of(backend, outside(backend, path_text(path)), config)
    for at, target in enumerate(targets):
        stack.push_async_callback(target.connection().close)
        here = (*path, "url") if isinstance(backend.url, str) else (*path, "url", at)
        found.append(_Server(here, target))
    stack.push_async_callback(stop_detectors, targets)
    return found


async def _meet(server: _Server) -> list[Problem]:
    """Have a server say what it is and list its models; return why it does not."""
    target = server.target
    try:
        if target.detector is not None:
            await target.detector.wait_known()
        server.listed = await list_server(target)
    except UpstreamError as error:
        if target.settings.auth_pass and error.reason == "protocol":
            return []  # it wants a client's key, which nobody has here
        return [Problem(server.path, f"{server.where}: {error}")]
    server.answers = True
    return []


async def _compare(model: str, pool: Sequence[_Server]) -> list[Problem]:
    """Return in what servers differ that should serve `model` alike; "": whatever they list."""
    pool = [server for server in pool if server.answers]
    if len(pool) < 2:
        return []
    found = list(_compare_lists(model, pool))
    models = [model] if model else list(pool[0].listed.models)[:_ASKED]
    for each in models:
        having = [server for server in pool if model or server.lists(each)]
        found += _compare_lengths(each, having)
        told = await asyncio.gather(*(_ask_vocabulary(server, each) for server in having))
        found += _compare_vocabularies(each, list(zip(having, told, strict=True)))
    return found


def _compare_lists(model: str, pool: Sequence[_Server]) -> Iterator[Problem]:
    """Give the servers that do not list a model, or (model "") not what the first one does.

    Servers that list one and the same model answer under any name.
    """
    first = pool[0]
    alike = all(server.listed.models.keys() == first.listed.models.keys() for server in pool)
    if alike and (not model or len(first.listed.models) == 1):
        return
    for server in pool:
        if server.lists(model) if model else server.listed.models == first.listed.models:
            continue
        lists = f"{server.where}: {server.name} lists {_name_models(server)}"
        if model:
            said = f"{lists}, not {server.calls(model)!r}. Serve that there under this name, or "
            yield Problem(server.path, said + "correct models, aliases or upstream_model.")
        elif server.listed.models.keys() != first.listed.models.keys():
            said = f"{lists}, but {first.name} {_name_models(first)}. A request may go to either, "
            yield Problem(server.path, said + "so serve the same under the same names.")


def _name_models(server: _Server) -> str:
    names = sorted(server.listed.models)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more if names else "no model"


def _compare_lengths(model: str, pool: Sequence[_Server]) -> Iterator[Problem]:
    lengths = {server: server.listed.length(server.calls(model)) for server in pool}
    told = [(server, length) for server, length in lengths.items() if length is not None]
    for server, length in told[1:]:
        first, most = told[0]
        if length != most:
            yield Problem(
                server.path,
                f"{server.where}: {server.name} has a context of {length} tokens for {model!r}, "
                f"{first.name} one of {most}. What one takes the other may refuse, so start both "
                "with the same.",
            )


@dataclass(frozen=True)
class _Vocabulary:
    """What a server tells of a model's vocabulary, each None where it does not.

    `special`: it was told to leave out the tokens that begin or end a prompt.
    """

    size: int | None = None
    ids: tuple[int, ...] | None = None
    special: bool = False


async def _ask_vocabulary(server: _Server, model: str) -> _Vocabulary:
    target, theirs = server.target, server.calls(model)
    size, form = await target.vocabulary_size(theirs), target.backend.tokenize
    if form is None:
        return _Vocabulary(size)
    body = text_request(form, TEXT, Raw(json.encode(theirs)), prompt=False)
    try:
        status, data = await target.connection().post(form.path, body, _LIMIT)
    except UpstreamError:
        return _Vocabulary(size)  # what is not told is not compared
    return _Vocabulary(size, read_ids(data) if status == 200 else None, bool(form.special))


def _compare_vocabularies(
    model: str, told: Sequence[tuple[_Server, _Vocabulary]]
) -> Iterator[Problem]:
    """Give the servers whose vocabulary is another than that of one before them."""
    for at, (server, found) in enumerate(told):
        for other, theirs in told[:at]:
            why = _how_they_differ(found, theirs)
            if why:
                yield Problem(
                    server.path,
                    f"{server.where}: {server.name} has another vocabulary for {model!r} than "
                    f"{other.name} ({why}). Token ids and logit_bias mean other things there, and "
                    "counts differ, so serve the same model with the same tokenizer.",
                )
                break


def _how_they_differ(one: _Vocabulary, other: _Vocabulary) -> str:
    """Return what shows that two vocabularies are not the same, "" where nothing does."""
    if None not in (one.size, other.size) and one.size != other.size:
        return f"{one.size} token ids, not {other.size}"
    if one.ids is None or other.ids is None or one.special != other.special:
        return ""
    if len(one.ids) != len(other.ids):
        return f"one text is {len(one.ids)} tokens, not {len(other.ids)}"
    return "one text has other token ids" if one.ids != other.ids else ""
