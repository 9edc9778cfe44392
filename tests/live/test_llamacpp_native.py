"""A real llama.cpp's own POST /completion, asked by the native request and read by its reader."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.models.tiny import TEXT
from wellspoken.adapters.events import End, Entry, Event, Finish, Text, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.pipeline import stages, through
from wellspoken.adapters.readers.llamacpp_answer import LlamaCppNative
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion, exchange_for_completion
from wellspoken.adapters.servers.known.llamacpp_native import (
    LLAMACPP_NATIVE,
    prepare_native,
    read_template,
    template_request,
)

Json = dict[str, Any]
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


class Asked:
    """One request's answer: the server's own JSON, and the events that the client's is made of."""

    def __init__(self, exchange: Exchange, data: bytes) -> None:
        self.exchange = exchange
        reader = LlamaCppNative(exchange)
        if exchange.stream:
            lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ")]
            self.given = [given for given in map(json.loads, lines) if given is not None]
            events = reader.feed(data) + reader.close()
        else:
            found = json.loads(data)
            self.given = found if isinstance(found, list) else [found]
            events = reader.body(data)
        self.events: list[Event] = through(stages(exchange), events)

    def text(self, choice: int = 0) -> str:
        return "".join(x.text for x in self.of(choice))

    def of(self, choice: int) -> list[Text]:
        return [x for x in self.events if isinstance(x, Text) and x.choice == choice]

    def entries(self, choice: int = 0) -> list[Entry]:
        return [entry for x in self.of(choice) if x.lp is not None for entry in x.lp.entries]

    def numbers(self, choice: int = 0) -> list[float]:
        """Return the server's own logprobs, in order."""
        rows = [
            row
            for given in self.given
            if given["index"] == choice
            for row in given.get("completion_probabilities", ())
        ]
        return [math.log(row["prob"]) if "prob" in row else row["logprob"] for row in rows]

    @property
    def reasons(self) -> dict[int, str | None]:
        return {x.choice: x.reason for x in self.events if isinstance(x, Finish)}

    @property
    def usage(self) -> tuple[int | None, int | None]:
        return next((x.prompt, x.completion) for x in self.events if isinstance(x, Usage))

    def check(self, choice: int = 0) -> None:
        """The entries tile the text, each with a number that the server gave, in its order."""
        entries = self.entries(choice)
        data = b"".join(bytes(json.loads(bytes(entry.bytes)) or ()) for entry in entries)
        assert data.decode("utf-8", "replace") == self.text(choice)
        assert [x.logprob for x in entries] == self.numbers(choice)[: len(entries)]
        assert isinstance(self.events[-1], End) and self.events[-1].clean


async def ask(llamacpp: str, stream: bool, **more: Any) -> Asked:
    fields: Json = {"model": "m", "prompt": PROMPT, "temperature": 0, "max_tokens": 20, **more}
    fields["stream"] = stream
    request = decode_completion(json.dumps(fields).encode())
    asked = exchange_for_completion(request, now=1_700_000_000, new_id=lambda: "0123456789")
    async with ClientSession() as session:
        data = prepare_native(request)
        async with session.post(f"{llamacpp}/completion", data=data) as answer:
            assert answer.status == 200
            return Asked(asked, await answer.read())


@pytest.fixture(params=[False, True], ids=["body", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_text_logprobs_reason_and_counts(llamacpp: str, stream: bool) -> None:
    asked = await ask(llamacpp, stream, logprobs=3)
    asked.check()
    assert asked.text() == TEXT
    assert len(asked.numbers()) == len(asked.entries()) + 1  # the end-of-text token's
    assert all(len(entry.top_logprobs) == 3 for entry in asked.entries())
    assert asked.reasons == {0: "stop"}
    final = asked.given[-1]
    assert asked.usage == (final["tokens_evaluated"], final["tokens_predicted"])
    assert "done_missing" not in asked.exchange.notes.counts


async def test_without_logprobs_nothing_but_the_dialect_is_counted(
    llamacpp: str, stream: bool
) -> None:
    asked = await ask(llamacpp, stream)
    assert (asked.text(), asked.entries()) == (TEXT, [])
    assert set(asked.exchange.notes.counts) - {"usage_unasked"} == {"native_answer"}


async def test_probabilities_after_sampling(llamacpp: str, stream: bool) -> None:
    asked = await ask(llamacpp, stream, logprobs=2, post_sampling_probs=True)
    asked.check()
    assert asked.text() == TEXT
    assert asked.exchange.notes.counts["logprobs_probabilities"]


async def test_the_limit_ends_it(llamacpp: str, stream: bool) -> None:
    asked = await ask(llamacpp, stream, logprobs=1, max_tokens=3)
    asked.check()
    assert (asked.text(), asked.reasons) == ("Hello world!", {0: "length"})
    assert asked.usage[1] == 3


@pytest.mark.parametrize(
    "stop", ["d!x", "orld?", ".x", "caf\u00e9 x", "lo world! caf\u00e9 \U0001f600 no", " done. Yes"]
)
async def test_text_that_might_have_begun_a_stop_string_is_its_own_tokens(
    llamacpp: str, stream: bool, stop: str
) -> None:
    asked = await ask(llamacpp, stream, logprobs=2, stop=[stop])
    free = await ask(llamacpp, stream, logprobs=2)
    asked.check()
    assert (asked.text(), asked.reasons) == (TEXT, {0: "stop"})
    assert asked.exchange.notes.counts["logprobs_token_text_held"]
    assert [(x.token, x.logprob) for x in asked.entries()] == [
        (x.token, x.logprob) for x in free.entries()
    ]


@pytest.mark.parametrize("stop", ["wor", "d!", "caf\u00e9", "\u00e9 \U0001f600", "done."])
async def test_a_stop_string_in_a_stream_leaves_the_tokens_before_it(
    llamacpp: str, stop: str
) -> None:
    """A body lacks entries here (`loses_entries`), a stream does not."""
    asked = await ask(llamacpp, True, logprobs=2, stop=[stop])
    asked.check()
    assert (asked.text(), asked.reasons) == (TEXT[: TEXT.index(stop)], {0: "stop"})


async def test_a_stream_that_holds_text_back_at_its_limit_is_the_body(llamacpp: str) -> None:
    given: Json = {"logprobs": 2, "stop": ["d!x"], "max_tokens": 3}
    body, streamed = await ask(llamacpp, False, **given), await ask(llamacpp, True, **given)
    for asked in (body, streamed):
        asked.check()
        assert (asked.text(), asked.reasons) == ("Hello world!", {0: "length"})
    assert streamed.exchange.notes.counts["native_text_restored"] == 1


async def test_broken_utf8_has_its_bytes(llamacpp: str, stream: bool) -> None:
    asked = await ask(llamacpp, stream, logprobs=1, prompt="<|cut|>")
    asked.check()
    assert asked.text() == "cut: \ufffd end"
    assert [x.token for x in asked.entries()][1:] == ["\\xf0\\x9f end"]


async def test_several_prompts_at_once(llamacpp: str, stream: bool) -> None:
    asked = await ask(llamacpp, stream, logprobs=1, prompt=[PROMPT, "<|loop|>"], max_tokens=3)
    single = [await ask(llamacpp, stream, prompt=x, max_tokens=3) for x in (PROMPT, "<|loop|>")]
    for choice, alone in enumerate(single):
        asked.check(choice)
        assert asked.text(choice) == alone.text()
    assert asked.reasons == {0: "length", 1: "length"}
    assert asked.usage == (sum(x.usage[0] or 0 for x in single), 6)


async def test_a_full_context_is_a_length(llamacpp: str, stream: bool) -> None:
    asked = await ask(llamacpp, stream, prompt="<|loop|>", max_tokens=5000)
    assert asked.reasons == {0: "length"}
    assert asked.given[-1]["truncated"] is True
    assert asked.exchange.notes.counts["native_truncated"] == 1


async def test_what_shapes_the_answer_is_understood(llamacpp: str) -> None:
    settings = {
        "top_p": 0.5,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "min_p": 0.25,
        "logit_bias": {"300": -100, "301": 2},
        "response_format": {"type": "json_object"},
    }
    asked = await ask(llamacpp, False, **settings)
    said = asked.given[0]["generation_settings"]
    for key in ("top_p", "seed", "presence_penalty", "frequency_penalty", "min_p"):
        assert said[key] == settings[key]
    assert said["logit_bias"] == [{"bias": None, "token": 300}, {"bias": 2.0, "token": 301}]
    assert "json" in said["grammar"] and asked.text().startswith("{")


async def test_a_chat_goes_by_its_template(llamacpp: str) -> None:
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    request = decode_chat(json.dumps(fields).encode(), bounds="openai")
    exchange = Exchange(model="m", now=1, new_id=lambda: "0123456789")
    async with ClientSession() as session:
        data = template_request(LLAMACPP_NATIVE, request)
        async with session.post(f"{llamacpp}/apply-template", data=data) as answer:
            prompt = read_template(await answer.read())
        assert prompt.endswith(PROMPT)
        data = prepare_native(request, prompt=prompt)
        async with session.post(f"{llamacpp}/completion", data=data) as answer:
            asked = Asked(exchange, await answer.read())
    assert (asked.text(), asked.reasons) == (TEXT, {0: "stop"})
