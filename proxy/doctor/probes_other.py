"""Probes of errors, of the completions endpoint, of embeddings, and of how a server bears load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import json

from wellspoken.proxy.doctor import questions as ask
from wellspoken.proxy.doctor import rules, rules_logprobs, rules_stream
from wellspoken.proxy.doctor.model import Ask, Context, Heard, Probe, Unclear, Wrong, shown
from wellspoken.proxy.doctor.probes_stream import refused

Answers = Sequence[Heard]
_TEXT_REASONS = frozenset({"stop", "length", "content_filter"})
_TEXT_CHOICE = frozenset({"index", "text", "logprobs", "finish_reason"})
_TEXT_TOKENS = 8
_GRACE = 2.0  # seconds for what is slower by chance


def _ends(why: object) -> bool:
    return isinstance(why, str) and why in _TEXT_REASONS


def completions(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a completion."""
    body = rules.body_of(heard[0])
    yield from rules.extra_keys(body, rules.TOP, "the answer")
    yield from rules.envelope(body, "text_completion", context)
    yield from rules.identity(body, "cmpl-")
    yield from rules.created(body, context)
    yield from rules.usage(body.get("usage"), _TEXT_TOKENS)
    choice = rules.only_choice(body, "")
    yield from rules.extra_keys(choice, _TEXT_CHOICE, "a choice")
    if not isinstance(choice.get("text"), str):
        yield f"text is {shown(choice.get('text'))}"
    if not _ends(choice.get("finish_reason")):
        yield f"finish_reason is {shown(choice.get('finish_reason'))}"
    if "logprobs" not in choice or choice["logprobs"] is not None:
        yield f"logprobs is {shown(choice.get('logprobs'))}, not null"


def completions_logprobs(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a completion's arrays."""
    choice = rules.only_choice(rules.body_of(heard[0]), "")
    yield from rules_logprobs.arrays(choice, 2, len(ask.PROMPT))


def completions_echo(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a completion that repeats its prompt."""
    choice = rules.only_choice(rules.body_of(heard[0]), "")
    if not str(choice.get("text")).startswith(ask.PROMPT):
        yield f"the text is {shown(choice.get('text'))}, without the prompt"
    yield from rules_logprobs.arrays(choice, 1, 0)
    values = choice["logprobs"]["token_logprobs"]
    if not values or values[0] is not None:
        yield "the prompt's first token has a logprob, which nothing can give"
    if len(values) < 2 or any(value is None for value in values[1:]):
        yield f"tokens behind the first have no logprob: {shown(values)}"


def completions_stream(heard: Answers, context: Context) -> Iterator[str]:
    """Judge a streamed completion."""
    found = rules_stream.chunks_of(heard[0])
    yield from rules_stream.framing(heard[0])
    ends = 0
    for chunk in found:
        if chunk.get("object") != "text_completion":
            yield f"object is {shown(chunk.get('object'))}, not text_completion"
        yield from rules.identity(chunk, "cmpl-")
        yield from rules.extra_keys(chunk, rules_stream.CHUNK, "a chunk")
        for choice in rules.choices_of(chunk, ""):
            yield from rules.extra_keys(choice, _TEXT_CHOICE, "a choice")
            if not isinstance(choice.get("text"), str):
                yield f"text is {shown(choice.get('text'))}"
            why = choice.get("finish_reason")
            ends += why is not None
            if why is not None and not _ends(why):
                yield f"finish_reason is {shown(why)}"
    if ends != 1:
        yield f"finish_reason comes {ends} times"


def embeddings(heard: Answers, context: Context) -> Iterator[str]:
    """Judge embeddings of two texts."""
    body = rules.body_of(heard[0])
    yield from rules.extra_keys(body, frozenset({"object", "data", "model", "usage"}), "the list")
    data = body.get("data")
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise Wrong(f"data is {shown(data)}, no list of objects")
    if body.get("object") != "list" or body.get("model") != context.model:
        yield f"object is {shown(body.get('object'))}, model {shown(body.get('model'))}"
    if [one.get("index") for one in data] != [0, 1]:
        yield f"two texts give the indices {shown([one.get('index') for one in data])}"
    sizes = set()
    for one in data:
        yield from rules.extra_keys(one, frozenset({"object", "index", "embedding"}), "an item")
        vector = one.get("embedding")
        if not isinstance(vector, list) or not all(rules.is_number(value) for value in vector):
            raise Wrong(f"an embedding is {shown(vector)}, no list of numbers")
        sizes.add(len(vector))
    if len(sizes) != 1 or 0 in sizes:
        yield f"the embeddings have the lengths {shown(sorted(sizes))}"
    usage = body.get("usage")
    if not isinstance(usage, dict) or usage.keys() != {"prompt_tokens", "total_tokens"}:
        yield f"usage is {shown(usage)}, not prompt_tokens and total_tokens"


def leaving(heard: Answers, context: Context) -> Iterator[str]:
    """Judge whether a server goes on after a client that has left."""
    before, left, after = heard
    rules.answered(left, basic=True)
    for one in (before, after):
        rules.only_choice(rules.body_of(one, basic=True))
    if not left.body:
        raise Unclear("nothing of the long answer had come")
    most = 3 * before.seconds + _GRACE
    if after.seconds > most:
        yield (
            f"the next answer took {after.seconds:.1f} s, and {before.seconds:.1f} s before: "
            "the one that nobody waits for is still computed"
        )


def together(heard: Answers, context: Context) -> Iterator[str]:
    """Judge four answers at a time."""
    bodies = [rules.body_of(one, basic=True) for one in heard]
    for body in bodies:
        rules.content_of(rules.only_choice(body))
    ids = [str(body.get("id")) for body in bodies]
    if len(set(ids)) < len(ids):
        yield f"answers at the same time share the id {shown(ids[0])}"


def _bad_json(context: Context) -> list[Ask]:
    return [Ask(ask.CHAT, b'{"model": "m", "messages": [')]


def _no_messages(context: Context) -> list[Ask]:
    return [Ask(ask.CHAT, json.encode({"model": context.model, "max_tokens": 1}))]


def _embedded(context: Context) -> list[Ask]:
    body = {"model": context.model, "input": ["Hello", "Good day"], "encoding_format": "float"}
    return [Ask("/v1/embeddings", json.encode(body))]


ERRORS = (
    Probe("error-json", "What is not JSON is 400, with OpenAI's error.", _bad_json, refused(400)),
    Probe(
        "error-messages",
        "A missing parameter is 400, and param names it.",
        _no_messages,
        refused(400, "messages"),
    ),
    Probe(
        "error-temperature",
        "temperature 3 is 400, and param names it.",
        lambda context: [ask.chat(context, temperature=3, max_tokens=1)],
        refused(400, "temperature"),
    ),
    Probe(
        "error-stream",
        "So it is where a stream was asked for, before any event.",
        lambda context: [ask.chat(context, temperature=3, max_tokens=1, stream=True)],
        refused(400, "temperature"),
    ),
    Probe(
        "error-model",
        "An unknown model is 404 model_not_found.",
        lambda context: [ask.chat(context, model="wellspoken-no-such-model", max_tokens=1)],
        refused(404, code="model_not_found"),
    ),
    Probe(
        "error-path",
        "An unknown path is 404, with OpenAI's error.",
        lambda context: [Ask("/v1/no-such-endpoint", b"{}")],
        refused(404),
    ),
)
COMPLETIONS = (
    Probe(
        "completions",
        "A text_completion has OpenAI's keys and no others, and an id cmpl-...",
        lambda context: [ask.completion(context)],
        completions,
    ),
    Probe(
        "completions-logprobs",
        "Its logprobs are four arrays; text_offset counts from the prompt's start.",
        lambda context: [ask.completion(context, logprobs=2)],
        completions_logprobs,
    ),
    Probe(
        "completions-echo",
        "echo repeats the prompt, with its tokens' logprobs, the first one null.",
        lambda context: [ask.completion(context, logprobs=1, echo=True, max_tokens=1)],
        completions_echo,
    ),
    Probe(
        "completions-stream",
        "A streamed completion has the same keys, one finish_reason, and [DONE].",
        lambda context: [ask.completion(context, stream=True)],
        completions_stream,
    ),
)
OTHERS = (
    Probe(
        "embeddings",
        "Two texts give embeddings 0 and 1, as lists of numbers, with usage.",
        _embedded,
        embeddings,
    ),
    Probe(
        "concurrency",
        "Four requests at a time are four answers.",
        ask.four,
        together,
        together=True,
    ),
    Probe(
        "disconnect",
        "An answer that nobody waits for any more holds up no other.",
        ask.left,
        leaving,
    ),
)
