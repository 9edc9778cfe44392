"""Runs lm-evaluation-harness as its argument says; prints one JSON line of what it measured.

The argument is JSON: {"include": folder of task files, "runs": [{"name", "model", "model_args",
"tasks", "batch_size", "chat"}]}. The line is {name: {"results", "samples"}}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lm_eval import simple_evaluate  # type: ignore[import-not-found]
from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]


def measured(run: dict[str, Any], tasks: Any) -> dict[str, Any]:
    """Return the run's metrics, and each document with the model's raw answers."""
    found: dict[str, Any] = simple_evaluate(
        model=run["model"],
        model_args=run["model_args"],
        tasks=run["tasks"],
        batch_size=run["batch_size"],
        apply_chat_template=run["chat"],
        task_manager=tasks,
        log_samples=True,
        bootstrap_iters=0,
    )
    return {"results": found["results"], "samples": found["samples"]}


def main() -> None:
    asked = json.loads(sys.argv[1])
    tasks = TaskManager(include_path=asked["include"], include_defaults=False)
    print(json.dumps({run["name"]: measured(run, tasks) for run in asked["runs"]}, default=str))


if __name__ == "__main__":
    main()
