"""`wellspoken doctor` on a real llama.cpp, and on servers that answer badly or not at all."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.clock import own_time, skip
from tests.conforming import CREATED, MODEL, body
from tests.conforming_completions import body as text_body
from tests.demo.replay import OLDEST, old_vllm
from tests.fakes.upstream import Cut, Gate, Script, Stall, Upstream, head, whole
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.doctor.diagnose import DoctorOptions, diagnose
from wellspoken.proxy.doctor.probe import Report
from wellspoken.proxy.doctor.probes import PROBES, select_probes
from wellspoken.proxy.server import Service

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
SECRET = "sk-canary-5db1f0e2c9"
LISTED: Script = whole({"object": "list", "data": [{"id": MODEL, "owned_by": "somebody"}]})


async def examined(url: str, *names: str, **more: Any) -> Report:
    return await diagnose(DoctorOptions(url, select_probes(names, ()), **more))


async def examined_while_it_hangs(gate: Gate, url: str, *names: str) -> Report:
    """Examine a server with a limit of 30 s, which are over once a request waits at the gate."""
    asking = asyncio.create_task(examined(url, *names, limit=30.0))
    while not asking.done():
        waiting = asyncio.create_task(gate.reached.wait())
        await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if gate.reached.is_set():
            gate.reached.clear()
            await asyncio.sleep(0.05)  # for what came before the gate to be read
            skip(31.0)
    return await asking


def outcomes(report: Report) -> dict[str, str]:
    return {result.probe.name: result.outcome for result in report.results}


def of(report: Report, outcome: str) -> list[str]:
    return [name for name, found in outcomes(report).items() if found == outcome]


async def test_a_real_llama_cpp(llama_server: str) -> None:
    began = own_time()
    report = await examined(llama_server)
    assert own_time() - began < 20
    assert (report.error, report.model, report.code) == ("", "tiny", 0)
    assert "llama.cpp" in report.backend
    assert list(outcomes(report)) == [probe.name for probe in PROBES]
    assert of(report, "fails") == []
    assert {"error-model", "embeddings"} <= set(of(report, "skipped"))
    passing = {"chat-id", "created", "usage", "stop", "max-tokens", "stream-framing", "tools"}
    assert passing <= set(of(report, "pass"))
    repaired = {
        "models", "chat-body", "headers", "logprobs", "logprobs-alone", "stop-logprobs",
        "stream-role", "stream-usage", "tool-named", "error-json", "error-temperature",
        "completions", "completions-logprobs", "completions-echo", "responses",
        "responses-stream", "responses-logprobs", "responses-continue", "responses-item",
    }  # fmt: skip
    assert repaired <= set(of(report, "repaired"))
    [body_probe] = [one for one in report.results if one.probe.name == "chat-body"]
    assert "timings" in body_probe.backend.said
    assert "refusal_missing" in body_probe.repairs
    [stream] = [one for one in report.results if one.probe.name == "stream-usage"]
    assert "usage_null_missing" in stream.repairs


async def test_a_server_without_responses_is_told_as_such(upstream: Upstream) -> None:
    """TGI, mlx-lm, cortex and llama-cpp-python have no such endpoint."""
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole(body()))
    upstream.script("/v1/responses", whole({"detail": "Not Found"}, status=404))
    report = await examined(upstream.url, "responses*")
    assert len(report.results) == 9
    said = {(one.backend.state, one.backend.said) for one in report.results}
    assert said == {("lacks", "the server has no /v1/responses (status 404)")}
    assert {"responses-error", "responses-item"} <= set(of(report, "repaired"))


async def test_a_response_is_continued_by_the_id_of_each_side(upstream: Upstream) -> None:
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole(body()))
    mine = {"id": 'resp_"1', "object": "response", "usage": {"input_tokens": 5}}
    later = {**mine, "previous_response_id": 'resp_"1', "usage": {"input_tokens": 9}}
    upstream.script("/v1/responses", whole(mine), whole(later))
    report = await examined(upstream.url, "responses-continue")
    [result] = report.results
    assert (result.backend.state, result.backend.said) == ("ok", "")
    sent = [one.json() for one in upstream.requests if one.target == "/v1/responses"]
    assert [one.get("previous_response_id") for one in sent] == [None, 'resp_"1']
    chats = [one.json()["messages"] for one in upstream.requests if one.target == CHAT]
    assert [len(messages) for messages in chats[-2:]] == [1, 3]  # the proxy goes on by its own


async def test_a_response_without_an_id_is_not_continued(upstream: Upstream) -> None:
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole(body()))
    upstream.script("/v1/responses", whole({"object": "response"}))
    report = await examined(upstream.url, "responses-continue")
    assert report.results[0].backend.state == "broken"


async def test_the_other_tokenizer_and_a_named_adapter(llama_server_bpe: str) -> None:
    found = await examined(llama_server_bpe)
    assert of(found, "fails") == []
    named = await examined(llama_server_bpe, "chat*", "logprobs*", adapter="llamacpp")
    assert named.backend == "adapter llamacpp"
    assert outcomes(named)["logprobs"] == "repaired"
    native = await examined(llama_server_bpe, "usage", "created", adapter="llamacpp-native")
    assert outcomes(native) == {"usage": "pass", "created": "pass"}


async def test_an_old_vllm_whose_logprobs_are_arrays() -> None:
    """Its answers are replayed (tests/fixtures/demo), whatever is asked for."""
    async with old_vllm() as url:
        report = await examined(url, model=OLDEST)
    logprobs = {name: out for name, out in outcomes(report).items() if "logprobs" in name}
    assert {
        name: "repaired" for name in logprobs if name != "completions-logprobs"
    }.items() <= logprobs.items()
    assert {"chat-id", "created", "stream-chunks", "stream-no-usage"} <= set(of(report, "repaired"))
    # A recording follows no schema and calls no function, which no proxy can repair.
    assert {"tools", "json-schema", "logit-bias"} <= set(of(report, "fails"))
    assert {"completions", "embeddings"} <= set(of(report, "skipped"))
    assert report.code == 1
    [scored] = [one for one in report.results if one.probe.name == "logprobs"]
    assert "token_logprobs" in scored.backend.said
    assert "logprobs_legacy_arrays" in scored.repairs


async def test_a_server_that_refuses_connections(upstream: Upstream) -> None:
    await upstream.refuse()
    report = await examined(upstream.url)
    assert report.code == 2
    assert "refused the connection" in report.error
    assert "proxy" not in report.error
    assert report.results == ()


async def test_a_server_that_hangs(upstream: Upstream) -> None:
    upstream.scripts = [[Stall()]]
    report = await examined(upstream.url, limit=0.3)
    assert report.code == 2
    assert "does not answer a chat request: no answer within 0.3 s" in report.error
    assert "--timeout" in report.error
    gate = Gate()
    upstream.scripts = []
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, [gate])
    report = await examined_while_it_hangs(gate, upstream.url)
    assert "though it lists its models" in report.error


async def test_a_server_that_hangs_later_is_given_up(upstream: Upstream) -> None:
    """Three requests in a row wait; the others are not sent, and the report says so."""
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole(body()), whole(body()), [gate := Gate()])
    began = own_time()
    names = ("created", "n", "seed", "stop", "messages")
    report = await examined_while_it_hangs(gate, upstream.url, *names)
    assert own_time() - began < 10
    found = {one.probe.name: (one.outcome, one.backend.said) for one in report.results}
    assert found["n"] == ("fails", "no answer within 30 s")
    given_up = "not asked any more: 3 requests in a row were not answered"
    assert found["messages"] == ("skipped", given_up)
    assert report.code == 1


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (whole(b"<html><h1>It works!</h1></html>", content_type="text/html"), "with a web page"),
        (whole(b"<h1>Bad Gateway</h1>", 502, "text/plain"), "a web page (status 502: Bad Gateway)"),
        (whole({"error": {"message": "Loading model", "code": 503}}, 503), "is not ready (status"),
        (whole({"detail": "Not Found"}, 404), "answers no chat request (status 404: Not Found)"),
        ([head(length=100) + b"{", Cut()], "closed the connection"),
        ([b"SSH-2.0-OpenSSH_9.6\r\n", Cut()], "not HTTP"),
        (
            [b"HTTP/1.1 302 Found\r\nLocation: http://other:1/v1\r\nContent-Length: 0\r\n\r\n"],
            "sends requests on to http://other:1/v1 (status 302), where the proxy does not",
        ),
    ],
    ids=["html", "gateway", "loading", "other", "cut", "ssh", "elsewhere"],
)
async def test_what_is_no_llm_server_is_said_to_be_none(
    upstream: Upstream, script: Script, words: str
) -> None:
    upstream.scripts = [script]
    report = await examined(upstream.url)
    assert report.code == 2
    assert words in report.error


async def test_an_answer_that_does_not_come_on(upstream: Upstream) -> None:
    upstream.scripts = [[head(length=100) + b"{", gate := Gate()]]
    report = await examined_while_it_hangs(gate, upstream.url)
    assert report.code == 2
    assert "no chat request: only 1 bytes within 30 s. Look at" in report.error


async def test_a_model_that_is_not_there(upstream: Upstream) -> None:
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole({"error": {"message": "No model gpt-9"}}, 404))
    report = await examined(upstream.url, model="gpt-9")
    assert report.code == 2
    assert f"Name another with --model: {MODEL}" in report.error


async def test_a_server_without_a_list_of_models(upstream: Upstream) -> None:
    upstream.script(CHAT, whole(body(created=CREATED)))
    report = await examined(upstream.url, "model", "usage")
    assert report.model == "default"
    assert outcomes(report) == {"model": "skipped", "usage": "pass"}
    assert "--model" in report.notes[0]


async def test_a_server_of_completions_alone(upstream: Upstream) -> None:
    upstream.script(MODELS, LISTED)
    upstream.script("/v1/completions", whole(text_body(model=MODEL, created=int(time.time()))))
    report = await examined(upstream.url, "chat-body", "completions", adapter="openai")
    assert outcomes(report) == {"chat-body": "fails", "completions": "pass"}


async def test_a_unix_socket(tmp_path: Path) -> None:
    async with Upstream(path=tmp_path / "s") as server:
        server.script(MODELS, LISTED)
        server.script(CHAT, whole(body()))
        report = await examined(server.url, "usage")
    assert outcomes(report) == {"usage": "pass"}


async def test_a_repeated_stop_word_or_a_lost_text_is_told_apart(upstream: Upstream) -> None:
    """A backend that ignores stop is repaired, since the proxy cuts by itself."""
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole(body(model=MODEL)))
    report = await examined(upstream.url, "stop", adapter="openai")
    assert outcomes(report) == {"stop": "repaired"}
    assert "stop_enforced" in report.results[0].repairs


LOCKED = whole({"error": {"message": f"Bad key: {SECRET}", "code": 401}}, 401)


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize("form", ["--json", "--markdown", "--skip=n"])
async def test_a_key_that_is_missing_or_wrong(
    upstream: Upstream,
    with_key: bool,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CANARY", SECRET)
    upstream.scripts = [LOCKED if with_key else whole({"detail": "no key"}, 401)]
    options = ["--key", "env:CANARY"] if with_key else []
    code = await asyncio.to_thread(main, ["doctor", upstream.url, form, *options])
    assert code == 2
    said = "".join(capsys.readouterr())
    assert SECRET not in said
    assert ("refuses the key of env:CANARY" if with_key else "wants a key") in said
    assert (upstream.requests[-1].header("Authorization") is not None) == with_key


async def test_a_key_that_is_right_is_sent_and_never_shown(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CANARY", SECRET)
    leaky = whole(
        {"error": {"message": f"Authorization: Bearer {SECRET}", "code": 400}},
        400,
        headers=[("X-Echo", SECRET)],
    )
    upstream.script(MODELS, LISTED)
    for form in ("--json", "--markdown", "--timeout=5"):
        upstream.script(CHAT, whole(body()), whole(body()), leaky)
        arguments = ["doctor", upstream.url, "--key", "env:CANARY", form]
        assert await asyncio.to_thread(main, arguments) == 1
    said = "".join(capsys.readouterr())
    assert SECRET not in said
    assert "Bearer [the key]" in said
    keys = {one.header("Authorization") for one in upstream.requests}
    assert keys == {f"Bearer {SECRET}"}


async def test_nobody_else_may_use_the_proxy_meanwhile(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listens on a port of this machine, in front of a server whose key it has."""
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole(body()))
    ports: list[tuple[str, int]] = []
    answered: list[int] = []
    start = Service.start

    async def remembered(self: Service, *, shared: bool = False) -> tuple[str, int]:
        ports.append(await start(self, shared=shared))
        async with ClientSession() as session:
            async with session.get(f"http://{ports[0][0]}:{ports[0][1]}{MODELS}") as answer:
                answered.append(answer.status)
        return ports[0]

    monkeypatch.setattr(Service, "start", remembered)
    await examined(upstream.url, "usage")
    assert ports[0][0] == "127.0.0.1"
    assert answered == [401]


@pytest.mark.parametrize("more", [{"adapter": "vlm"}, {"key": "env:NOT_SET"}, {"key": SECRET}])
async def test_options_that_cannot_be_used(more: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as error:
        await examined("http://127.0.0.1:9", **more)
    assert SECRET not in str(error.value)


async def test_the_environment_has_no_say(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A WELLSPOKEN_* of the user's proxy would open its store, or its port."""
    monkeypatch.setenv("WELLSPOKEN_STORE_PATH", str(tmp_path / "store.db"))
    monkeypatch.setenv("WELLSPOKEN_LISTEN", "no address")
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole(body()))
    report = await examined(upstream.url, "usage")
    assert report.code == 0
    assert list(tmp_path.iterdir()) == []


async def test_half_a_character_and_an_endless_answer(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither can be asked for again, and neither ends the examination."""
    monkeypatch.setattr("wellspoken.proxy.doctor.sender.LARGEST", 100_000)
    upstream.script(MODELS, whole(b'{"data": [{"id": "\\ud800"}, {"id": "m"}]}'))
    half = b'{"choices": [{"message": {"content": "x\\ud800yz and some more"}}]}'
    upstream.script(CHAT, whole(half), whole(half), whole(b"[" + b" " * 200_000))
    report = await examined(upstream.url, "usage", "logprobs", "stop")
    said = {one.probe.name: one.backend.said for one in report.results}
    assert report.model == "m"
    assert said["usage"] == "usage is null"
    assert "MiB" in said["logprobs"]


async def test_a_server_that_says_escape_sequences(
    upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a server wrote reaches a terminal as text, in every form."""
    evil = "\x1b[2J\x1b]0;owned\x07\u202e\n\r"
    answer = body(**{evil: evil, "object": evil, "id": evil}) | {"usage": {evil: evil}}
    refusal = {"error": {"message": evil, "code": evil, evil: evil}}
    upstream.script(MODELS, whole({"data": [{"id": evil, "owned_by": evil, evil: 1}]}))
    for form in ("--json", "--markdown", "--timeout=5"):
        upstream.script(CHAT, *[whole(answer)] * 3, whole(refusal, 400))
        code = await asyncio.to_thread(main, ["doctor", upstream.url, form])
        assert code == 1
        shown = capsys.readouterr().out
        kept = {"\n", "\u202e"} if form == "--json" else {"\n"}
        assert not {c for c in shown if not c.isprintable()} - kept
        if form == "--json":
            assert json.loads(shown)["model"] == evil
