"""Probes of models and of chat bodies."""

from __future__ import annotations

from collections.abc import Sequence

from wellspoken.adapters.answer_schema import ChatCompletion
from wellspoken.adapters.requests.shapes import Model, ModelList
from wellspoken.proxy.doctor import contract, rules_logprobs
from wellspoken.proxy.doctor import probe_requests as requests
from wellspoken.proxy.doctor.probe import (
    Faults,
    Probe,
    ProbeContext,
    ProbeRequest,
    Responses,
    Unclear,
    Wrong,
    probe,
    quote,
)


@probe(
    "models",
    "GET /v1/models is a list of objects with id, object, created and owned_by.",
    lambda context: [ProbeRequest("/v1/models", method="GET")],
)
def models(responses: Responses, context: ProbeContext) -> Faults:
    body = contract.read_body(responses[0], basic=True)
    yield from contract.find_faults(body, ModelList, "the list")
    if not body.get("data"):
        raise Wrong(f"data is {quote(body.get('data'))}, no list of models")


@probe(
    "model",
    "GET /v1/models/ID is one object with id, object, created and owned_by.",
    requests.model,
)
def model(responses: Responses, context: ProbeContext) -> Faults:
    body = contract.read_body(responses[0], basic=True)
    yield from contract.find_faults(body, Model, "the model")
    if body.get("id") != context.model:
        yield f"id is {quote(body.get('id'))}, not the model's"


@probe(
    "chat-body",
    "A chat.completion has OpenAI's keys and no others, logprobs and refusal null where there "
    "are none.",
    requests.plain,
)
def chat_body(responses: Responses, context: ProbeContext) -> Faults:
    body = contract.read_body(responses[0], basic=True)
    others = frozenset({"id", "created", "usage"})  # have their own probes
    yield from contract.find_faults(body, ChatCompletion, optional=others)
    yield from contract.check_model(body, context)
    choices = contract.list_choices(body)
    yield from _check_indices(choices, 1)
    for choice in choices:
        message, reason = choice["message"], choice.get("finish_reason")
        if choice.get("logprobs") is not None:
            yield "logprobs came although they were not asked for"
        if reason in ("tool_calls", "function_call") and not message.get("tool_calls"):
            yield f"finish_reason is {quote(reason)}, but nothing was called"
        beside = ("tool_calls", "function_call", "refusal")
        if message.get("content") is None and not any(message.get(key) for key in beside):
            yield "content is null or missing"
        if message.get("refusal") == "":
            yield 'refusal is "", which should be null'


def _check_indices(choices: Sequence[dict[str, object]], count: int) -> Faults:
    found = [choice.get("index") for choice in choices]
    if found != list(range(count)):
        yield f"the choices are numbered {quote(found)}, but {count} were asked for"


@probe("chat-id", "An id is chatcmpl-..., and each answer has its own.", requests.twice)
def chat_id(responses: Responses, context: ProbeContext) -> Faults:
    bodies = [contract.read_body(one, basic=True) for one in responses]
    for body in bodies:
        yield from contract.check_field(body, ChatCompletion, "id")
    ids = [body.get("id") for body in bodies]
    if ids[0] == ids[1]:
        yield f"two answers have the id {quote(ids[0])}"


@probe("created", "created is the present time in seconds since 1970.", requests.plain)
def created(responses: Responses, context: ProbeContext) -> Faults:
    return contract.check_created(contract.read_body(responses[0], basic=True), context)


@probe("usage", "usage is in each body, and prompt + completion = total.", requests.plain)
def usage(responses: Responses, context: ProbeContext) -> Faults:
    body = contract.read_body(responses[0], basic=True)
    yield from contract.check_usage(body.get("usage"), requests.TOKENS)
    if not _count_tokens(body, 1) and contract.content_of(contract.list_choices(body)[0]):
        yield "usage counts no token of an answer that has text"


def _count_tokens(body: dict[str, object], default: int | None) -> object:
    usage = body.get("usage")
    return usage.get("completion_tokens") if isinstance(usage, dict) else default


@probe(
    "headers",
    "A body is application/json, names its request, and leaves the connection open.",
    requests.plain,
)
def headers(responses: Responses, context: ProbeContext) -> Faults:
    found = contract.require_success(responses[0], basic=True).headers
    if responses[0].content_type != "application/json":
        yield f"the content type is {quote(responses[0].content_type)}, not application/json"
    if not found.get("x-request-id"):
        yield "no x-request-id, by which SDKs name a request in errors"
    if found.get("connection", "").lower() == "close":
        yield "the connection is closed after each answer"
    if "content-length" not in found and "chunked" not in found.get("transfer-encoding", ""):
        yield "neither a length nor chunks say where the answer ends"


@probe(
    "logprobs",
    "logprobs is {content, refusal}; each entry has token, logprob, bytes, top_logprobs.",
    requests.logprobs,
)
def logprobs(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0])
    yield from rules_logprobs.check_entries(choice)
    if contract.content_of(choice) and not rules_logprobs.read_entries(choice):
        yield "no entry, although there is text"


@probe(
    "logprobs-bytes",
    "The bytes of all logprobs entries, joined, are the content.",
    requests.logprobs,
)
def logprobs_bytes(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0])
    return rules_logprobs.check_tiling(choice, contract.content_of(choice))


@probe(
    "top-logprobs",
    "An entry has at most top_logprobs alternatives, likeliest first, with its own token's value.",
    requests.logprobs,
)
def top_logprobs(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0])
    return rules_logprobs.check_alternatives(choice, requests.K)


@probe(
    "logprobs-alone",
    "logprobs: true alone gives entries with empty top_logprobs.",
    requests.asking(logprobs=True),
)
def logprobs_alone(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0])
    if not rules_logprobs.read_entries(choice) and contract.content_of(choice):
        yield "no entry, although there is text"
    yield from rules_logprobs.check_alternatives(choice, 0)


@probe("n", "n: 2 gives choices 0 and 1.", requests.asking(n=2, **requests.SAMPLED))
def several_choices(responses: Responses, context: ProbeContext) -> Faults:
    return _check_indices(contract.list_choices(contract.read_body(responses[0])), 2)


@probe("stop", "The answer ends before a stop string, for the reason stop.", requests.stop)
def stop(responses: Responses, context: ProbeContext) -> Faults:
    word = requests.choose_stop(context.text)
    choice = contract.first_choice(responses[0], basic=True)
    content, whole = contract.content_of(choice), context.text[: context.text.index(word)]
    if word in content:
        yield f"the stop string {quote(word)} is in the answer {quote(content)}"
    elif content != whole and whole.startswith(content):
        yield f"text before the stop string is lost: {quote(content)}, not {quote(whole)}"
    elif content != whole:
        raise Unclear("the server does not answer twice alike")
    elif choice.get("finish_reason") != "stop":
        yield f"finish_reason is {quote(choice.get('finish_reason'))}, not stop"


@probe(
    "stop-logprobs",
    "logprobs end before a stop string with the text: no entry is lost or left over.",
    requests.stop_logprobs,
)
def stop_logprobs(responses: Responses, context: ProbeContext) -> Faults:
    choice = contract.first_choice(responses[0])
    content, word = contract.content_of(choice), requests.choose_stop(context.text)
    if word in content:
        yield f"the stop string {quote(word)} is in the answer {quote(content)}"
    yield from rules_logprobs.check_tiling(choice, content)


def check_limit(responses: Responses, context: ProbeContext) -> Faults:
    """Judge an answer that was cut at its limit."""
    body = contract.read_body(responses[0], basic=True)
    choice, count = contract.first_choice(responses[0], basic=True), _count_tokens(body, None)
    if isinstance(count, int) and count > requests.FEW:
        yield f"usage counts {count} tokens, but at most {requests.FEW} were asked for"
    content, found = contract.content_of(choice), choice.get("finish_reason")
    if len(content) >= len(context.text) > requests.TOKENS:
        yield f"the limit of {requests.FEW} tokens had no effect"
    cut = content != context.text and context.text.startswith(content)
    if cut and found != "length":
        yield f"finish_reason of an answer that was cut is {quote(found)}, not length"


max_tokens = Probe(
    "max-tokens",
    "max_tokens cuts the answer, for the reason length.",
    requests.asking(max_tokens=requests.FEW),
    check_limit,
)
max_completion_tokens = Probe(
    "max-completion-tokens",
    "max_completion_tokens cuts the answer, for the reason length.",
    requests.asking(max_completion_tokens=requests.FEW),
    check_limit,
)


@probe("seed", "One seed gives one answer, as far as can be.", requests.seed)
def seed(responses: Responses, context: ProbeContext) -> Faults:
    texts = [contract.content_of(contract.first_choice(one)) for one in responses]
    if texts[0] != texts[1]:
        yield f"one seed, two answers: {quote(texts[0])} and {quote(texts[1])}"


@probe("logit-bias", "logit_bias 100 makes its token the next one.", requests.logit_bias)
def logit_bias(responses: Responses, context: ProbeContext) -> Faults:
    content = contract.content_of(contract.first_choice(responses[0]))
    if content and context.text.startswith(content):
        yield f"logit_bias is ignored: the answer is {quote(content)} with and without it"


def check_acceptance(responses: Responses, context: ProbeContext) -> Faults:
    """Judge whether a request was taken."""
    if not contract.list_choices(contract.read_body(responses[0], basic=True)):
        yield "there is no choice"


null_parameters = Probe(
    "nulls",
    "null is as good as none for each optional parameter.",
    requests.null_parameters,
    check_acceptance,
)
message_forms = Probe(
    "messages",
    "content may be a list of parts, a message may have a name, a role be developer.",
    requests.message_forms,
    check_acceptance,
)
