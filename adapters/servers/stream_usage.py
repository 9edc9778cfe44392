"""The usage that a stream is asked for, whether the client wants it or not.

A stream tells its counts only where `stream_options.include_usage` asks it to, so it always does:
what is logged, counted and stored is then the server's word. Many servers do not know the key, and
some refuse what they do not know, before they compute anything: Mistral's API (422, Pydantic's
"Extra inputs are not permitted"), Azure ("Unrecognized request argument supplied", one-api issue
#1423, and "Extra parameters [...] are not allowed", cherry-studio issue #9214), Groq in 2024
("property ... is unsupported", vercel/ai pull request #1578), OpenAI itself for some models
("Unknown parameter", new-api issue #418). Others say nothing of it: a 400 without a body, "Bad
Request", Z.ai's "Invalid API parameter" (crush issue #1237). Such a one may be of anything.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Raw, json

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.forms import object_in

KEY: Final = "stream_options"
_SENT: Final = KEY.encode() + b'":'  # in a text of the request's the quote would be escaped
_REFUSALS: Final = (400, 422)
_FAILURES: Final = (500, 501)
_NAME: Final = rb"(stream.?options|include.?usage)"
_NAMED: Final = re.compile(_NAME, re.IGNORECASE)
_UNKNOWN: Final = re.compile(
    rb"\b(extra|additional|unrecogni[sz]ed|unknown|unexpected|unsupported|undefined)"
    rb"( request| keyword| body| json)?[ _]"
    rb"(inputs?|fields?|parameters?|params?|arguments?|keys?|propert(y|ies)|forbidden)\b",
    re.IGNORECASE,
)
_UNTELLING: Final = {KEY, "stream", "model"}  # a gateway's errors name the model, whatever is wrong
_OTHER: Final = re.compile(
    rb"\"param\"\s*:\s*\"\w|context.?(length|size|window)|\btokens\b", re.IGNORECASE
)
_REFUSING: Final = (
    rb"(unexpected|unknown|unsupported|unrecogni[sz]ed|undefined|invalid|extra|additional"
    rb"|not (support|exist)|not (yet )?(supported|allowed|permitted|implemented|known|valid))"
)
_BETWEEN: Final = rb"[^{}.;\n]{0,60}"  # a request that is quoted has braces
_REFUSED: Final = re.compile(
    _REFUSING + _BETWEEN + _NAME + rb"|" + _NAME + _BETWEEN + _REFUSING, re.IGNORECASE
)


def asks_usage(backend: Backend, exchange: Exchange) -> bool:
    """Say whether a stream of the backend's is to be asked for its usage.

    An answer that the proxy ends tells its counts as it comes. Where llama.cpp's timings go to the
    client, it would have them with the usage alone, which the client does not get; they count too.
    """
    table = backend.chat_table if exchange.kind == "chat" else backend.completion_table
    if exchange.enforced or not table or table[KEY].how != "native":
        return False
    timed = backend.counting or "timings_per_token" in exchange.switches
    return not timed or exchange.include_usage or not exchange.keeps("timings")


def ask_usage(sent: dict[str, Any], running: bool) -> None:
    """Ask for the usage, beside what else of a stream the client has a wish about.

    `running`: with every chunk. That is nobody's wish where the client wants no usage.
    """
    if KEY not in sent:
        sent[KEY] = {"include_usage": True}
        return
    options = object_in(sent, KEY)
    if bytes(options.get("include_usage", b"")) not in (b"true", b""):
        options.pop("continuous_usage_stats", None)
    if running:
        options["continuous_usage_stats"] = True
    sent[KEY] = {**options, "include_usage": True}


def refuses_usage(status: int, said: bytes, *, sent: bytes, taken: bool) -> bool:
    """Say whether an answer refuses `stream_options`, or may: what the server does not know.

    `said`: its body, or of a stream what came first. Words alone tell, in each server's own; where
    the status does not say that nothing ran, a failure may quote the request. A refusal that does
    not tell what of the request, `sent`, it is about may be of it unless the server has `taken` it.
    """
    if _SENT not in sent:
        return False
    if status in _REFUSALS:
        if _REFUSED.search(said):
            return True
        return not taken and bool(
            _NAMED.search(said) or _UNKNOWN.search(said) or not _tells(said, sent)
        )
    if status >= 400 and status not in _FAILURES:
        return False
    if status < 400 and (b'"choices"' in said or b"error" not in said):
        return False
    return _REFUSED.search(said) is not None


def _tells(said: bytes, sent: bytes) -> bool:
    """Say whether a refusal tells what it is about: another key of the request, or its length."""
    keys = json.decode(sent, type=dict[str, Raw]).keys() - _UNTELLING
    names = b"|".join(re.escape(key.encode()) for key in sorted(keys))
    if names and re.search(rb"(?<![\w\\])(" + names + rb")(?!\w)", said):
        return True
    return _OTHER.search(said) is not None
