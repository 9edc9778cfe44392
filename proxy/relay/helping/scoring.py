"""Computes a prompt's logprobs with requests of its own to a backend that does not give them.

Bounded in the prompt's length (`limits.scored_tokens`) and in how many prompts a backend scores at
a time (`limits.scoring`); a client that leaves ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

from msgspec import Meta, Raw, ValidationError, json
from msgspec.structs import replace

from wellspoken.adapters import prompt_scores
from wellspoken.adapters.backend_answer import error_of
from wellspoken.adapters.events import UNKNOWN, Entry, Event, Extra, Finish, Logprobs, Text
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.token_bytes import settle
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import Prompt
from wellspoken.adapters.stages.tiling import TilingStage
from wellspoken.adapters.tokens.table import NULL, bytes_json, spell
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.headers import delays
from wellspoken.proxy.relay.planning.plan import BackendRequest
from wellspoken.proxy.relay.send import send_request
from wellspoken.proxy.state import Scorer, State
from wellspoken.proxy.upstream.target import Target

_T = TypeVar("_T")
MOST = 100  # alternatives of a prompt's token that are computed at most
decode_count = json.Decoder(Annotated[int, Meta(ge=0, le=MOST)]).decode


class Scored:
    """A prompt with its tokens' logprobs: `entries` has None for the first, which has none."""

    __slots__ = ("entries", "ids", "pieces", "text")

    def __init__(self, ids: list[int], pieces: list[bytes | None], text: str) -> None:
        self.ids = ids
        self.pieces = pieces
        self.text = text
        self.entries: list[Entry | None] = [None] * len(ids)


async def ask_backend(
    call: Call, target: Target, exchange: Exchange, path: str, payload: bytes
) -> bytes:
    """Return the body of a helping request. Raises UpstreamError, or RequestError for a refusal."""
    answer = await send_request(call, target, BackendRequest(path, payload, False))
    data = await answer.read(call.state.config.limits.response)
    if answer.status >= 300:
        fault = error_of(exchange, answer.status, call.routing.hide(data))
        raise RequestError(
            f"The backend refused POST {path}, which this request needs: {fault.message}",
            status=fault.status,
            type=fault.type,
            param=fault.param,
            code=fault.code,
            headers=delays(answer),
        )
    return data


async def split(call: Call, target: Target, exchange: Exchange, prompt: Prompt) -> Scored:
    """Return a prompt's tokens and its text, without logprobs."""
    if isinstance(prompt, str):
        path = prompt_scores.TOKENIZE
        data = await ask_backend(
            call, target, exchange, path, prompt_scores.tokenize_request(prompt)
        )
        tokens = _understood(path, prompt_scores.read_tokens, data)
        return Scored([token for token, _ in tokens], [piece for _, piece in tokens], prompt)
    text = await _text(call, target, exchange, list(prompt))
    first = await _text(call, target, exchange, [prompt[0]])
    known = None if "\ufffd" in first else first.encode()
    return Scored(list(prompt), [known, *[None] * (len(prompt) - 1)], text)


async def spell_prompt(call: Call, target: Target, exchange: Exchange, prompt: Prompt) -> Scored:
    """Return a prompt's text; a text is not split."""
    if isinstance(prompt, str):
        return Scored([], [], prompt)
    return Scored([], [], await _text(call, target, exchange, list(prompt)))


async def _text(call: Call, target: Target, exchange: Exchange, ids: list[int]) -> str:
    """Return the text of a prompt's ids. Raises RequestError 400 for ids that are no tokens."""
    path = prompt_scores.DETOKENIZE
    try:
        data = await ask_backend(
            call, target, exchange, path, prompt_scores.detokenize_request(ids)
        )
    except RequestError as error:
        if error.status not in (400, 500):  # llama.cpp answers 500 to an id beyond its vocabulary
            raise
        raise RequestError(
            f"The token ids of 'prompt' have no text. Send ids of this model. {error.message}",
            param="prompt",
            code="invalid_value",
        ) from error
    return _understood(path, prompt_scores.read_text, data)


async def texts(
    call: Call, target: Target, exchange: Exchange, prompts: tuple[Prompt, ...], model: str
) -> tuple[str | None, ...]:
    """Return the prompts' texts, from which offsets count; None where nobody tells it."""
    vocabulary = exchange.tokens.vocabulary
    found: list[str | None] = []
    for prompt in prompts:
        text: str | None = None
        if isinstance(prompt, str):
            text = prompt
        elif vocabulary is not None and all(vocabulary.by_id(x) is not None for x in prompt):
            text = b"".join(vocabulary.by_id(x) or b"" for x in prompt).decode(errors="replace")
        elif target.backend.detokenize:
            path, ids = target.backend.detokenize, list(prompt)
            try:
                told = await ask_backend(
                    call, target, exchange, path, prompt_scores.detokenize_request(ids, model)
                )
                text = _understood(path, prompt_scores.read_text, told)
            except RequestError:
                text = None  # the answer itself tells what is wrong, if anything is
        if text is None:
            prompt_scores.prompt_text_unknown(exchange.notes)
        found.append(text)
    return tuple(found)


async def score(
    call: Call, target: Target, exchange: Exchange, prompt: Prompt, k: int, param: str
) -> Scored:
    """Return a prompt with the logprobs of its tokens and the best `k` at each place.

    Raises RequestError 400 (naming `param`) for a prompt that is too long.
    """
    found = await split(call, target, exchange, prompt)
    most = call.state.config.limits.scored_tokens
    if len(found.ids) > most:
        raise RequestError(
            f"'{param}' on this backend is computed from each token of the prompt, which has "
            f"{len(found.ids)}; the most is {most}. Send a shorter prompt, or raise "
            "limits.scored_tokens.",
            param=param,
            code="prompt_too_long",
        )
    prompt_scores.prompt_logprobs_computed(exchange.notes)
    scorer = scorer_of(call.state, target)
    async with scorer.bound:
        await _score_tokens(call, target, exchange, found, k, scorer)
        if not isinstance(prompt, str):
            await _spell_controls(call, target, exchange, found)
    return found


def scorer_of(state: State, target: Target) -> Scorer:
    """Return what is known of a backend that scores prompts."""
    scorer = state.scoring.get(target.name)
    if scorer is None:
        bound = asyncio.Semaphore(state.config.limits.scoring)
        scorer = state.scoring[target.name] = Scorer(bound)
    return scorer


async def _score_tokens(
    call: Call, target: Target, exchange: Exchange, found: Scored, k: int, scorer: Scorer
) -> None:
    """Set the entries of all tokens but the first: of runs at once, else one by one."""
    literals: frozenset[int] = frozenset()
    if scorer.forces and len(found.ids) > 2:
        path = prompt_scores.TOKENIZE
        request = prompt_scores.tokenize_request(found.text, plain=True)
        data = await ask_backend(call, target, exchange, path, request)
        literals = _understood(path, prompt_scores.read_literals, data)
    place = 1
    while place < len(found.ids):
        entries: list[Entry] = []
        run = prompt_scores.run_at(found.ids, place, literals, k)
        if run:
            entries, scorer.forces = await _force(call, target, exchange, found.ids[:place], run, k)
            if not entries or not scorer.forces:
                literals = frozenset()
            if not entries and scorer.forces:  # the context was full: its refusal, if it is one
                await _probe(call, target, exchange, found, len(found.ids) - 1, k)
        if not entries:
            entries = [await _probe(call, target, exchange, found, place, k)]
        found.entries[place : place + len(entries)] = entries
        place += len(entries)


async def _force(
    call: Call, target: Target, exchange: Exchange, prefix: list[int], run: list[int], k: int
) -> tuple[list[Entry], bool]:
    """Return the entries of a run that one request tells, and whether the backend forces at all."""
    path = prompt_scores.PROBE
    payload = prompt_scores.force_request(prefix, run, k)
    try:
        data = await ask_backend(call, target, exchange, path, payload)
    except RequestError as error:
        if "grammar" in error.message.lower():  # one that it does not read, or cannot follow
            return [], False
        raise
    context = Context(exchange.apart())
    entries, forces = _understood(path, prompt_scores.read_forced, data, run, context)
    for entry in entries:
        del entry.top_logprobs[max(k, 1) :]
    return entries, forces


async def _spell_controls(call: Call, target: Target, exchange: Exchange, found: Scored) -> None:
    """Ask for the texts of control tokens, which probes do not spell but the prompt's text has."""
    texts: dict[int, str] = {}
    for place, entry in enumerate(found.entries):
        if entry is None or entry.token or entry.logprob == UNKNOWN:
            continue
        token = found.ids[place]
        if token not in texts:
            texts[token] = await _text(call, target, exchange, [token])
        found.pieces[place] = texts[token].encode()


async def _probe(
    call: Call, target: Target, exchange: Exchange, found: Scored, place: int, k: int
) -> Entry:
    prefix, token = found.ids[:place], found.ids[place]
    context = Context(exchange.apart())  # what llama.cpp's own form needs is no repair here
    forced = token
    for deeper in prompt_scores.DEEPER:
        if deeper and forced == token:
            forced = await _whole(call, target, exchange)
        payload = prompt_scores.probe(prefix, forced, max(k, deeper))
        data = await ask_backend(call, target, exchange, prompt_scores.PROBE, payload)
        entry = _understood(prompt_scores.PROBE, prompt_scores.read_probe, data, token, context)
        if entry is not None:
            del entry.top_logprobs[max(k, 1) :]
            return entry
    exchange.notes.add("logprobs_unknown")
    return Entry("", UNKNOWN, NULL, [], token)


async def _whole(call: Call, target: Target, exchange: Exchange) -> int:
    """Return a token that is whole characters, after which an answer holds probabilities."""
    path = prompt_scores.TOKENIZE
    data = await ask_backend(
        call, target, exchange, path, prompt_scores.tokenize_request("a", alone=True)
    )
    return _understood(path, prompt_scores.read_whole, data)


def echo_prompt(exchange: Exchange, found: Scored) -> list[Event]:
    """Return the prompt as the beginning of its own answer, with the entries that cover it.

    A token that begins the text and is not in it goes: clients count the tokens of their text. The
    first one has no logprob, as at OpenAI's, where nothing precedes it.
    """
    if not exchange.logprobs:
        return [Text(0, found.text)]
    entries: list[Entry] = []
    lead = prompt_scores.before_text(found.pieces, found.text)
    for entry, piece in zip(found.entries[lead:], found.pieces[lead:], strict=True):
        row = Entry("", UNKNOWN, NULL, [])
        if entry is not None and entries:
            rows = [replace(other) for other in entry.top_logprobs[: exchange.k]]
            row = Entry(entry.token, entry.logprob, entry.bytes, rows, entry.id)
        if piece is not None:
            row.token, row.bytes = spell(piece), bytes_json(piece)
        entries.append(row)
    plain = settle(entries, Context(exchange.apart()))
    text = Text(0, found.text, Logprobs(entries, plain))
    # Stop strings end the generated text, and cut nothing of the prompt's tokens.
    whole = replace(exchange, stops=())
    events = TilingStage(whole)([text, Finish(0, "stop")])
    return [event for event in events if isinstance(event, Text)]


def count_of(given: Raw) -> int:
    """Return how many alternatives `prompt_logprobs` asks for; raises RequestError 400."""
    try:
        return int(decode_count(given))
    except ValidationError:
        raise RequestError(
            f"Invalid value for 'prompt_logprobs'. Send an integer from 0 to {MOST}.",
            param="prompt_logprobs",
            code="invalid_value",
        ) from None


def prompt_logprobs(exchange: Exchange, found: Scored, k: int) -> Extra:
    """Return the answer's or choice's `prompt_logprobs`."""
    rows = prompt_scores.prompt_logprobs(found.entries, found.ids, found.pieces, k)
    return prompt_scores.as_extra("answer" if exchange.kind == "chat" else "choice", rows)


def _understood(path: str, read: Callable[..., _T], *arguments: object) -> _T:
    """Return what `read` finds in a helping answer. Raises RequestError 502 if that is nothing."""
    try:
        return read(*arguments)
    except ValueError as error:
        raise RequestError(
            f"The backend's answer to POST {path} was not understood: expected {error}.",
            status=502,
            type="server_error",
            code="backend_error",
        ) from error
