"""Where in the content a row's text may end that begins at a state of the walk."""

from __future__ import annotations

from collections.abc import Sequence

from wellspoken.adapters.alignment.placement import (
    ANY,
    PART,
    REPLACEMENT,
    Option,
    find_cut,
    measure_space,
)

ODD = 2  # penalty of the rest of a character that shows as a text of its own
SURPLUS = 4  # penalty of a part more than its character has bytes
MOST_BYTES = 4  # of a character
_PLACES = 4  # of a known text, at which a row that stands for any text may end
CONTINUING = tuple(bytes([byte]) for byte in range(0x80, 0xC0))

State = tuple[int, int]
"""(position in the content, bytes that have come of the character there, at least)"""
Ends = Sequence[tuple[float, State]]


def find_ends(option: Option, state: State, content: bytes, front: bool, inner: bool) -> Ends:
    """Return (penalty, state after) for one option taken at `state`."""
    if option.data is not None:
        return _ends_of_known(option.data, state, content, front)
    if option.most in (1, ANY) and option.texts == PART:
        return _part_ends(option, state, content, inner)
    size = len(content)
    found: dict[int, float] = {state[0]: 0}
    for last, text in enumerate(option.texts):
        found = {
            min(at + len(text), size): penalty
            for at, penalty in found.items()
            if content.startswith(text, at)
            or (
                text.startswith(content[at:]) and (at < size or not option.firm) and state[0] < size
            )
        }
        if last + 1 < len(option.texts):
            behind = option.texts[last + 1]
            inside = behind.startswith(CONTINUING) or (not behind and inner)
            wide = _with_gaps(found, option.most, content, inside)
            if not option.firm:
                ends = not text and not last and not front
                begins = not behind and last + 2 == len(option.texts)
                wide = _price_gaps(found, wide, content, ends=ends, begins=begins)
            found = wide
    for at, penalty in list(found.items()):
        if at == size - len(REPLACEMENT) and content.endswith(REPLACEMENT):
            found[size] = penalty + 1  # a part of a character at the end, which the text lacks
    opened = 0 if option.texts[-1] else 1
    return [(penalty, (at, opened)) for at, penalty in found.items()]


def _with_gaps(
    found: dict[int, float], most: int, content: bytes, inside: bool
) -> dict[int, float]:
    """Return where each position may be after up to `most` characters that are not ASCII.

    `inside`: what follows begins with the end of a character, whose beginning is in the gap then.
    """
    reached: dict[int, float] = {}
    for start, penalty in found.items():
        at = start
        for count in range(most + 1):
            reached[at] = min(penalty + max(count - 1, 0), reached.get(at, 99))
            if at >= len(content) or content[at] < 0x80:
                break
            end = _character_end(content, at)
            if inside:
                reached |= dict.fromkeys(range(at + 1, end), penalty + count)
            at = end
    return reached


def _price_gaps(
    found: dict[int, float], wide: dict[int, float], content: bytes, *, ends: bool, begins: bool
) -> dict[int, float]:
    """Return the positions after a gap with what speaks against them.

    A part at a text's front `ends` a character, so it owns one; one that `begins` a character owns
    no whole one, unless that shows as U+FFFD.
    """
    priced = {}
    for at, penalty in wide.items():
        inside = any(start < at < _character_end(content, start) for start in found)
        shown = content.startswith(REPLACEMENT, at - len(REPLACEMENT))
        wrong = ends if at in found else begins and not shown and not inside
        priced[at] = penalty + (4 if wrong else 0)
    return priced


def find_ends_of_any(
    at: int, following: Sequence[Option], content: bytes, ending: bool
) -> list[tuple[int, State]]:
    """Return the ends of a row that stands for any text: where the next one's is, or the end.

    The less text it is, the better, since what is known should be found in its place.
    """
    ends = [(8 + len(content) - at, (len(content), 0))] if ending and at < len(content) else []
    for option in following:
        text = option.data or option.texts[0]
        found = content.find(text, at + 1) if text else -1
        for _ in range(_PLACES):
            if found < 0:
                break
            ends.append((6 + found - at, (found, 0)))
            found = content.find(text, found + 1)
    return ends


def _ends_of_known(data: bytes, state: State, content: bytes, front: bool) -> Ends:
    position, opened = state
    if content.startswith(data, position):
        whole = _character_end(content, position) - position
        # Parts that own nothing belong to the character that comes now, if it has that many.
        penalty = 0 if not opened or opened < whole else 2
        if opened and data[:1] >= b"\xc0" and len(data) < whole:
            penalty = 6  # it begins that character, so none came before it
        return ((penalty, (position + len(data), 0)),)
    if position < len(content) and data.startswith(content[position:]):
        return ((0, (len(content), 0)),)
    if front and data.startswith(CONTINUING) and (end := _find_inside(data, content, position)):
        return ((1, (end, 0)),)
    replaced = show_replaced(data, position, content)
    if replaced:
        # A byte that goes on with a character hardly shows by itself.
        more = ODD if not front and data.startswith(CONTINUING) else 0
        return [(penalty + more, (end, opened)) for penalty, end in replaced]
    cut = find_cut(data, content, position) if front else 0
    if cut and position < len(content):
        text = data[cut:]
        if content.startswith(text, position) or text.startswith(content[position:]):
            return ((1, (min(position + len(text), len(content)), 0)),)
    return ()


def _find_inside(data: bytes, content: bytes, at: int) -> int:
    """Return where bytes end that go on with the character at `at`, whose first part has gone out.

    0 if they do not. It went with the text before, since its token ended that as well.
    """
    for begin in range(at + 1, _character_end(content, at)):
        if content.startswith(data, begin):
            return begin + len(data)
    return 0


def _part_ends(option: Option, state: State, content: bytes, inner: bool) -> Ends:
    """Return the ends of a part of a character: it owns nothing, or completes its character.

    A character of n bytes has at most n parts, and a part alone is no whole character, unless the
    content shows U+FFFD there. Of its least bytes more than the character lacks begin the next one;
    inside of a character each U+FFFD is a byte.
    """
    position, opened = state
    size, least = len(content), option.least
    whole = _character_end(content, position) - position if position < size else MOST_BYTES
    most = MOST_BYTES if option.most == ANY else whole
    count = max(least, 1)
    came = min(opened + count, MOST_BYTES)
    ends: list[tuple[float, State]] = [
        (0 if came < most or opened == 0 else SURPLUS, (position, came))
    ]
    if position < size and content[position] >= 0x80:
        end = position + whole
        alone = not opened and content[position] >= 0xC0
        exact = least > 0 and content[position] < 0xC0
        fits = not alone or content.startswith(REPLACEMENT, position)
        penalty = (0 if fits else 4) + (0 if opened < whole else SURPLUS + 1)
        penalty += 3 if exact and opened + least < whole else 0
        surplus = fits and opened < whole < opened + count
        ends.append((penalty, (end, 1 if surplus else 0)))
        if fits and not surplus and not exact and count > 1:
            ends.append((penalty, (end, 1)))  # its last bytes may begin the next one
        if fits and count > 1 and content[end:] == REPLACEMENT:
            ends.append((penalty, (size, 0)))  # and they end the text
        if inner:
            ends += [(1, (at, 0)) for at in range(position + 1, end)]
            if end < size:  # the rest of this one, and the beginning of the next
                more = 6 if alone else 2
                ends += [(more, (at, 0)) for at in range(end + 1, _character_end(content, end))]
    return ends


def _character_end(content: bytes, at: int) -> int:
    """Return the position after the character that `at` is in."""
    at += 1
    while at < len(content) and content[at] & 0xC0 == 0x80:
        at += 1
    return at


def show_replaced(data: bytes, position: int, content: bytes) -> Sequence[tuple[int, int]]:
    """Return where undecodable bytes end if the content shows U+FFFD for them, or for a part."""
    if not content.startswith(REPLACEMENT, position):
        return ()
    text = data.decode("utf-8", "replace").encode()
    if text == data:
        return ()
    bytewise = b"".join(REPLACEMENT if byte >= 0x80 else bytes([byte]) for byte in data)
    ends = [(0, position + len(x)) for x in {text, bytewise} if content.startswith(x, position)]
    return [*ends, (2, position)] if not text.replace(REPLACEMENT, b"") else ends


def strip_space(option: Option, content: bytes, at: int) -> Option:
    """Return a pattern without the white space in front that the content lacks."""
    n = 0 if option.texts[0] else 1
    cut = find_cut(option.texts[n], content, at) if n == 0 or option.firm or not at else 0
    if not cut and n == 0 and measure_space(option.texts[0]) == len(option.texts[0]):
        cut = 0 if measure_space(content[at : at + 4]) else len(option.texts[0])
    texts = (*option.texts[:n], option.texts[n][cut:], *option.texts[n + 1 :])
    return option._replace(texts=texts) if cut else option
