"""What may not be shown: keys, passwords and Authorization headers in a text that quotes others."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "[hidden]"
"""What stands where a secret was."""

_KEYS: Final = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s+)[^\s\"'\\,;]{4,}"
    r"|(?P<user>://[^\s/@\"':]*:)[^\s/@\"']*(?=@)"
    r"|(?P<name>\\{0,8}\"(?:[a-z_-]*api[_-]?key|[a-z_-]*authorization|password|passwd|[a-z_-]*secret"
    r"|(?:access|auth|refresh)[_-]token)\\{0,8}\"\s*:\s*\\{0,8}\")[^\"\\]*"
    r"|\b(?:sk|pk|rk|gsk|hf|xai|nvapi|pplx|ghp|gho|ghs|github_pat|glpat|xox[a-z])"
    r"[-_][a-z0-9_-]{8,}"
    r"|\b(?:AKIA|ASIA|AIza)[a-z0-9_-]{12,}",
    re.IGNORECASE,
)


def redact(text: str) -> str:
    """Return the text without what looks like a key, a password or an Authorization header."""
    return _KEYS.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    kept = match["scheme"] or match["user"] or match["name"] or ""
    return f"{kept}{HIDDEN}"
