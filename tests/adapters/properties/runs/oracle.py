"""What is wrong with an answer whose tiling is known, by name.

    lost         a number of the content is not there, or not in its order
    extra        a number that is none of the content's came out, though its text was told
    doubled      a number came out twice
    number       a number came out that nobody gave, or alternatives are not those that were given
    bytes        an entry has other bytes than the wire told, and not because it was clipped
    anchor       an entry whose text is known does not stand where that is
    tiling       the joined bytes are not the content
    content      the content, the reasoning or the call are not the backend's
    null         no logprobs, though entries were given
    conformance  tests/conformance found something
    fold         the streaming client and the other are told different things
    raised       nothing came out

Two readings of what the wire shows can both be right; then both pass. A token without text on the
wire (blank) directly beside content, or beside the answer's end, may be kept or left out where it
is not content. Parts of a character that the content leaves out, and white space that the server
stripped, may be kept without bytes. Beside a text that lacks parts of characters (way `ignored`) a
text may be more than it says. Texts of placeholders are not known at all. Where tokens tell no
text, or U+FFFD (ways `blank`, `ignored`, `lossy` and `byte-named`), equal texts may stand at other
places than theirs, if all else fits. In a stream the token that ends a character has all of it,
where the one that begins it came, and went, with a text before. Where the content ends in a U+FFFD
that no token shows, that may be a token's of which nothing was told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.adapters.properties.runs.model import Case
from tests.adapters.properties.runs.product import Output
from tests.fold import comparable

UNKNOWN = -9999.0
MOST_PARTS = 3  # of a character that never came
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_PLACEHOLDER = re.compile(r"token_id:\d+")


@dataclass(frozen=True)
class Wrong:
    """One violation: its name, and what was seen."""

    name: str
    detail: str

    @property
    def label(self) -> str:
        """Return the name, the checker's rule with it."""
        rule = self.detail.split(" ")[0] if self.name == "conformance" else ""
        return f"{self.name} {rule}".strip()


@dataclass(frozen=True)
class Entry:
    """One entry that came out; `data` None: its bytes are not known."""

    token: str
    data: bytes | None
    logprob: float | None
    top: tuple[float, ...]


def check(case: Case, output: Output) -> list[Wrong]:
    """Return what is wrong with the answer."""
    if output.failed:
        return [Wrong("raised", output.failed)]
    wrong = [Wrong("conformance", f"{v.rule} {v.where}: {v.detail}") for v in output.wrong]
    if comparable(output.answer) != comparable(output.other):
        wrong.append(Wrong("fold", ""))
    choice = output.answer["choices"][0]
    content, entries = read(case, choice)
    wrong += check_texts(case, choice, content)
    if entries is None:
        return [*wrong, Wrong("null", "")] if case.tokens else wrong
    places, found = match(case, entries)
    wrong += found
    for n, entry in zip(places, entries, strict=True):
        if n is not None:
            wrong += check_numbers(case, n, entry)
    return [*wrong, *check_bytes(case, places, entries, content)]


def read(case: Case, choice: dict[str, Any]) -> tuple[str, list[Entry] | None]:
    """Return the content and the entries, None for null."""
    lp = choice["logprobs"]
    if case.shape == "chat":
        content = choice["message"]["content"] or ""
        if lp is None:
            return content, None
        return content, [
            Entry(
                row["token"],
                None if row["bytes"] is None else bytes(row["bytes"]),
                row["logprob"],
                tuple(other["logprob"] for other in row["top_logprobs"]),
            )
            for row in lp["content"] or ()
        ]
    if lp is None:
        return choice["text"], None
    rows = zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"], strict=True)
    return choice["text"], [
        Entry(token, _data(token), number, tuple((top or {}).values()))
        for token, number, top in rows
    ]


def _data(token: str) -> bytes | None:
    if not token or _PLACEHOLDER.fullmatch(token):
        return None
    if token.startswith("bytes:") and _ESCAPE.search(token.encode()):
        return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), token[6:].encode())
    return token.encode()


def check_texts(case: Case, choice: dict[str, Any], content: str) -> Iterable[Wrong]:
    """Compare what is no logprobs."""
    if content != case.content:
        yield Wrong("content", f"{content!r}, not {case.content!r}")
    if case.shape == "completions":
        return
    message = choice["message"]
    if message.get("reasoning_content") != case.reasoning:
        yield Wrong("content", f"reasoning {message.get('reasoning_content')!r}")
    calls = [call["function"] for call in message.get("tool_calls", ())]
    told = [(call["name"], call["arguments"]) for call in calls]
    if told != ([] if case.call is None else [case.call]):
        yield Wrong("content", f"calls {told}")


def match(case: Case, entries: list[Entry]) -> tuple[list[int | None], list[Wrong]]:
    """Return each entry's token, found by its number, and what is wrong with the choice of them."""
    known = {token.logprob: n for n, token in enumerate(case.tokens)}
    places = [None if x.logprob is None else known.get(x.logprob) for x in entries]
    wrong = [
        Wrong("number", f"{entry.logprob} of {entry.token!r} was given for no token")
        for n, entry in zip(places, entries, strict=True)
        if n is None and not _is_made(case, entry, entries[-1])
    ]
    seen: set[int] = set()
    last = -1
    for n in places:
        if n is None:
            continue
        if n in seen:
            wrong.append(Wrong("doubled", _name(case, n)))
        elif n < last:
            wrong.append(Wrong("lost", f"{_name(case, n)} is out of order"))
        seen.add(n)
        last = max(n, last)
    own = {n for n, token in enumerate(case.tokens) if token.role == "C"}
    lost = (n for n in sorted(own - seen) if not _is_stripped(case, n))
    wrong += [Wrong("lost", _name(case, n)) for n in lost]
    allowed = beside(case)
    wrong += [Wrong("extra", _name(case, n)) for n in sorted(seen - own - allowed)]
    return places, wrong


def _is_made(case: Case, entry: Entry, last: Entry) -> bool:
    """Say whether the entry stands for a token that the server did not list (llama.cpp).

    It owns the U+FFFD that the content ends in, where no token on the wire shows one.
    """
    made = entry is last and entry.logprob == UNKNOWN and set(entry.top) <= {UNKNOWN}
    ways = ("ignored", "vllm", "placeholders", "lossy", "byte-named")
    return made and case.content.endswith("\ufffd") and case.way in ways


def beside(case: Case) -> set[int]:
    """Return the tokens that are no content, but may be there: nothing on the wire tells."""
    size = len(case.tokens)
    found = {n for n, token in enumerate(case.tokens) if token.role == "P"}
    for order in (range(size), range(size - 1, -1, -1)):
        near = order.step == -1  # the answer's end counts, its beginning does not
        for n in order:
            if case.tokens[n].role in "CP":
                near = True
            elif case.shown[n].told is not None:
                near = False
            elif near:
                found.add(n)
    return found


def check_numbers(case: Case, n: int, entry: Entry) -> Iterable[Wrong]:
    """Compare an entry's alternatives with those that the backend offered."""
    offered = sorted((number for _, _, number in case.shown[n].top), reverse=True)
    best = offered[: case.k]
    if case.shape == "chat":
        if list(entry.top) != best:
            yield Wrong("number", f"{_name(case, n)} has {entry.top}, not {best}")
        return
    names = {number: name for name, _, number in case.shown[n].top}
    # One key cannot hold two tokens that read alike, and the sampled one is before all.
    alike = {number for data, number in case.tokens[n].top if data == entry.data}
    missing = [x for x in best if x not in (*entry.top, *alike) and names[x] != entry.token]
    other = [x for x in entry.top if x not in (*best, entry.logprob)]
    if missing or other:
        yield Wrong("number", f"{_name(case, n)} has {entry.top}, not {best}")


def check_bytes(
    case: Case, places: list[int | None], entries: list[Entry], content: str
) -> Iterable[Wrong]:
    """Compare each entry's bytes and place with what the wire told, and all of them with it."""
    data = content.encode()
    ways = ("blank", "ignored", "lossy", "byte-named")
    moves = case.way in ways and fits(case, places, entries)
    at = 0
    for n, entry in zip(places, entries, strict=True):
        own = entry.data or b""
        if n is not None and case.tokens[n].role == "C" and case.shown[n].told is not None:
            yield from _check_entry(case, n, entry, None if moves else at, data)
        at += len(own)
    if case.way == "placeholders":
        return
    joined = b"".join(entry.data or b"" for entry in entries).decode("utf-8", "replace")
    if joined != content:
        yield Wrong("tiling", f"{joined!r}, not {content!r}")


def fits(case: Case, places: list[int | None], entries: list[Entry]) -> bool:
    """Say whether tokens without text own what they may: some of a character that is not ASCII.

    In a stream they may own none, before a text of as many bytes that is known: so vLLM writes it.
    At a limit as many as a character has but one may be of one that never came.
    """
    size, owned = 0, b""
    for n, entry in zip([*places, None], [*entries, None], strict=True):
        known = n is None or (case.shown[n].told is not None and not case.shown[n].soft)
        if not known and n is not None and entry is not None:
            size += case.shown[n].told is None
            owned += entry.data or b""
        elif size or owned:
            size -= MOST_PARTS if n is None and case.finish == "length" else 0
            told = None if owned or n is None or not case.streamed else case.shown[n].told
            if sum(byte > 127 for byte in told or owned) < size:
                return False
            size, owned = 0, b""
    return True


def _check_entry(
    case: Case, n: int, entry: Entry, at: int | None, content: bytes
) -> Iterable[Wrong]:
    token, shown = case.tokens[n], case.shown[n]
    told = shown.told or b""
    own = entry.data or b""
    if shown.soft:
        if told not in own and token.owned == shown.share:
            yield Wrong("bytes", f"{_name(case, n)} has {own!r}")
        return
    if case.streamed and own != told and told in own and _is_part(told):
        return  # the beginning of its character came, and went, with a text that did not tell it
    if not own and _is_part(told) and case.content.endswith("\ufffd"):
        return  # one of several parts of a character that is cut off, which one U+FFFD stands for
    if own == told + "\ufffd".encode():
        return  # parts that never came, which the token itself began
    clipped = token.owned != shown.share
    if own != told and not (clipped and own and own in told) and not (clipped and not token.owned):
        yield Wrong("bytes", f"{_name(case, n)} has {own!r}")
    if at is not None and token.owned and _floor(content, at) != _floor(content, token.start):
        yield Wrong("anchor", f"{_name(case, n)} at {at}, not {token.start}")


def _is_stripped(case: Case, n: int) -> bool:
    """Say whether the wire tells of the first token just white space, which the content has not.

    That it began a character as well, nothing shows.
    """
    told = case.shown[n].told
    first = next(k for k, token in enumerate(case.tokens) if token.role == "C")
    text = (told or b"").decode(errors="replace")
    return n == first and text.isspace() and not case.content[:1].isspace()


def _is_part(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def _floor(content: bytes, at: int) -> int:
    """Return where the character begins that byte `at` is of."""
    while at and at < len(content) and content[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _name(case: Case, n: int) -> str:
    token = case.tokens[n]
    return f"{n} {token.role} {case.shown[n].name!r} {token.data!r} {token.logprob}"
