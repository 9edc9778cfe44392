"""Asks through a LiteLLM router of a configuration file (the argument); prints the text."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml  # type: ignore[import-untyped]
from litellm import Router  # type: ignore[import-not-found]


def main() -> None:
    os.environ["PROXY_KEY"] = "unused"
    models = yaml.safe_load(Path(sys.argv[1]).read_text())["model_list"]
    router = Router(model_list=models, num_retries=0)
    asked = [{"role": "user", "content": "Hi"}]
    answer = router.completion(model=models[0]["model_name"], messages=asked)
    print(answer.choices[0].message.content)


if __name__ == "__main__":
    main()
