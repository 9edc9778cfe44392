"""Writes what the translation makes of each fixture as its expected output, to be reviewed.

    python -m tests.update_fixtures [PART_OF_A_NAME ...]

Nothing is written for fixtures that match none of the parts; without parts, all are. Read the
difference before you keep it: an expected output is a claim about the contract.
"""

from __future__ import annotations

import json
import sys

from tests.corpus import ROOT, fixtures
from tests.replay import replay


def main(parts: list[str]) -> None:
    """Write <name>.expected and expected.json for the chosen fixtures."""
    summaries = {
        path.parent.name: json.loads(path.read_text()) for path in ROOT.glob("*/expected.json")
    }
    for fixture in fixtures():
        if parts and not any(part in fixture.name for part in parts):
            continue
        outcome = replay(fixture)
        fixture.expected_path.write_bytes(outcome.body)
        name = fixture.name.partition("/")[2]
        summaries.setdefault(fixture.server, {})[name] = outcome.summary()
        print(fixture.name)
    for server, summary in summaries.items():
        text = json.dumps(dict(sorted(summary.items())), indent=1, ensure_ascii=False)
        (ROOT / server / "expected.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
