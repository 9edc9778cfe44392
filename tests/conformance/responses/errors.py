"""An error body of the endpoint: OpenAI's envelope, in the names of this endpoint."""

from __future__ import annotations

import json
import re

from tests.conformance.model import Report, Violation
from tests.conformance.responses.rules import RESPONSE_RULES
from tests.conformance.shape import check_error

_OTHERS = re.compile(
    r"\b(max_completion_tokens|max_tokens|response_format|reasoning_effort|messages\[\d+\]"
    r"|messages\.\d+|tools\[\d+\]\.function)"
)


def check_response_error(data: bytes, status: int) -> list[Violation]:
    """Check an error body and its status."""
    report = Report(RESPONSE_RULES)
    for each in check_error(data, status):
        report.add(each.rule, each.where, each.detail)
    if not report.found:
        error = json.loads(data)["error"]
        for key in ("param", "message"):
            said = _OTHERS.search(error[key] or "")
            report.check(said is None, "error.names", f"error.{key}", error[key])
        report.check(
            error["param"] not in ("messages", "verbosity"), "error.names", "error.param",
            error["param"],
        )  # fmt: skip
    return report.found
