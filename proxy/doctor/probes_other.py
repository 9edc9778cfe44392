"""Probes of errors, of the completions endpoint, of embeddings, and of how a server bears load."""

from __future__ import annotations

import math

from msgspec import json

from wellspoken.adapters.answer_schema import Completion, CompletionChunk, CreateEmbeddingResponse
from wellspoken.proxy.doctor import contract, rules_logprobs, rules_stream
from wellspoken.proxy.doctor import probe_requests as requests
from wellspoken.proxy.doctor.probe import (
    Faults,
    Judge,
    Lacks,
    Probe,
    ProbeContext,
    ProbeRequest,
    Responses,
    Unclear,
    Wrong,
    probe,
    quote,
)

_TEXT_TOKENS = 8
_GRACE = 2.0  # seconds for what is slower by chance


def require_error(status: int, param: str | None = None, code: str | None = None) -> Judge:
    """Return the judge of an answer that has to be an error."""

    def judge(responses: Responses, context: ProbeContext) -> Faults:
        one = responses[0]
        if one.status == 200:
            if code == "model_not_found" and contract.first_choice(one):
                raise Lacks("the server answers whatever the model is called")
            raise Wrong("the request is answered, and not refused")
        if one.status != status and not one.failure:
            yield f"the status is {one.status}, not {status}"
        if one.failure:
            raise Wrong(one.failure)
        wrong = list(contract.check_error(one))
        if wrong:
            raise Wrong(f"status {one.status}: {'; '.join(wrong)}")
        error = contract.parse_object(one.body)["error"]
        if param is not None and error["param"] != param:
            yield f"param is {quote(error['param'])}, not {quote(param)}"
        if code is not None and error["code"] != code:
            yield f"code is {quote(error['code'])}, not {quote(code)}"

    return judge


def _bad_json(context: ProbeContext) -> list[ProbeRequest]:
    return [ProbeRequest(requests.CHAT, b'{"model": "m", "messages": [')]


def _no_messages(context: ProbeContext) -> list[ProbeRequest]:
    return [ProbeRequest(requests.CHAT, json.encode({"model": context.model, "max_tokens": 1}))]


error_json = Probe(
    "error-json",
    "A body that is not JSON is 400, with OpenAI's error.",
    _bad_json,
    require_error(400),
)
error_messages = Probe(
    "error-messages",
    "A missing parameter is 400, and param names it.",
    _no_messages,
    require_error(400, "messages"),
)
error_temperature = Probe(
    "error-temperature",
    "temperature 3 is 400, and param names it.",
    requests.asking(temperature=3, max_tokens=1),
    require_error(400, "temperature"),
)
error_stream = Probe(
    "error-stream",
    "temperature 3 is 400 where a stream is asked for too, before any event.",
    requests.asking(temperature=3, max_tokens=1, stream=True),
    require_error(400, "temperature"),
)
error_model = Probe(
    "error-model",
    "An unknown model is 404 model_not_found.",
    requests.asking(model="wellspoken-no-such-model", max_tokens=1),
    require_error(404, code="model_not_found"),
)
error_path = Probe(
    "error-path",
    "An unknown path is 404, with OpenAI's error.",
    lambda context: [ProbeRequest("/v1/no-such-endpoint", b"{}")],
    require_error(404),
)


@probe(
    "completions",
    "A text_completion has OpenAI's keys and no others, and an id cmpl-...",
    lambda context: [requests.completion(context)],
)
def completions(responses: Responses, context: ProbeContext) -> Faults:
    body = contract.read_body(responses[0])
    tier = frozenset({"service_tier"})
    yield from contract.find_faults(body, Completion, optional=frozenset({"usage"}), extra=tier)
    yield from contract.check_model(body, context)
    yield from contract.check_created(body, context)
    yield from contract.check_usage(body.get("usage"), _TEXT_TOKENS)
    choice = contract.first_choice(responses[0], "")
    if choice.get("logprobs") is not None:
        yield f"logprobs is {quote(choice['logprobs'])}, not null"


@probe(
    "completions-logprobs",
    "A text_completion's logprobs are four arrays; text_offset counts from the prompt's start.",
    lambda context: [requests.completion(context, logprobs=2)],
)
def completions_logprobs(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0], "")
    return rules_logprobs.check_arrays(choice, 2, len(requests.PROMPT))


@probe(
    "completions-echo",
    "echo repeats a text_completion's prompt, with its tokens' logprobs, the first one null.",
    lambda context: [requests.completion(context, logprobs=1, echo=True, max_tokens=1)],
)
def completions_echo(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0], "")
    if not str(choice.get("text")).startswith(requests.PROMPT):
        yield f"the text is {quote(choice.get('text'))}, without the prompt"
    yield from rules_logprobs.check_arrays(choice, 1, 0)
    values = choice["logprobs"]["token_logprobs"]
    if not values or values[0] is not None:
        yield "the prompt's first token has a logprob, which nothing can give"
    if len(values) < 2 or any(value is None for value in values[1:]):
        yield f"tokens behind the first have no logprob: {quote(values)}"


@probe(
    "completions-stream",
    "A streamed text_completion has OpenAI's keys and no others, one finish_reason, and [DONE].",
    lambda context: [requests.completion(context, stream=True)],
)
def completions_stream(responses: Responses, context: ProbeContext) -> Faults:
    found = rules_stream.read_chunks(responses[0])
    yield from rules_stream.check_framing(responses[0])
    more = rules_stream.OBFUSCATION | {"service_tier"}
    ends = 0
    for chunk in found:
        yield from contract.find_faults(chunk, CompletionChunk, "a chunk", extra=more)
        choices = contract.list_choices(chunk, "")
        ends += sum(choice.get("finish_reason") is not None for choice in choices)
    if ends != 1:
        yield f"finish_reason comes {ends} times"


@probe(
    "embeddings",
    "Two texts give embeddings 0 and 1, as lists of numbers, with usage.",
    requests.embeddings,
)
def embeddings(responses: Responses, context: ProbeContext) -> Faults:
    body = contract.read_body(responses[0])
    faults = list(contract.find_faults(body, CreateEmbeddingResponse, "the list"))
    if faults:
        raise Wrong("; ".join(faults))
    yield from contract.check_model(body, context)
    indices = [one["index"] for one in body["data"]]
    if indices != [0, 1]:
        yield f"two texts give the indices {quote(indices)}"
    vectors = [one["embedding"] for one in body["data"]]
    for vector in vectors:
        if not isinstance(vector, list) or not all(map(math.isfinite, vector)):
            raise Wrong(f"an embedding is {quote(vector)}, no list of numbers")
    sizes = set(map(len, vectors))
    if len(sizes) != 1 or 0 in sizes:
        yield f"the embeddings have the lengths {quote(sorted(sizes))}"


@probe("concurrency", "Four requests at a time are four answers.", requests.four, together=True)
def concurrency(responses: Responses, context: ProbeContext) -> Faults:
    for one in responses:
        contract.content_of(contract.first_choice(one, basic=True))
    ids = [str(contract.read_body(one).get("id")) for one in responses]
    if len(set(ids)) < len(ids):
        yield f"answers at the same time share the id {quote(ids[0])}"


@probe(
    "disconnect", "An answer that nobody waits for any more holds up no other.", requests.disconnect
)
def disconnect(responses: Responses, context: ProbeContext) -> Faults:
    before, left, after = responses
    contract.require_success(left, basic=True)
    for one in (before, after):
        contract.first_choice(one, basic=True)
    if not left.body:
        raise Unclear("nothing of the long answer had come")
    most = 3 * before.seconds + _GRACE
    if after.seconds > most:
        yield (
            f"the next answer took {after.seconds:.1f} s, and {before.seconds:.1f} s before: "
            "the one that nobody waits for is still computed"
        )
