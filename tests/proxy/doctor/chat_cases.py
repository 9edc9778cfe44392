"""Cases of the doctor's probes of models and of chat bodies."""

from __future__ import annotations

from tests.conforming import CREATED, TEXT, USAGE, body, choice, entries, logprobs, message
from tests.proxy.doctor.answers import (
    ALONE,
    ENTRY,
    FIRST,
    SCORED,
    Case,
    error,
    said,
    scored,
    short,
    texted,
    without,
)
from wellspoken.proxy.doctor.probe import ProbeResponse

CHAT_CASES = {
    "models": Case(
        [said({"object": "list", "data": [ENTRY]})],
        {
            "OpenAI's: models": [said({"object": "list", "data": [ENTRY], "models": []})],
            "OpenAI's: root": [said({"object": "list", "data": [ENTRY | {"root": "/"}]})],
            "max_model_len is": [
                said({"object": "list", "data": [ENTRY | {"max_model_len": "512"}]})
            ],
            "no list of models": [said({"object": "list", "data": []})],
            "created is null": [said({"object": "list", "data": [ENTRY | {"created": None}]})],
            "status 404": [said({"detail": "Not Found"}, 404)],
        },
    ),
    "model": Case(
        [said(ENTRY)],
        {
            "not the model's": [said(ENTRY | {"id": "other"})],
            "the model has no object": [said(without(ENTRY, "object"))],
            "status 404": [error(code="model_not_found", status=404)],
        },
    ),
    "chat-body": Case(
        [said(body())],
        {
            "OpenAI's: timings": [said(body(timings={}))],
            "OpenAI's: stop_reason": [said(body(choice(stop_reason=None)))],
            "object is": [said(body(object="text_completion"))],
            "model is": [said(body(model="/models/file.gguf"))],
            "has no logprobs": [said(body(without(choice(), "logprobs")))],
            "not asked for": [said(body(SCORED))],
            "has no refusal": [said(body(choice(message=without(message(), "refusal"))))],
            "tool_calls []": [said(body(choice(message=message(tool_calls=[]))))],
            "system_fingerprint null": [said(body(system_fingerprint=None))],
            'finish_reason is "eos_token"': [said(body(choice(reason="eos_token")))],
            "nothing was called": [said(body(choice(reason="tool_calls")))],
            "content is null": [said(body(choice(message=message(None))))],
            "numbered [1]": [said(body(choice(1)))],
            "role is null": [said(body(choice(message=message(role=None))))],
            "a choice is 7": [said(body() | {"choices": [7]})],
            "system_fingerprint is 7": [said(body(system_fingerprint=7))],
            'refusal is ""': [said(body(choice(message=message() | {"refusal": ""})))],
            "content is 7": [said(body(choice(message=message() | {"content": 7})))],
            "not JSON": [said(b"<html>")],
            "NaN is not JSON": [said(b'{"id": NaN}')],
            "a key is there twice": [said(b'{"id": 1, "id": 2}')],
            "closed": [ProbeResponse(200, {}, b"", failure="The backend closed the connection.")],
            "status 500": [error(status=500)],
        },
    ),
    "chat-id": Case(
        [said(body()), said(body(id="chatcmpl-another-one"))],
        {
            'id is "cmpl-x"': [said(body()), said(body(id="cmpl-x"))],
            "two answers have": [said(body()), said(body())],
            'id is ""': [said(body(id="")), said(body())],
        },
    ),
    "created": Case(
        [said(body())],
        {
            "created is 763": [said(body(created=763))],
            "created is null": [said(body(created=None))],
            f"created is {CREATED}.5": [said(body(created=CREATED + 0.5))],
            "created is true": [said(body(created=True))],
        },
    ),
    "usage": Case(
        [said(body())],
        {
            "usage is null": [said(without(body(), "usage"))],
            "does not add up": [said(body(usage=USAGE | {"total_tokens": 26}))],
            "no token": [said(body(usage=USAGE | {"completion_tokens": 0, "total_tokens": 19}))],
            "at most 24": [said(body(usage=USAGE | {"completion_tokens": 25, "total_tokens": 44}))],
            "prompt_tokens_details null": [
                said(body(usage=USAGE | {"prompt_tokens_details": None}))
            ],
            "prompt_tokens_details is 7": [said(body(usage=USAGE | {"prompt_tokens_details": 7}))],
            "OpenAI's: queue_time": [said(body(usage=USAGE | {"queue_time": 1.5}))],
            'cached_tokens is "0", no whole number': [
                said(body(usage=USAGE | {"prompt_tokens_details": {"cached_tokens": "0"}}))
            ],
        },
    ),
    "headers": Case(
        [said(body())],
        {
            "content type": [said(body(), content_type="text/plain")],
            "x-request-id": [said(body(), x_request_id="")],
            "closed after each": [said(body(), connection="close")],
            "neither a length": [ProbeResponse(200, {"content-type": "application/json"}, b"{}")],
        },
    ),
    "logprobs": Case(
        [said(body(SCORED))],
        {
            "null or missing": [said(body())],
            "logprobs is [], no object": [said(body(choice(logprobs=[])))],
            "has no content, not even null, but the keys": [
                said(body(choice(logprobs={"tokens": [], "text_offset": []})))
            ],
            "logprobs has no refusal": [said(body(choice(logprobs={"content": entries()})))],
            "an entry of logprobs has no bytes": scored(without(FIRST, "bytes")),
            "OpenAI's: id": scored(FIRST | {"id": 7}),
            "logprob is 0.78": scored(FIRST | {"logprob": 0.78}),
            "logprob is null": scored(FIRST | {"logprob": None}),
            "are []": scored(FIRST | {"bytes": []}),
            "token is 7": scored(FIRST | {"token": 7}),
            "no list": scored(FIRST | {"top_logprobs": {"Hi": -0.25}}),
            "no entry": [said(body(choice(logprobs={"content": [], "refusal": None})))],
        },
        lacks=[error("logprobs", "unsupported_parameter")],
    ),
    "logprobs-bytes": Case(
        [said(body(SCORED))],
        {
            "but the content is": [said(body(choice(logprobs=logprobs(0, 5))))],
            "has the bytes of": scored(FIRST | {"token": "▁Hi"}),
            "are null": scored(FIRST | {"bytes": None}),
        },
    ),
    "top-logprobs": Case(
        [said(body(SCORED))],
        {
            "4 alternatives": scored(FIRST | {"top_logprobs": [*FIRST["top_logprobs"]] * 2}),
            "descending": scored(FIRST | {"top_logprobs": FIRST["top_logprobs"][::-1]}),
            "there twice": scored(FIRST | {"top_logprobs": [FIRST["top_logprobs"][0]] * 2}),
            "among the alternatives": scored(FIRST | {"logprob": -0.3}),
            "no entry has": [said(body(choice(logprobs={"content": ALONE, "refusal": None})))],
        },
    ),
    "logprobs-alone": Case(
        [said(body(choice(logprobs={"content": ALONE, "refusal": None})))],
        {
            "but 0 were": [said(body(SCORED))],
            "null or missing": [said(body())],
            "no entry": [said(body(choice(logprobs={"content": [], "refusal": None})))],
        },
    ),
    "n": Case(
        [said(body(choice(), choice(1)))],
        {"numbered [0],": [said(body())], "numbered [0, 0]": [said(body(choice(), choice()))]},
        lacks=[error("n", "unsupported_parameter")],
    ),
    "stop": Case(
        [texted("Hi ")],
        {
            "is in the answer": [texted(TEXT)],
            "is lost": [texted("Hi")],
            "not stop": [texted("Hi ", "length")],
        },
        unclear=[texted("Ho")],
    ),
    "stop-logprobs": Case(
        [
            texted(
                "Hi ",
                logprobs={
                    "content": [*ALONE[:1], ALONE[0] | {"token": " ", "bytes": [32]}],
                    "refusal": None,
                },
            )
        ],
        {
            "is in the answer": [texted(TEXT, logprobs=logprobs())],
            "but the content is": [texted("Hi ", logprobs=logprobs(0, 1))],
        },
    ),
    "max-tokens": Case(
        short("Hi", "length"),
        {
            "not length": short("Hi", "stop"),
            "at most 3": [said(body(usage=USAGE | {"completion_tokens": 4, "total_tokens": 23}))],
        },
    ),
    "max-completion-tokens": Case(
        short("Hi", "length"),
        {
            "not length": short("Hi", "stop"),
            "status 422": [error(status=422)],
        },
    ),
    "seed": Case(
        [texted("one"), texted("one")],
        {"one seed, two": [texted("one"), texted("two")]},
    ),
    "logit-bias": Case([texted("ddd")], {"is ignored": [texted("Hi")]}),
    "nulls": Case(
        [said(body())],
        {"status 422": [said({"detail": "none is not an allowed value"}, 422)]},
    ),
    "messages": Case(
        [said(body())],
        {
            "status 400": [error("messages", "invalid_type")],
            "there is no choice": [said(body() | {"choices": []})],
        },
    ),
}
