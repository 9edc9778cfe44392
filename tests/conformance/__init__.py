"""An independent check of the contract's emission rules on what leaves the proxy.

It shares no code with the translation: what both got from one place, both would get wrong.

    check_body(data, request, facts)     a chat.completion
    check_stream(data, request, facts)   an SSE stream of chat.completion.chunk, or of one error
    check_completion_body, check_completion_stream    the same of the completions endpoint
    check_error(data, status)            an error body

Each returns the list of `Violation`s, empty for a conforming answer.
"""

from tests.conformance.body import check_body
from tests.conformance.completions import check_completion_body, check_completion_stream
from tests.conformance.model import RULES, ChoiceFacts, Facts, Request, Row, Violation
from tests.conformance.shape import check_error
from tests.conformance.stream import check_stream

__all__ = [
    "RULES",
    "ChoiceFacts",
    "Facts",
    "Request",
    "Row",
    "Violation",
    "check_body",
    "check_completion_body",
    "check_completion_stream",
    "check_error",
    "check_stream",
]
