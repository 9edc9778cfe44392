"""Probes of models and of chat bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wellspoken.proxy.doctor import questions as ask
from wellspoken.proxy.doctor import rules, rules_logprobs
from wellspoken.proxy.doctor.model import Ask, Context, Heard, Probe, Unclear, Wrong, shown

Answers = Sequence[Heard]
_MODEL = frozenset({"id", "object", "created", "owned_by"})


def models(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the list of models."""
    body = rules.body_of(heard[0], basic=True)
    yield from rules.extra_keys(body, frozenset({"object", "data"}), "the list")
    if body.get("object") != "list":
        yield f"object is {shown(body.get('object'))}, not list"
    data = body.get("data")
    if not isinstance(data, list) or not data:
        raise Wrong(f"data is {shown(data)}, no list of models")
    for entry in data:
        yield from _model(entry)


def model(heard: Answers, context: Context) -> Iterator[str]:
    """Judge one model."""
    body = rules.body_of(heard[0], basic=True)
    yield from _model(body)
    if body.get("id") != context.model:
        yield f"id is {shown(body.get('id'))}, not the model's"


def _model(entry: Any) -> Iterator[str]:
    if not isinstance(entry, dict):
        raise Wrong(f"a model is {shown(entry)}, no object")
    yield from rules.extra_keys(entry, _MODEL, "a model")
    if entry.get("object") != "model":
        yield f"a model's object is {shown(entry.get('object'))}"
    for key in ("id", "owned_by"):
        if not rules.is_text(entry.get(key)):
            yield f"a model's {key} is {shown(entry.get(key))}"
    created = entry.get("created")
    if not isinstance(created, int) or not rules.is_int(created) or created < 0:
        yield f"a model's created is {shown(created)}, no seconds"


def chat_body(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a body's keys and their types."""
    body = rules.body_of(heard[0], basic=True)
    yield from rules.extra_keys(body, rules.TOP, "the answer")
    yield from rules.envelope(body, "chat.completion", context)
    choices = rules.choices_of(body)
    yield from _indices(choices, 1)
    for choice in choices:
        yield from rules.extra_keys(choice, rules.CHOICE, "a choice")
        if "logprobs" not in choice:
            yield "a choice has no logprobs, which should be null"
        elif choice["logprobs"] is not None:
            yield "logprobs came although they were not asked for"
        yield from rules.reason(choice, called=bool(choice["message"].get("tool_calls")))
        yield from rules.message(choice["message"])


def _indices(choices: list[dict[str, Any]], count: int) -> Iterator[str]:
    found = [choice.get("index") for choice in choices]
    if found != list(range(count)):
        yield f"the choices are numbered {shown(found)}, but {count} were asked for"


def chat_id(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the ids of two answers."""
    bodies = [rules.body_of(one, basic=True) for one in heard]
    for body in bodies:
        yield from rules.identity(body, "chatcmpl-")
    ids = [body.get("id") for body in bodies]
    if ids[0] == ids[1]:
        yield f"two answers have the id {shown(ids[0])}"


def created(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the time."""
    yield from rules.created(rules.body_of(heard[0], basic=True), context)


def usage(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the counts of a body."""
    body = rules.body_of(heard[0], basic=True)
    yield from rules.usage(body.get("usage"), ask.TOKENS)
    counted = body["usage"].get("completion_tokens") if isinstance(body.get("usage"), dict) else 1
    if not counted and rules.content_of(rules.only_choice(body)):
        yield "usage counts no token of an answer that has text"


def headers(heard: Answers, context: Context) -> Iterator[str]:
    """Judge what stands above a body."""
    found = rules.answered(heard[0], basic=True).headers
    if heard[0].content_type != "application/json":
        yield f"the content type is {shown(heard[0].content_type)}, not application/json"
    if not found.get("x-request-id"):
        yield "no x-request-id, by which SDKs name a request in errors"
    if found.get("connection", "").lower() == "close":
        yield "the connection is closed after each answer"
    if "content-length" not in found and "chunked" not in found.get("transfer-encoding", ""):
        yield "neither a length nor chunks say where the answer ends"


def logprobs(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the entries' shape."""
    choice = rules.only_choice(rules.body_of(heard[0]))
    yield from rules_logprobs.entries(choice)
    if rules.content_of(choice) and not rules_logprobs.entries_of(choice):
        yield "no entry, although there is text"


def logprobs_bytes(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the entries against the text."""
    choice = rules.only_choice(rules.body_of(heard[0]))
    yield from rules_logprobs.tiling(choice, rules.content_of(choice))


def top_logprobs(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the alternatives."""
    choice = rules.only_choice(rules.body_of(heard[0]))
    yield from rules_logprobs.alternatives(choice, ask.K)


def logprobs_alone(heard: Answers, context: Context) -> Iterator[str]:
    """Judge logprobs without alternatives."""
    choice = rules.only_choice(rules.body_of(heard[0]))
    if not rules_logprobs.entries_of(choice) and rules.content_of(choice):
        yield "no entry, although there is text"
    yield from rules_logprobs.alternatives(choice, 0)


def several(heard: Answers, context: Context) -> Iterator[str]:
    """Judge n."""
    yield from _indices(rules.choices_of(rules.body_of(heard[0])), 2)


def stop(heard: Answers, context: Context) -> Iterator[str]:
    """Judge where an answer ends that has a stop string."""
    word = ask.stop_of(context.text)
    choice = rules.only_choice(rules.body_of(heard[0], basic=True))
    content, whole = rules.content_of(choice), context.text[: context.text.index(word)]
    if word in content:
        yield f"the stop string {shown(word)} is in the answer {shown(content)}"
    elif content != whole and whole.startswith(content):
        yield f"text before the stop string is lost: {shown(content)}, not {shown(whole)}"
    elif content != whole:
        raise Unclear("the server does not answer twice alike")
    elif choice.get("finish_reason") != "stop":
        yield f"finish_reason is {shown(choice.get('finish_reason'))}, not stop"


def stop_logprobs(heard: Answers, context: Context) -> Iterator[str]:
    """Judge the entries of an answer that has a stop string."""
    choice = rules.only_choice(rules.body_of(heard[0]))
    content, word = rules.content_of(choice), ask.stop_of(context.text)
    if word in content:
        yield f"the stop string {shown(word)} is in the answer {shown(content)}"
    yield from rules_logprobs.tiling(choice, content)


def limit(heard: Answers, context: Context) -> Iterator[str]:
    """Judge an answer that was cut at its limit."""
    body = rules.body_of(heard[0], basic=True)
    choice, usage = rules.only_choice(body), body.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if isinstance(counted, int) and counted > ask.FEW:
        yield f"usage counts {counted} tokens, but at most {ask.FEW} were asked for"
    content, found = rules.content_of(choice), choice.get("finish_reason")
    if len(content) >= len(context.text) > ask.TOKENS:
        yield f"the limit of {ask.FEW} tokens had no effect"
    cut = content != context.text and context.text.startswith(content)
    if cut and found != "length":
        yield f"finish_reason of an answer that was cut is {shown(found)}, not length"


def seed(heard: Answers, context: Context) -> Iterator[str]:
    """Judge two answers to one seed."""
    texts = [rules.content_of(rules.only_choice(rules.body_of(one))) for one in heard]
    if texts[0] != texts[1]:
        yield f"one seed, two answers: {shown(texts[0])} and {shown(texts[1])}"


def logit_bias(heard: Answers, context: Context) -> Iterator[str]:
    """Judge whether a bias has an effect."""
    content = rules.content_of(rules.only_choice(rules.body_of(heard[0])))
    if content and context.text.startswith(content):
        yield f"logit_bias is ignored: the answer is {shown(content)} with and without it"


def accepted(heard: Answers, context: Context) -> Iterator[str]:
    """Judge whether a request was taken."""
    if not rules.choices_of(rules.body_of(heard[0], basic=True)):
        yield "there is no choice"


def _nulled(context: Context) -> list[Ask]:
    nothing: dict[str, Any] = dict.fromkeys(ask.NULLED)
    return [ask.chat(context, **nothing)]


def _parts(context: Context) -> list[Ask]:
    parts = [{"type": "text", "text": part} for part in ("Say", "hello.")]
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts, "name": "somebody"},
    ]
    return [ask.chat(context, messages=messages)]


MODELS = (
    Probe(
        "models",
        "GET /v1/models is a list of objects with id, object, created and owned_by.",
        lambda context: [Ask("/v1/models", method="GET")],
        models,
    ),
    Probe("model", "GET /v1/models/ID is one such object.", ask.model, model),
)
CHAT = (
    Probe(
        "chat-body",
        "A chat.completion has OpenAI's keys and no others, logprobs and refusal null where there "
        "are none.",
        ask.plain,
        chat_body,
    ),
    Probe("chat-id", "An id is chatcmpl-..., and each answer has its own.", ask.twice, chat_id),
    Probe("created", "created is the present time in seconds since 1970.", ask.plain, created),
    Probe("usage", "usage is in each body, and prompt + completion = total.", ask.plain, usage),
    Probe(
        "headers",
        "A body is application/json, names its request, and leaves the connection open.",
        ask.plain,
        headers,
    ),
    Probe(
        "logprobs",
        "logprobs is {content, refusal}; each entry has token, logprob, bytes, top_logprobs.",
        ask.scored,
        logprobs,
    ),
    Probe(
        "logprobs-bytes",
        "The bytes of all entries, joined, are the content.",
        ask.scored,
        logprobs_bytes,
    ),
    Probe(
        "top-logprobs",
        "At most top_logprobs alternatives, the likeliest first, with the sampled token's value.",
        ask.scored,
        top_logprobs,
    ),
    Probe(
        "logprobs-alone",
        "logprobs: true alone gives entries with empty top_logprobs.",
        lambda context: [ask.chat(context, logprobs=True)],
        logprobs_alone,
    ),
    Probe("n", "n: 2 gives choices 0 and 1.", lambda c: [ask.chat(c, n=2, **ask.SAMPLED)], several),
    Probe(
        "stop",
        "The answer ends before a stop string, for the reason stop.",
        ask.stopped,
        stop,
    ),
    Probe(
        "stop-logprobs",
        "So do its logprobs: no entry is lost or left over.",
        ask.stopped_scored,
        stop_logprobs,
    ),
    Probe(
        "max-tokens",
        "max_tokens cuts the answer, for the reason length.",
        lambda context: [ask.chat(context, max_tokens=ask.FEW)],
        limit,
    ),
    Probe(
        "max-completion-tokens",
        "max_completion_tokens does the same.",
        lambda context: [ask.chat(context, max_completion_tokens=ask.FEW)],
        limit,
    ),
    Probe("seed", "One seed gives one answer, as far as can be.", ask.seeded, seed),
    Probe("logit-bias", "logit_bias 100 makes its token the next one.", ask.biased, logit_bias),
    Probe("nulls", "null is as good as none for each optional parameter.", _nulled, accepted),
    Probe(
        "messages",
        "content may be a list of parts, a message may have a name, a role be developer.",
        _parts,
        accepted,
    ),
)
