"""An independent check of what leaves the proxy as OpenAI's Responses API.

It was written from openai-python's types and the Open Responses specification, and shares no code
with the writers.

    check_response(data, request, facts)          a response
    check_response_stream(data, request, facts)   a stream of response.* events
    check_response_error(data, status)            an error body
    fold_response_stream(data)                    the response that a stream amounts to

`request` is the client's own, as JSON. The checks return the list of `Violation`s.
"""

from tests.conformance.responses.body import check_response
from tests.conformance.responses.errors import check_response_error
from tests.conformance.responses.folding import comparable_response, fold_response_stream
from tests.conformance.responses.rules import RESPONSE_RULES
from tests.conformance.responses.stream import check_response_stream

__all__ = [
    "RESPONSE_RULES",
    "check_response",
    "check_response_error",
    "check_response_stream",
    "comparable_response",
    "fold_response_stream",
]
