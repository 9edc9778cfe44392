"""What a real llama.cpp does with each parameter of a request, asked through the proxy.

An effect is shown, not that the parameter is taken: a token that is gone, an answer that is the
same twice, a schema that holds. Each is asked for as a body and as a stream; every answer is
checked against the contract on the way.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import ClientSession

from tests.conformance import (
    check_body,
    check_completion_body,
    check_completion_stream,
    check_error,
    check_stream,
)
from tests.corpus import checked_request
from tests.fold import chunks_of, fold, fold_completion
from tests.models.tiny import TEXT

Json = dict[str, Any]

CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


class Answer:
    """One answer, a stream folded: its choices, and what the proxy says of it."""

    def __init__(self, body: Json, repairs: str, chunks: list[Json]) -> None:
        self.body = body
        self.repairs = repairs
        self.chunks = chunks

    @property
    def texts(self) -> list[str | None]:
        return [x["text"] if "text" in x else x["message"]["content"] for x in self.body["choices"]]

    @property
    def text(self) -> str:
        (text,) = self.texts
        return text or ""

    @property
    def said(self) -> str:
        """All text of the only choice, also what the server takes for reasoning."""
        (choice,) = self.body["choices"]
        return str(choice["message"].get("reasoning_content", "")) + self.text

    @property
    def reason(self) -> str:
        return str(self.body["choices"][0]["finish_reason"])

    @property
    def calls(self) -> list[tuple[str, Any]]:
        calls = self.body["choices"][0]["message"].get("tool_calls", [])
        return [(x["function"]["name"], json.loads(x["function"]["arguments"])) for x in calls]

    @property
    def usage(self) -> tuple[int, int]:
        usage = self.body["usage"]
        return usage["prompt_tokens"], usage["completion_tokens"]

    @property
    def tokens(self) -> list[tuple[str, float]]:
        """The tokens of the only choice with their logprobs."""
        logprobs = self.body["choices"][0]["logprobs"]
        if "tokens" in logprobs:
            return list(zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True))
        return [(x["token"], x["logprob"]) for x in logprobs["content"]]


class Ask:
    """Asks one endpoint of a proxy, always for a body or always for a stream."""

    def __init__(self, session: ClientSession, upstream: str, path: str, stream: bool) -> None:
        self.session = session
        self.upstream = upstream
        self.chat = path == CHAT
        self.path = path
        self.stream = stream

    def request(self, content: str, more: Json) -> Json:
        asked: Json = {"model": "tiny", "temperature": 0, "max_tokens": 40}
        if self.chat:
            asked["messages"] = [{"role": "user", "content": content or "hi"}]
        else:
            script = f"<|{content[1:]}|>" if content else ""
            asked["prompt"] = PROMPT + script
        if self.stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        return asked | more

    async def __call__(self, content: str = "", **more: Any) -> Answer:
        """Return the answer, which conforms to the contract."""
        asked = self.request(content, more)
        status, data, repairs = await self.post(asked)
        assert status == 200, (status, data)
        kept = "include_stop_str_in_output" in asked  # then a stop string is no fault
        request = checked_request({k: v for k, v in asked.items() if k != "stop" or not kept})
        check: Callable[..., list[Any]]
        if self.chat:
            check = check_stream if self.stream else check_body
        else:
            check = check_completion_stream if self.stream else check_completion_body
        found = [] if "functions" in asked else check(data, request)  # it knows tools alone
        assert found == [], (found, asked, data)
        if not self.stream:
            return Answer(json.loads(data), repairs, [])
        chunks = chunks_of(data)
        return Answer((fold if self.chat else fold_completion)(data), repairs, chunks)

    async def refusal(self, content: str = "", **more: Any) -> tuple[str | None, str | None]:
        """Return param and code of a 400."""
        status, data, _ = await self.post(self.request(content, more))
        assert status == 400, (status, data)
        assert check_error(data, 400) == []
        error = json.loads(data)["error"]
        assert error["type"] == "invalid_request_error"
        return error["param"], error["code"]

    async def post(self, asked: Json) -> tuple[int, bytes, str]:
        async with self.session.post(self.path, json=asked) as answer:
            repairs = answer.headers.get("x-wellspoken-repairs", "")
            return answer.status, await answer.read(), repairs

    async def ids_of(self, text: str) -> list[int]:
        asked = {"content": text, "parse_special": True}
        async with self.session.post(f"{self.upstream}/tokenize", json=asked) as answer:
            return [int(token) for token in (await answer.json())["tokens"]]

    async def id_of(self, text: str) -> str:
        """Return the id of the one token that this text is, as `logit_bias` names it."""
        (token,) = await self.ids_of(text)
        return str(token)

    async def varied(self, **more: Any) -> Json:
        """Return parameters by which each draw is another: the scripted beginning is banned.

        So are the bytes of characters beyond ASCII, since llama.cpp loses a broken one's entries,
        and what opens reasoning or a call: behind a text these part its entries in two.
        """
        first = (await self.ids_of("\u00e9"))[0] - 0xC3  # of the byte tokens, which are in order
        banned = [await self.scripted("Hello"), *(first + byte for byte in range(0x80, 0x100))]
        for opening, script in (("<think>", "<|think|>"), ("<tool_call>", "<|tool|>")):
            banned.append(await self.scripted(opening, script))
        bias = {str(token): -100 for token in banned}
        return {"temperature": 1, "max_tokens": 8, "logit_bias": bias} | more

    async def scripted(self, text: str, script: str = "") -> int:
        """Return the id of a token that this text tokenizes not to, from a script."""
        asked = {"prompt": PROMPT + script, "n_probs": 1, "n_predict": 12, "temperature": 0}
        async with self.session.post(f"{self.upstream}/completion", json=asked) as answer:
            rows = (await answer.json())["completion_probabilities"]
        return next(int(row["id"]) for row in rows if row["token"] == text)


def logprobs(ask: Ask, k: int) -> Json:
    return {"logprobs": True, "top_logprobs": k} if ask.chat else {"logprobs": k}


async def logit_bias(ask: Ask) -> None:
    """-100 takes a scripted token away, +100 forces another one."""
    assert (await ask()).text == TEXT
    world = await ask.id_of(" world")
    gone = await ask(logit_bias={world: -100})
    assert gone.text.startswith("Hello") and " world" not in gone.text
    mark = await ask.id_of("!")
    assert (await ask(logit_bias={mark: 100}, max_tokens=4)).text == "!!!!"
    scored = await ask(logit_bias={world: -100}, **logprobs(ask, 2))
    assert " world" not in [token for token, _ in scored.tokens]


SEEDS: Final = (7, 8, 0, -1, -7, 2**32 - 1, 2**32 - 2, 2**40 + 7, 2**63 - 1, -(2**63))


async def seed(ask: Ask) -> None:
    """One seed gives one answer, also those that llama.cpp takes for none; others give others."""
    more = await ask.varied()
    found = {seed: (await ask(**more, seed=seed)).text for seed in SEEDS}
    assert {seed: (await ask(**more, seed=seed)).text for seed in SEEDS} == found
    assert len(set(found.values())) > len(SEEDS) // 2


async def choices(ask: Ask) -> None:
    """Each of n choices has a seed of its own; the prompt counts once and every token."""
    more = await ask.varied() | logprobs(ask, 2)
    for first in (7, 2**32 - 2):
        several = await ask(**more, seed=first, n=3)
        singles = [await ask(**more, seed=first + place) for place in range(3)]
        assert several.texts == [single.text for single in singles]
        assert len(set(several.texts)) == 3
        prompts, completions = zip(*(single.usage for single in singles), strict=True)
        assert several.usage == (prompts[0], sum(completions))
    drawn = await ask(**more, n=3)
    assert len(set(drawn.texts)) > 1


async def temperature(ask: Ask) -> None:
    """At 0 the seed says nothing; above, the greater the less the likeliest is drawn."""
    more = await ask.varied()
    cold = {(await ask(**more | {"temperature": 0}, seed=seed)).text for seed in range(4)}
    warm = {(await ask(**more, seed=seed)).text for seed in range(4)}
    assert len(cold) == 1 and len(warm) > 1
    hot = {(await ask(**more | {"temperature": 2}, seed=seed)).text for seed in range(4)}
    assert hot != warm


async def top_p(ask: Ask) -> None:
    """The smallest nucleus is the likeliest token alone."""
    more = await ask.varied()
    cold = (await ask(**more | {"temperature": 0})).text
    assert {(await ask(**more, seed=seed, top_p=0.001)).text for seed in range(4)} == {cold}


async def penalties(ask: Ask) -> None:
    """What was said often is said no more; what was said once is said less."""
    loops = await ask("@loop", seed=1)
    ends = await ask("@loop", seed=1, frequency_penalty=2)
    assert loops.text.count("la") > 10 > ends.text.count("la")
    more = await ask.varied()
    for name in ("presence_penalty", "frequency_penalty"):
        penalised = more | {name: 2}
        pairs = [
            ((await ask(**more, seed=seed)).text, (await ask(**penalised, seed=seed)).text)
            for seed in range(4)
        ]
        assert any(plain != other for plain, other in pairs), name


async def limit(ask: Ask) -> None:
    """The limit cuts, under both of the chat's names, of which the newer wins."""
    names: list[Json] = [{"max_tokens": 3}]
    if ask.chat:
        names += [{"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 5}]
    for name in names:
        asked: Json = {"max_tokens": None} | name if ask.chat else {**name}
        cut = await ask("@loop", **asked)
        assert (cut.usage[1], cut.reason, cut.text) == (3, "length", "la di da ")


async def stop(ask: Ask) -> None:
    """The text ends before the stop string, and no entry is lost to it."""
    for stops in (" done", ["never", "wor"], ["f\u00e9 "], ["never"]):
        found = stops if isinstance(stops, str) else stops[-1]
        kept = TEXT.partition(found)[0]
        for more in ({}, logprobs(ask, 2)):
            cut = await ask(stop=stops, **more)
            assert (cut.text, cut.reason) == (kept, "stop"), (stops, more)
            if more:
                raw = "".join(token for token, _ in cut.tokens)
                assert raw.startswith("Hello") and len(cut.tokens) > 1


async def kept_stop(ask: Ask) -> None:
    """With vLLM's switch the stop string stays, with its entries."""
    for more in ({}, logprobs(ask, 2)):
        cut = await ask(stop=["wor"], include_stop_str_in_output=True, **more)
        assert (cut.text, cut.reason) == ("Hello wor", "stop")
        if more:
            assert [token for token, _ in cut.tokens] == ["Hello", " wor"]


async def usage(ask: Ask) -> None:
    """Counted in the last chunk, once; `include_obfuscation` changes nothing; unasked: none."""
    options: Json = {"stream_options": {"include_usage": True, "include_obfuscation": True}}
    counted = await ask(**options if ask.stream else {})
    assert counted.usage[1] == 10 and counted.usage[0] > 5
    if ask.stream:
        *others, last = counted.chunks
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 10
        assert [chunk["usage"] for chunk in others] == [None] * len(others)
        for given in ({"include_usage": False}, {"include_obfuscation": False}, None):
            plain = await ask(stream_options=given)
            assert all("usage" not in chunk for chunk in plain.chunks)


Effect = Callable[[Ask], Awaitable[None]]
EFFECTS: Final[tuple[Effect, ...]] = (
    *(logit_bias, seed, choices, temperature, top_p, penalties, limit, stop, kept_stop, usage),
)
"""What both endpoints do, under both adapters, in all builds."""
