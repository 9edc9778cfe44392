"""Documents that are JSON by RFC 8259, that are none, and that a parser may take or refuse.

They are made by rules, one class of deviation each, in the manner of the public parser suites.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

DEEP = 100_000
NUMBERS = [
    b"0", b"-0", b"1", b"-1", b"123", b"1.5", b"-0.5", b"0e1", b"0e+1", b"1E22", b"1e-2", b"1E+2",
    b"0.4e5", b"-1.797693134862315e308", b"1e-400", b"0.000000000000000000000000000000000001",
]  # fmt: skip
NO_NUMBERS = [
    b"00", b"01", b"-01", b"-", b"+1", b"++1", b"+Inf", b"-Inf", b"Infinity", b"-Infinity", b"NaN",
    b"-NaN", b"Inf", b"nan", b".5", b"-.5", b"1.", b"-1.", b"1.e1", b".e1", b"1e", b"1e+", b"1E-",
    b"1ee1", b"1e1.5", b"1eE2", b"0x1", b"0x1p3", b"0b1", b"0o7", b"1_0", b"1 0", b"1,0", b"--1",
    b"1-", b"1+2", b"- 1", b"1e 1", b"0.1.2", b"0e", b"1a", b"1/2", b"\xef\xbc\x91", b"1\x00",
    b"0.3e+", b"2.e+3", b"9.e+", b"-foo", b"1#", b"1e1\xe5",
]  # fmt: skip
LARGE = [b"1e400", b"-1e400", b"9" * 400, b"-" + b"9" * 30, b"1." + b"1" * 5000, b"1e" + b"9" * 40]
WORDS = [
    b"nul", b"nulll", b"tru", b"truE", b"True", b"TRUE", b"fals", b"None", b"undefined", b"nil",
    b"true false", b"truefalse", b"null,", b"*", b"a", b"a\xe5", b"'a'", b"`a`", b"<null>", b"//",
    b"/**/", b"#", b"\\u0061", b"\xe2\x81\xa0", b"\x0c", b"\x0b", b"\xc2\xa0", b"\x00", b"\xe5",
]  # fmt: skip
STRINGS = [
    b'""', b'"a"', b'"\\u0061\\u30AF"', b'"\\"\\\\\\/\\b\\f\\n\\r\\t"', b'"\\u0000"', b'"\x7f"',
    b'"\\ud83d\\ude00"', b'"\xf0\x9f\x98\x80"', b'"\\u2028"', b'"\xe2\x80\xa8\xe2\x80\xa9"',
    b'"\\uFFFF"', b'"\xef\xbf\xbf"', b'"\\uDBFF\\uDFFE"', b'"/* no comment */"', b'"\\\\u0000"',
]  # fmt: skip
NO_STRINGS = [
    b'"', b'"a', b'a"', b'"a"b"', b'"\\', b'"\\"', b'"\\x00"', b'"\\u00A"', b'"\\u"', b'"\\u1"',
    b'"\\uD834\\u"', b'"\\uD834\\uDd"', b'"\\a"', b'"\\\xe5"', b'"\\ "', b'"\\\t"', b'"\n"',
    b'"\t"', b'"\x00"', b'"\x1f"', b'"\\u{61}"', b'"\\U0061"', b'"\\uqqqq"', b"'a'", b'"a"1',
    b'"\\000"', b'"\xf0\x9f\x98', b'\\"a"', b'"\\u00\xe5"', b'"\r\n"',
]  # fmt: skip
NO_UTF8 = [
    b'"\xff"', b'"\xc0\x80"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'"\xe0\x80\xaf"', b'"\x80"',
    b'"\xf4\xbf\xbf\xbf"', b'"\xf5\x80\x80\x80"', b'"\xf0\x9f\x98"', b'"\xfc\x83\xbf\xbf\xbf\xbf"',
    b'"\xe9"', b'"\xc2"',
]  # fmt: skip
SURROGATES = [
    b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\ud800"', b'"\\udc00\\ud800"', b'"\\ud800x"',
    b'"\\ud800\\n"', b'"x\\uDFAA"', b'"\\uD800\\u0061"',
]  # fmt: skip
HOLDERS = [
    b"[]", b"{}", b"[1]", b"[null, 1, true]", b' [ 1 , "a" ] ', b'{"a": {"b": []}}', b'{"": 0}',
    b'{"a":1,"b":2}', b"[[[]]]", b'{"\\u0061\\u0000": 1}', b"[1\n,\t2\r\n]",
]  # fmt: skip
NO_HOLDERS = [
    b"[", b"]", b"{", b"}", b"[1", b"[1,", b"[1,]", b"[,1]", b"[,]", b"[1,,2]", b"[1 2]", b"[1]]",
    b"[1}", b"[1:2]", b'["": 1]', b"[1;2]", b"[]]", b"[][]", b"[]{}", b"[] a", b"[1]x", b"[3[4]]",
    b'{"a"}', b'{"a":}', b'{"a" 1}', b'{"a":1,}', b'{"a":1,,"b":2}', b"{a:1}", b"{'a':1}",
    b"{1:1}", b"{null:1}", b'{"a":1 "b":2}', b'{"a"::1}', b'{"a":1]', b'{"a":1', b'{"a":1}}',
    b'{"a":1}{}', b'{"a":1}//', b'{"a":/**/1}', b"{[]:1}", b'{:1}', b'{,"a":1}', b'{"a":1;}',
    b'{"a":1}#', b"[\x0c1]", b"[1\x0b]", b"[\xc2\xa01]", b"[\xe2\x81\xa0]", b"{{}}", b"[*]",
]  # fmt: skip


def valid() -> Iterator[bytes]:
    """Give documents that are JSON."""
    yield from (*NUMBERS, b"true", b"false", b"null", *STRINGS, *HOLDERS)
    yield from (b" \n\r\t" + one + b"\t\r\n " for one in (b"1", b'"a"', b"[]", b"{}", b"null"))


def invalid() -> Iterator[bytes]:
    """Give texts that are no JSON: a lone one, and one within an array and an object."""
    for one in (*NO_NUMBERS, *WORDS, *NO_STRINGS, *NO_UTF8, *NO_HOLDERS):
        yield one
        yield b'{"a": ' + one + b"}"
        if one != b"1,0":  # which is two items of a list
            yield b"[" + one + b"]"
    for document in (b'{"a": [1, "\\u0061", true, null, -0.5e1]}', b'[{"b": false}, 0.25]'):
        yield from (document[:end] for end in range(1, len(document)))
        yield from (document + one for one in (b"x", b"]", b"}", b",", b"\x00", b'"', b"1", b"{}"))
    for name in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-16", "utf-32"):
        yield '{"a": "é"}'.encode(name)
    yield from (b"[" * DEEP, b'{"a":' * DEEP, b'[{"":' * DEEP, b"[" * DEEP + b"]" * (DEEP - 1))
    yield b""
    yield b" \n"


def undecided() -> Iterator[bytes]:
    """Give documents of which RFC 8259 lets a parser decide: too large, too deep, marked, lone."""
    yield from (*LARGE, *SURROGATES, b"\xef\xbb\xbf{}", b'{"a":1,"a":2}')
    yield from (b"[" * deep + b"]" * deep for deep in (500, 2000, DEEP))
    yield b'{"a":' * 2000 + b"1" + b"}" * 2000


def put_into(place: object, document: bytes) -> bytes:
    """Return the JSON of `place` with the document where it says "HERE"."""
    return json.dumps(place).encode().replace(b'"HERE"', document)
