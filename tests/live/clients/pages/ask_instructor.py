"""Asks a server for one object through instructor; prints it, or the failure, as a JSON string.

ask_instructor.py URL MODEL create|create_partial
"""

from __future__ import annotations

import json
import logging
import sys

import instructor  # type: ignore[import-not-found]
from instructor.core import InstructorRetryException  # type: ignore[import-not-found]
from openai import OpenAI
from pydantic import BaseModel


class get_weather(BaseModel):  # a tool has the name of its class
    """Tell the weather of a city."""

    city: str


class get_time(BaseModel):  # the tool that the tiny model knows
    """Tell the time in a zone."""

    tz: str


def main(url: str, model: str, method: str) -> None:
    logging.disable(logging.CRITICAL)
    client = instructor.from_openai(OpenAI(base_url=url, api_key="unused", max_retries=0))
    question = [{"role": "user", "content": "How is the weather?"}]
    wanted = get_time if model == "tiny" else get_weather
    asked = {"model": model, "response_model": wanted, "messages": question, "max_retries": 0}
    asked |= {"temperature": 0}
    try:
        answer = getattr(client, method)(**asked)
        said = str(answer if method == "create" else list(answer)[-1])
    except InstructorRetryException as error:
        said = f"InstructorRetryException: {error}"
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
