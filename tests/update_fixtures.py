"""Writes what the translation makes of each fixture as its expected output, to be reviewed.

    python -m tests.update_fixtures [PART_OF_A_NAME ...]

Nothing is written for fixtures that match none of the parts; without parts, all are. Read the
difference before you keep it: an expected output is a claim about the contract.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.corpus import fixtures, text_fixtures
from tests.replay import replay


def main(parts: list[str]) -> None:
    """Write <name>.expected and expected.json for the chosen fixtures."""
    summaries: dict[Path, dict[str, Any]] = {}
    for fixture in [*fixtures(), *text_fixtures()]:
        if parts and not any(part in fixture.name for part in parts):
            continue
        outcome = replay(fixture)
        fixture.expected_path.write_bytes(outcome.body)
        index = fixture.expected_path.with_name("expected.json")
        if index not in summaries:
            summaries[index] = json.loads(index.read_text()) if index.exists() else {}
        summaries[index][fixture.key] = outcome.summary()
        print(fixture.name)
    for index, summary in summaries.items():
        text = json.dumps(dict(sorted(summary.items())), indent=1, ensure_ascii=False)
        index.write_text(f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
