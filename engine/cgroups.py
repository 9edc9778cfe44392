"""How much memory this process may use: the machine's, and what its cgroups allow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def find_limits(root: Path = Path("/")) -> Iterator[tuple[int, str]]:
    """Yield each limit of this process's memory in bytes, with the words that introduce it.

    Of the machine, and of the cgroups of both versions. Nothing where there is no /proc.
    """
    meminfo = _text(root / "proc/meminfo")
    total = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    if total is not None:
        yield int(total[1]) * 1024, "this machine has"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:  # version 2
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        inner = mount / path.lstrip("/")
        # A container may see the host's path and only its own group there, as the mount's root.
        for group in (inner, *inner.parents):
            value = _text(group / name).strip()
            if value.isdigit() and int(value) < 1 << 60:  # version 1 has a huge number for none
                yield int(value), f"{group / name} allows"
            if group == mount:
                break


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
