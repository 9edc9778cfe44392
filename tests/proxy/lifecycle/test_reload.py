"""A running service on another configuration: what changes, what stays, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.clock import own_time
from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Gate, Request, Upstream, stream, whole
from tests.proxy.conftest import CHAT, PROBE, StartProxy, raw
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import until
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config import Config, load
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.lifecycle.reload import Reloader
from wellspoken.proxy.lifecycle.watch import aside
from wellspoken.proxy.relay.helping.scoring import scorer_of
from wellspoken.proxy.server import Service
from wellspoken.proxy.upstream.target import Target

Table = dict[str, Any]


def table(upstream: Upstream, **more: Any) -> Table:
    """Return a backend's table as `start_proxy` has it."""
    return {"adapter": "openai", "url": upstream.url, **more}


def config(*backends: Table, **tables: Any) -> Config:
    """Return a configuration like that of `start_proxy`."""
    server = {"listen": "127.0.0.1:0", **tables.pop("server", {})}
    timeouts = {"probe": PROBE, **tables.pop("timeouts", {})}
    given = {**tables, "server": server, "timeouts": timeouts, "backend": backends}
    return load(None, given, {})


def named(service: Service) -> dict[str, Target]:
    return {target.name: target for target in service.state.router.targets}


def at(upstream: Upstream, path: str = CHAT) -> list[Request]:
    """Return the requests to a path."""
    return [request for request in upstream.requests if request.target == path]


async def test_the_same_configuration_changes_nothing(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, whole(PLAIN))
    timeouts = {"upstream_keep_alive": 3600}
    proxy = await start_proxy(upstream, timeouts=timeouts)
    service, reloader = proxy.service, Reloader(proxy.service)
    (target,) = service.state.router.targets
    for _ in range(3):
        async with await proxy.chat() as response:
            assert await response.read() == PLAIN
        assert await reloader.apply(config(table(upstream), timeouts=timeouts)) == []
        assert reloader.described == ""
        assert service.state.router.targets == (target,)
        assert target.upstream is not None
        await pass_trial(target.upstream.connections)
    assert upstream.opened == 1  # the connection was kept, too


async def test_only_what_changed_is_made_anew(start_proxy: StartProxy) -> None:
    async with Upstream() as one, Upstream() as two, Upstream() as three:
        first, second = table(one, name="a", models=["a"]), table(two, name="b", models=["b"])
        proxy = await start_proxy(first, second)
        reloader = Reloader(proxy.service)
        before = named(proxy.service)
        third = table(three, name="c", models=["c"])
        wanted = config(third, {**second, "aliases": {"bb": "b"}}, first)
        assert await reloader.apply(wanted) == []
        assert reloader.described == "backends: 3 (1 new, 1 changed)"
        after = named(proxy.service)
        assert after["a"] is before["a"] and after["b"] is not before["b"]
        for upstream, model in ((one, "a"), (two, "bb"), (three, "c")):
            upstream.script(CHAT, stream(*EVENTS, DONE))
            async with await proxy.chat(stream=True, model=model) as response:
                assert response.status == 200
            assert len(at(upstream)) == 1
        assert await reloader.apply(config(third, first)) == []
        assert reloader.described == "backends: 2 (1 gone)"
        assert "does not exist" in (await proxy.error(404, model="bb"))["message"]
        assert (await proxy.get("/v1/models"))[1]["data"][0]["id"] == "c"


async def test_a_removed_backends_stream_goes_on(start_proxy: StartProxy) -> None:
    gate = Gate()
    async with Upstream() as old, Upstream() as new:
        old.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
        new.script(CHAT, stream(*EVENTS, DONE))
        proxy = await start_proxy(old)
        async with await proxy.chat(stream=True) as response:
            await gate.reached.wait()
            assert await Reloader(proxy.service).apply(config(table(new))) == []
            async with await proxy.chat(stream=True) as other:  # the next one goes elsewhere
                assert await other.read() == b"".join(EVENTS) + DONE
            assert not at(old)[0].closed.is_set()
            gate.open()
            assert await response.read() == b"".join(EVENTS) + DONE
        await asyncio.wait_for(at(old)[0].closed.wait(), 60)  # it is not kept for a next one
        assert (len(at(old)), len(at(new)), len(old.connections)) == (1, 1, 0)


async def test_what_is_idle_closes_at_once(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script(CHAT, whole({}), whole({}))
    proxy = await start_proxy(upstream)
    await asyncio.gather(*(proxy.chat() for _ in range(4)))
    assert upstream.connections
    await Reloader(proxy.service).apply(config({"url": "http://127.0.0.1:9", "adapter": "openai"}))
    await until(lambda: not upstream.connections)


async def test_the_end_cuts_what_a_removed_backend_still_sends(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.script(CHAT, stream(*EVENTS[:2], gate, *EVENTS[2:], DONE))
    proxy = await start_proxy(upstream)
    async with await proxy.chat(stream=True):
        await gate.reached.wait()
        reloader = Reloader(proxy.service)
        for port in (9, 10, 11):
            await reloader.apply(config(table(upstream, url=f"http://127.0.0.1:{port}")))
        assert len(proxy.service._retired) == 2  # of the unused ones only the latest
        await proxy.service.stop()
        await asyncio.wait_for(at(upstream)[0].closed.wait(), 60)


async def test_settings_hold_for_the_next_request(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, whole({"choices": []}))
    proxy = await start_proxy(upstream)
    reloader = Reloader(proxy.service)
    tables: Table = {"limits": {"body": 200, "header": 2000}}
    assert await reloader.apply(config(table(upstream), **tables)) == []
    assert reloader.described == "settings changed"
    assert (await proxy.error(413, user="x" * 200))["type"] == "invalid_request_error"
    large = b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2100
    assert (await raw(proxy.port, large)).startswith(b"HTTP/1.1 431 ")
    tables["timeouts"] = {"client_header": 0.2}
    assert await reloader.apply(config(table(upstream), **tables)) == []
    assert (await raw(proxy.port, b"GET /livez HT")).startswith(b"HTTP/1.1 408 ")
    (target,) = proxy.service.state.router.targets
    assert target.upstream is not None
    await reloader.apply(config(table(upstream), timeouts={"connect": 0.125}))
    assert target.upstream.timeouts.connect == 0.125


async def test_names_readiness_and_scoring_follow(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script("/health", whole({}))
    away = table(upstream, url="http://127.0.0.1:9")
    proxy = await start_proxy(away)
    reloader = Reloader(proxy.service)
    assert (await proxy.get("/readyz"))[0] == 503
    named_request = b"GET /livez HTTP/1.1\r\nHost: llm.example\r\nConnection: close\r\n\r\n"
    assert not (await raw(proxy.port, named_request)).startswith(b"HTTP/1.1 200 ")
    await reloader.apply(config(table(upstream), server={"hosts": ["LLM.example"]}))
    assert (await proxy.get("/readyz"))[0] == 200  # what was found of the other one is not kept
    assert (await raw(proxy.port, named_request)).startswith(b"HTTP/1.1 200 ")
    (target,) = proxy.service.state.router.targets
    scorer = scorer_of(proxy.service.state, target)
    await reloader.apply(config(table(upstream)))
    assert scorer_of(proxy.service.state, target) is scorer
    await reloader.apply(config(table(upstream), limits={"scoring": 1}))
    assert scorer_of(proxy.service.state, target) is not scorer


async def test_a_backends_key_is_read_again_and_the_old_one_stays_hidden(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    file, gate = tmp_path / "key", Gate()
    file.write_text("sk-canary-12")
    said = b'{"error": {"message": "sk-canary-1 and sk-canary-12", "code": 400}}'
    refusal = whole(said, status=400)
    upstream.script(CHAT, [gate, *refusal], refusal)
    backend = table(upstream, key=f"file:{file}")
    proxy = await start_proxy(backend)
    (target,) = proxy.service.state.router.targets
    old = asyncio.create_task(proxy.error(400))
    await gate.reached.wait()
    file.write_text("sk-canary-1\n")
    assert await Reloader(proxy.service).apply(config(backend)) == []
    assert proxy.service.state.router.targets == (target,)
    errors = [await proxy.error(400)]
    gate.open()
    errors.append(await old)
    sent = [request.header("Authorization") for request in at(upstream)]
    assert sent == ["Bearer sk-canary-12", "Bearer sk-canary-1"]
    assert [error["message"] for error in errors] == ["[the key] and [the key]"] * 2


def broken(upstream: Upstream, folder: Path) -> list[tuple[Table, str]]:
    """Return configurations that are sound in themselves, and what is wrong with them here."""
    (folder / "empty").touch()
    return [
        ({"backend": [table(upstream, adapter="nothing")]}, "unknown adapter"),
        ({"backend": [table(upstream, key="env:NO_SUCH_VARIABLE")]}, "NO_SUCH_VARIABLE"),
        ({"backend": [table(upstream, key=f"file:{folder}/gone")]}, "cannot read"),
        ({"backend": [table(upstream, tokenizer=f"{folder}/gone.json")]}, "tokenizer"),
        ({"auth": {"keys": [f"file:{folder}/gone"]}}, "cannot read"),
        ({"auth": {"keys": [f"file:{folder}/empty"]}}, "holds no key"),
        ({"backend": [table(upstream, endpoints=["/v1/models"])]}, "endpoints"),
    ]


async def test_what_cannot_be_used_changes_nothing(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path
) -> None:
    proxy = await start_proxy(upstream)
    service, reloader = proxy.service, Reloader(proxy.service)

    def state() -> list[object]:
        listened = dict(service.listener.settings)
        return [
            service.state.config,
            service.state.router,
            service.state.keys,
            service.state.readiness,
            listened,
        ]

    before = state()
    for tables, words in broken(upstream, tmp_path):
        wanted = config(*tables.pop("backend", [table(upstream)]), **tables, limits={"body": 1})
        with pytest.raises(ConfigError, match=words):
            await reloader.apply(wanted)
        assert all(one is other for one, other in zip(state()[:4], before[:4], strict=True))
        assert state()[4] == before[4]
    await until(lambda: not [t for t in threading.enumerate() if t.name == "wellspoken-reload"])


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"server": {"listen": "127.0.0.1:9"}}, "server.listen: a change needs a restart"),
        ({"server": {"workers": 3}}, "server.workers: a change"),
        ({"store": {"path": "x.db"}}, "[store]: a change"),
        ({"log": {"format": "json"}}, "[log]: a change"),
        ({"traces": {"enabled": True}}, "[traces]: a change"),
        ({"auth": {"counters": "redis://x"}}, "auth.counters: a change"),
        (
            {"server": {"listen": "127.0.0.1:9"}, "log": {"level": "debug"}, "traces": {}},
            "server.listen and [log]: a change",
        ),
    ],
)
async def test_what_needs_a_restart_is_named_and_the_rest_taken_over(
    upstream: Upstream, start_proxy: StartProxy, tables: Table, named: str
) -> None:
    proxy = await start_proxy(upstream)
    before = proxy.service.state.config
    wanted = config(table(upstream), **tables, limits={"inflight": 7})
    for _ in range(2):  # it is said each time
        (warning,) = await Reloader(proxy.service).apply(wanted)
        assert warning.startswith(named) and "the old one holds until then" in warning
    after = proxy.service.state.config
    assert after.limits.inflight == 7
    assert after.auth == before.auth
    assert (after.server, after.log, after.traces, after.store, after.engine) == (
        before.server,
        before.log,
        before.traces,
        before.store,
        before.engine,
    )


ENGINE = {"kind": "llamacpp", "model": "own.gguf"}


async def test_an_engine_stays_what_it_is(upstream: Upstream) -> None:
    service = build(config(table(upstream, models=["a"]), engine=ENGINE))
    (before, engine), reloader = service.state.router.targets, Reloader(service)
    one, two = table(upstream, name="one", models=["a"]), table(upstream, name="two", models=["b"])
    assert await reloader.apply(config(one, two, engine=ENGINE)) == []
    assert reloader.described == "backends: 2 (2 new, 1 gone)"
    assert service.state.router.targets[2] is engine and before not in service.state.router.targets
    for other in ({}, {"engine": {**ENGINE, "context": 512}}):
        (warning,) = await reloader.apply(config(one, **other))
        assert warning.startswith("[engine]: a change needs a restart")
        assert service.state.router.targets[1:] == (engine,)
    with pytest.raises(ConfigError) as caught:  # sound without the engine, which is still there
        await reloader.apply(config(table(upstream, name="engine")))
    assert "[engine] needs a restart" in str(caught.value)
    assert [target.name for target in service.state.router.targets] == ["one", "engine"]
    await service.stop()


async def test_an_engine_does_not_come(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    wanted = config(table(upstream, models=["m"]), engine=ENGINE)
    (warning,) = await Reloader(proxy.service).apply(wanted)
    assert warning.startswith("[engine]: a change needs a restart")
    assert len(proxy.service.state.router.targets) == 1


async def test_an_address_that_others_reach_does_not_lose_its_keys(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new address on loopback needs none, but the present one stays until the restart."""
    monkeypatch.setenv("SOME_KEY", "sk-1")
    server = {"listen": "0.0.0.0:0"}
    proxy = await start_proxy(upstream, server=server, auth={"keys": ["env:SOME_KEY"]})
    cases: list[Table] = [{}, {"auth": {"keys": []}}]
    for auth in cases:
        with pytest.raises(ConfigError) as caught:
            await Reloader(proxy.service).apply(config(table(upstream), **auth))
        assert "no keys say who may use the proxy" in str(caught.value)
        assert "server.listen needs a restart" in str(caught.value)
        async with await proxy.chat() as response:
            assert response.status == 401


async def test_only_one_of_two_prepared_changes_is_taken(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    reloader = Reloader(proxy.service)
    one, two = [
        await reloader.prepare(config(table(upstream), limits={"inflight": size}))
        for size in (1, 2)
    ]
    assert proxy.service.state.config.limits.inflight == 1000
    assert reloader.take(two) == []
    with pytest.raises(ConfigError, match="Reload again"):
        reloader.take(one)
    assert proxy.service.state.config.limits.inflight == 2
    await asyncio.gather(
        *(
            reloader.apply(config(table(upstream), limits={"inflight": size}))
            for size in range(3, 23)
        )
    )
    assert proxy.service.state.config.limits.inflight == 22


async def test_detectors_come_and_go_with_their_backends(start_proxy: StartProxy) -> None:
    props = whole({"default_generation_settings": {}, "build_info": "b1-1", "total_slots": 1})
    async with Upstream() as one, Upstream() as two:
        for upstream in (one, two):
            upstream.script("/props", props)
        tables = [
            table(upstream, adapter="auto", name=name, models=[name])
            for upstream, name in ((one, "a"), (two, "b"))
        ]
        proxy = await start_proxy(tables[0])
        reloader = Reloader(proxy.service)
        await reloader.apply(config(*tables))
        await until(lambda: bool(at(two, "/props")))
        kept = named(proxy.service)["b"].detector
        assert kept is not None
        await kept.wait_known()
        asked = len(two.requests)
        await reloader.apply(config(tables[1]))
        assert named(proxy.service)["b"].detector is kept
        assert len(two.requests) == asked  # it is not asked once more
        await asyncio.sleep(0)
        await reloader.close()
        assert not [task for task in asyncio.all_tasks() if "_keep_asking" in repr(task.get_coro())]


async def test_a_request_that_waits_for_its_body_gets_the_new_backends(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    async with Upstream() as other:
        other.script(CHAT, stream(*EVENTS, DONE))
        proxy = await start_proxy(upstream)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        body = b'{"model": "%s", "messages": [{"role": "user", "content": "x"}], "stream": true}'
        body %= MODEL.encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:10])
        await until(lambda: proxy.service.state.inflight == 1)
        await Reloader(proxy.service).apply(config(table(other)))
        writer.write(body[10:])
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        assert (len(at(upstream)), len(at(other))) == (0, 1)


async def test_many_reloads_leave_nothing_behind(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    reloader = Reloader(proxy.service)
    fds = len(list(Path("/proc/self/fd").iterdir()))
    tasks = len(asyncio.all_tasks())
    for number in range(200):
        backend = table(upstream, adapter="auto", models=[f"m{number}"])
        await reloader.apply(config(backend))
    await reloader.apply(config(table(upstream)))
    await until(lambda: len(asyncio.all_tasks()) <= tasks)
    await reloader.apply(config(table(upstream)))  # which forgets those that are done by now
    assert len(proxy.service._retired) <= 2
    await until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= fds + 4)
    assert threading.active_count() < 20


async def test_work_aside_holds_up_neither_the_loop_nor_its_end() -> None:
    ended = threading.Event()

    def hangs() -> None:
        ended.wait(120)

    began = own_time()
    task = asyncio.create_task(aside(hangs))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ended.set()
    assert own_time() - began < 60
    assert await aside(lambda: 7) == 7
    with pytest.raises(RequestError):
        await aside(_refuses)


def _refuses() -> None:
    raise RequestError("no")
