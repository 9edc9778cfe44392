"""An error body of the endpoint: OpenAI's envelope, in the names of this endpoint."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conformance.model import Report, Violation
from tests.conformance.responses.rules import RESPONSE_RULES
from tests.conformance.shape import check_error

_OTHERS = re.compile(
    r"(?<![\w.])(max_completion_tokens|max_tokens|response_format|reasoning_effort|messages\[\d+\]"
    r"|messages\.\d+|tools\[\d+\]\.function)"
)


def check_response_error(data: bytes, status: int) -> list[Violation]:
    """Check an error body and its status."""
    report = Report(RESPONSE_RULES)
    for each in check_error(data, status):
        report.add(each.rule, each.where, each.detail)
    if not report.found:
        check_names(json.loads(data)["error"], report, "error")
    return report.found


def check_names(error: dict[str, Any], report: Report, at: str) -> None:
    """Check that an error's texts name what the client of this endpoint can send."""
    for key in ("param", "message"):
        said = error.get(key)
        if isinstance(said, str):
            report.check(_OTHERS.search(said) is None, "error.names", f"{at}.{key}", said)
    param = error.get("param")
    report.check(param not in ("messages", "verbosity"), "error.names", f"{at}.param", param)
