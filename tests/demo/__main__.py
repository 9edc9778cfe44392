"""Ask a real llama.cpp and an old vLLM, directly and through the proxy, with OpenAI's own SDK.

Every value that is printed is checked: a repair that breaks makes this exit with 1.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.demo.command import TINY, Served, StartError, wellspoken
from tests.demo.progress import Progress
from tests.demo.replay import NEWER, OLDEST, old_vllm
from tests.demo.table import Must, Tables
from tests.models.tiny import TEXT, plain_noise, write_model

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

SECONDS = 280
K = 3
QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say hello."}],
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": K,
}
OLD_TEXT = " Hello world\n"
NOW = Must("about now", lambda value: isinstance(value, int) and abs(value - time.time()) < 60)
WITH_END = Must(
    "8 entries and one more for the end, without text",
    lambda value: isinstance(value, list) and len(value) == 9 and value[-1].startswith("''"),
)
CHAT_ID = Must("chatcmpl-...", lambda value: str(value).startswith("chatcmpl-"))


def ignore_the_callers_settings() -> None:
    """Forget proxies and OPENAI_* settings: everything asked here is on this machine."""
    for name in list(os.environ):
        upper = name.upper()
        if upper.startswith(("OPENAI_", "WELLSPOKEN_")) or upper.endswith("_PROXY"):
            del os.environ[name]


def client(url: str) -> AsyncOpenAI:
    import httpx2
    import openai  # after ignore_the_callers_settings: it looks at the environment

    socket = url.removeprefix("unix:") if url.startswith("unix:") else None
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1" if socket is None else "http://localhost/v1",
        api_key="none",
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(
            trust_env=False, transport=httpx2.AsyncHTTPTransport(uds=socket)
        ),
    )


@dataclass
class Streamed:
    """What a streamed answer's chunks add up to."""

    chunks: list[ChatCompletionChunk]

    @property
    def choices(self) -> list[Any]:
        return [choice for chunk in self.chunks for choice in chunk.choices]

    @property
    def text(self) -> str:
        return "".join(choice.delta.content or "" for choice in self.choices)

    @property
    def entries(self) -> list[Any] | None:
        lists = [c.logprobs.content for c in self.choices if c.logprobs and c.logprobs.content]
        return [entry for entries in lists for entry in entries] if lists else None

    @property
    def finish(self) -> list[str]:
        return [c.finish_reason for c in self.choices if c.finish_reason is not None]

    @property
    def finishing_text(self) -> str | None:
        last = [c for c in self.choices if c.finish_reason is not None][-1]
        return last.delta.content or ""

    @property
    def usages(self) -> int:
        return sum(chunk.usage is not None for chunk in self.chunks)

    @property
    def without_logprobs_key(self) -> int:
        return sum("logprobs" not in choice.model_fields_set for choice in self.choices)


async def ask(url: str, model: str) -> tuple[ChatCompletion, list[str]]:
    """Return a body and the names of what was repaired in it."""
    async with client(url) as sdk:
        raw = await sdk.chat.completions.with_raw_response.create(model=model, **QUESTION)
        names = raw.headers.get("x-wellspoken-repairs", "")
        return raw.parse(), [name.strip() for name in names.split(",") if name.strip()]


async def ask_streamed(url: str, model: str) -> Streamed:
    async with client(url) as sdk:
        chunks = await sdk.chat.completions.create(model=model, stream=True, **QUESTION)
        return Streamed([chunk async for chunk in chunks])


async def stream_repairs(url: str, model: str) -> list[str]:
    """Return the names in the `: repairs` comment, which an SDK passes over."""
    headers = {"x-wellspoken-explain": "1"}
    async with client(url) as sdk:
        asked = sdk.chat.completions.with_streaming_response.create(
            model=model, stream=True, extra_headers=headers, **QUESTION
        )
        async with asked as answer:
            lines = [line async for line in answer.iter_lines()]
    comments = [line for line in lines if line.startswith(": repairs ")]
    return [pair.partition("=")[0] for pair in ",".join(comments)[10:].split(", ") if pair]


def entries_of(choice: Any) -> list[Any] | None:
    return choice.logprobs.content if choice.logprobs else None


def tokens(entries: list[Any] | None) -> list[str] | None:
    """Return a readable line for each entry: token, logprob, bytes in hex."""
    if entries is None:
        return None
    return [f"{one.token!r:9} {one.logprob:8.4f}  {in_hex(one.bytes)}" for one in entries]


def in_hex(data: list[int] | None) -> str:
    return "null" if data is None else bytes(data).hex(" ")


def alternatives(entries: list[Any] | None, at: int) -> list[str] | None:
    if entries is None:
        return None
    rows = entries[at].top_logprobs if at < len(entries) else []
    return [f"{one.token!r:9} {one.logprob:8.4f}" for one in rows]


def joined(entries: list[Any] | None) -> str | None:
    """Return the text that the entries' bytes are."""
    if entries is None:
        return None
    return b"".join(bytes(one.bytes or ()) for one in entries).decode("utf-8", "replace")


OLD_ENTRIES = [
    "' Hello'   -0.1000  20 48 65 6c 6c 6f",
    "' world'   -4.0000  20 77 6f 72 6c 64",
    "'\\n'       -0.2000  0a",
]
OLD_ALTERNATIVES = ["' Hello'   -0.9000", "' Hi'      -2.5000", "' world'   -4.0000"]
NEWER_ENTRIES = ["'Paris'    -0.0131  50 61 72 69 73", "'.'        -0.0021  2e"]


async def old_body(tables: Tables, vllm: str, proxy: str) -> None:
    said, _ = await ask(vllm, OLDEST)
    got, repairs = await ask(proxy, OLDEST)
    one, other = said.choices[0], got.choices[0]
    empty, full = entries_of(one), entries_of(other)
    tables.title("vLLM 0.3.3 (replayed), a body")
    tables.row("content", one.message.content, other.message.content, OLD_TEXT, OLD_TEXT)
    tables.row("logprobs.content", tokens(empty), tokens(full), None, OLD_ENTRIES)
    tables.row("their bytes as text", joined(empty), joined(full), None, OLD_TEXT)
    second = (alternatives(empty, 1), alternatives(full, 1))
    tables.row("top_logprobs of ' world'", *second, None, OLD_ALTERNATIVES)
    tables.row("finish_reason", one.finish_reason, other.finish_reason, "stop", "stop")
    tables.row("created", said.created, got.created, 763, NOW)
    tables.row("id", said.id, got.id, "cmpl-x", CHAT_ID)
    tables.repairs(repairs, {"created_not_epoch", "logprobs_legacy_arrays", "refusal_missing"})


async def old_stream(tables: Tables, vllm: str, proxy: str) -> None:
    said, got = await ask_streamed(vllm, OLDEST), await ask_streamed(proxy, OLDEST)
    tables.title("vLLM 0.3.3 (replayed), a stream")
    tables.row("content", said.text, got.text, OLD_TEXT, OLD_TEXT)
    tables.row("logprobs.content", tokens(said.entries), tokens(got.entries), None, OLD_ENTRIES)
    second = (alternatives(said.entries, 1), alternatives(got.entries, 1))
    tables.row("top_logprobs of ' world'", *second, None, OLD_ALTERNATIVES)
    tables.row("finish_reason", said.finish, got.finish, ["stop"], ["stop"])
    tables.row("text beside it", said.finishing_text, got.finishing_text, "\n", "")
    tables.row("created", said.chunks[0].created, got.chunks[0].created, 763, NOW)
    tables.row("usage nobody asked for", said.usages, got.usages, 1, 0)
    repairs = await stream_repairs(proxy, OLDEST)
    tables.repairs(repairs, {"created_not_epoch", "logprobs_sampled_inferred", "usage_misplaced"})


async def newer_body(tables: Tables, vllm: str, proxy: str) -> None:
    said, _ = await ask(vllm, NEWER)
    got, repairs = await ask(proxy, NEWER)
    one, other = said.choices[0], got.choices[0]
    empty, full = entries_of(one), entries_of(other)
    stop = [(choice.model_extra or {}).get("stop_reason", "absent") for choice in (one, other)]
    tables.title("vLLM 0.4.2 (replayed), a body")
    tables.row("content", one.message.content, other.message.content, "Paris.", "Paris.")
    tables.row("logprobs.content", tokens(empty), tokens(full), None, NEWER_ENTRIES)
    tables.row("finish_reason", one.finish_reason, other.finish_reason, "stop", "stop")
    tables.row("stop_reason", stop[0], stop[1], 128009, "absent")
    tables.repairs(repairs, {"logprobs_legacy_arrays", "stop_reason_folded"})


async def llamacpp_body(tables: Tables, served: Served) -> list[str] | None:
    """Return the entries that the client got, for the stream to be held against."""
    said, _ = await ask(served.llamacpp, TINY)
    got, repairs = await ask(served.proxy, TINY)
    one, other = said.choices[0], got.choices[0]
    raw, full = entries_of(one), entries_of(other)
    tables.title("llama.cpp (running here), a body")
    tables.row("content", one.message.content, other.message.content, TEXT, TEXT)
    tables.row("logprobs.content", tokens(raw), tokens(full), WITH_END, (tokens(raw) or [])[:-1])
    tables.row("their bytes as text", joined(raw), joined(full), TEXT, TEXT)
    refusal = ["refusal" in choice.message.model_fields_set for choice in (one, other)]
    tables.row("message has refusal", refusal[0], refusal[1], False, True)
    timings = ["timings" in (answer.model_extra or {}) for answer in (said, got)]
    tables.row("body has timings", timings[0], timings[1], True, False)
    tables.row("finish_reason", one.finish_reason, other.finish_reason, "stop", "stop")
    tables.row("created", said.created, got.created, NOW, NOW)
    tables.repairs(repairs, {"refusal_missing", "logprobs_outside_content"})
    return tokens(full)


async def llamacpp_stream(tables: Tables, served: Served, body: list[str] | None) -> None:
    said, got = await ask_streamed(served.llamacpp, TINY), await ask_streamed(served.proxy, TINY)
    tables.title("llama.cpp (running here), a stream")
    tables.row("content", said.text, got.text, TEXT, TEXT)
    same = [tokens(one.entries) == body for one in (said, got)]
    tables.row("logprobs as in the body", same[0], same[1], True, True)
    tables.row("finish_reason", said.finish, got.finish, ["stop"], ["stop"])
    keys = [one.without_logprobs_key for one in (said, got)]
    tables.row("choices without logprobs", keys[0], keys[1], 2, 0)
    tables.repairs(await stream_repairs(served.proxy, TINY), {"logprobs_key_missing"})


async def demo(progress: Progress) -> int:
    """Run it all; return the exit code. `progress` ends when there is something to read."""
    began = time.monotonic()
    tables = Tables()
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "tiny.gguf", draw=plain_noise())
        async with asyncio.timeout(SECONDS), old_vllm() as vllm, wellspoken(model, vllm) as served:
            progress.end()
            print(f"llama.cpp at {served.llamacpp}, an old vLLM's answers at {vllm},")
            print(f"the proxy in front of both at {served.proxy}; asked with OpenAI's SDK.")
            await old_body(tables, vllm, served.proxy)
            await old_stream(tables, vllm, served.proxy)
            await newer_body(tables, vllm, served.proxy)
            body = await llamacpp_body(tables, served)
            await llamacpp_stream(tables, served, body)
    if tables.wrong:
        print(f"\n{len(tables.wrong)} of {tables.checked} values are not as they must be:")
        print("\n".join(f"  {line}" for line in tables.wrong))
        return 1
    print(f"\nAll {tables.checked} values are as they must be ({time.monotonic() - began:.1f} s).")
    return 0


def main() -> int:
    ignore_the_callers_settings()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without é and 😀
    with Progress() as progress:
        progress.say("starting an old vLLM's answers, llama.cpp with a tiny model, and the proxy")
        return run_demo(progress)


def run_demo(progress: Progress) -> int:
    """Run the demo, and say what went wrong; return the exit code."""
    import openai

    try:
        return asyncio.run(demo(progress))
    except openai.OpenAIError as error:
        print(f"A question failed: {error}", file=sys.stderr)
    except StartError as error:
        print(f"The proxy did not start. It said:\n{error}", file=sys.stderr)
    except TimeoutError:
        print(f"Not done after {SECONDS} s; is the machine very busy?", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
