"""Asks a backend how many tokens a prompt or an answer has, where its answer did not tell.

An answer never fails for this, waits `timeouts.probe` at most and for no engine that is away: what
is not found is left to the next source (a configured tokenizer, the entries seen, an estimate).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Raw, json

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.tokens import tokenize
from wellspoken.adapters.tokens.tokenize import NOTHING, Counted, Tokenize, Wanted
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.planning.plan import BackendRequest
from wellspoken.proxy.relay.send import ClientKeyRefused, send_request
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target

ABSENT: Final = (404, 405, 501)
MOST_ANSWERED: Final = 128
"""Bytes of an answer for each byte that was asked about: a token has one at least, and its id and
piece are some 60 of JSON. Without this bound a list of 64 MB would become 2 GB here."""


@dataclass(slots=True, eq=False)
class Counter:
    """What is counted for one request of a client; each text and each prompt is asked for once."""

    call: Call
    target: Target
    known: dict[bytes, int | None] = field(default_factory=dict)
    prompts: dict[bytes, str | None] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # so that nothing is asked twice
    absent: bool = False

    async def count_tokens(self, ask: BackendRequest, wanted: Wanted) -> Counted:
        """Return what the backend tells of what is wanted for the answer to `ask`."""
        form = self._form()
        if form is None:
            return NOTHING
        prompt: int | None = None
        texts: int | None = None
        reasoning: int | None = None
        try:
            async with asyncio.timeout(self.call.state.config.timeouts.probe), self.lock:
                fields = tokenize.request_fields(ask.body())
                model = fields.get("model")
                if wanted.reasoning:
                    reasoning = await self._texts(form, wanted.reasoning, model)
                if wanted.total:
                    texts = await self._texts(form, wanted.texts, model)
                if wanted.prompt:
                    prompt = await self._prompt(form, fields)
        except TimeoutError:
            self.absent = True  # slow now is slow for the next choice too
        return Counted(prompt, texts, reasoning)

    async def size(self, prompt: str, model: str) -> int | None:
        """Return how many tokens a prompt's text has, None where the backend does not tell."""
        form = self._form()
        if form is None:
            return None
        try:
            async with asyncio.timeout(self.call.state.config.timeouts.probe), self.lock:
                named = Raw(json.encode(model)) if model else None
                return await self._text(form, prompt, named, prompt=True)
        except TimeoutError:
            return None

    def _form(self) -> Tokenize | None:
        """Return how the backend is asked, None where it is not to be."""
        # Where another request ends the one that runs, a count must not cost a client its answer.
        alone = self.target.backend.together > 1 or self.call.state.inflight == 1
        return self.target.backend.tokenize if alone and not self.target.away else None

    async def _prompt(self, form: Tokenize, fields: dict[str, Raw]) -> int | None:
        """Return the count of a chat's prompt, or of all prompts of a completions request."""
        model = fields.get("model")
        if "prompt" in fields:
            total = 0
            for prompt in tokenize.prompts_in(fields["prompt"]) or (None,):
                size: int | None
                if isinstance(prompt, str):
                    size = await self._text(form, prompt, model, prompt=True)
                else:
                    size = prompt
                if size is None:
                    return None
                total += size
            return total
        asked = tokenize.chat_request(form, fields)
        if asked is None or not form.templates:
            return None if asked is None else await self._count(form.chat, asked)
        if asked not in self.prompts:
            data = await self._ask(form.chat, asked)
            try:
                self.prompts[asked] = None if data is None else tokenize.read_prompt(data)
            except ValueError:
                self.prompts[asked] = None
        text = self.prompts[asked]
        return None if text is None else await self._text(form, text, model, prompt=True)

    async def _texts(self, form: Tokenize, texts: Sequence[str], model: Raw | None) -> int | None:
        """Return the sum of the texts' tokens, None if one is not known."""
        total = 0
        for text in texts:
            found = await self._text(form, text, model, prompt=False)
            if found is None:
                return None
            total += found
        return total

    async def _text(
        self, form: Tokenize, text: str, model: Raw | None, *, prompt: bool
    ) -> int | None:
        found = await self._count(
            form.path, tokenize.text_request(form, text, model, prompt=prompt)
        )
        if found is None or prompt or form.special:
            return found
        around = await self._count(form.path, tokenize.text_request(form, "", model, prompt=True))
        return None if around is None else max(found - around, 0)

    async def _count(self, path: str, body: bytes) -> int | None:
        key = path.encode() + b" " + body
        if key not in self.known:
            data = await self._ask(path, body)
            try:
                self.known[key] = None if data is None else tokenize.read_count(data)
            except ValueError:
                self.known[key] = None
        return self.known[key]

    async def _ask(self, path: str, body: bytes) -> bytes | None:
        """Return the body of a helping answer, None for any failure."""
        if self.absent:
            return None
        try:
            answer = await send_request(self.call, self.target, BackendRequest(path, body, False))
            try:
                limit = self.call.state.config.limits.response
                data = await answer.read(min(limit, 65_536 + MOST_ANSWERED * len(body)))
            finally:
                answer.close()
        except UpstreamError as error:
            self.call.note_failure(error)
            self.absent = True
            return None
        except ClientKeyRefused:
            return None
        except RequestError:  # the engine has ended since it answered
            self.absent = True
            return None
        self.absent = answer.status in ABSENT
        return data if answer.status < 300 else None
