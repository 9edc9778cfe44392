"""Runs files of llama.cpp's own server tests, and reads how each case of theirs ended."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

from tests.ports import free_port

HERE = Path(__file__).parent
SECONDS = 900
"""For one file, beside other work."""

Way = Literal["direct", "proxied"]


class OwnTests:
    """The tests in `folder`, run by `python` against `model`; what they write stays in `work`."""

    def __init__(self, folder: Path, python: Path, model: Path, work: Path) -> None:
        self.folder = folder
        self.python = python
        self.model = model
        self.work = work

    def run(self, file: str, way: Way, only: Collection[str] = ()) -> dict[str, str]:
        """Return case -> "" where it passed, else why not (skipped: absent), of all or `only` some.

        Raises AssertionError if pytest itself fails.
        """
        report = self.work / f"{way}.xml"
        command = [str(self.python), "-m", "pytest", "-q", "-p", "presets"]
        command += ["--tb=line", "-m", "not slow", "-o", "junit_family=xunit1"]
        command += [f"--basetemp={self.work / way}", f"--junitxml={report}"]
        command += ["-p", "no:cacheprovider"]
        command += [f"unit/{file}::{case}" for case in only] or [f"unit/{file}"]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | self._environment(way),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode in (0, 1, 5), done.stdout[-4000:] + done.stderr[-2000:]
        return outcomes(report.read_text())

    def _environment(self, way: Way) -> dict[str, str]:
        server = self.work / f"llama-server-{way}"
        words = (sys.executable, HERE / "llama_server.py", self.model, way)
        server.write_text(f'#!/bin/sh\nexec {" ".join(map(str, words))} "$@"\n')
        server.chmod(0o755)
        return {
            "LLAMA_SERVER_BIN_PATH": str(server),
            "PORT": str(free_port()),
            "PYTHONPATH": str(HERE),
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def outcomes(report: str) -> dict[str, str]:
    """Return case -> "" or the failure's message of a JUnit report."""
    found: dict[str, str] = {}
    for case in xml.fromstring(report).iter("testcase"):
        faults = [case.find(kind) for kind in ("failure", "error")]
        if case.find("skipped") is None:
            said = [str(x.get("message")) for x in faults if x is not None]
            found[case.attrib["name"]] = said[0] or "failed" if said else ""
    return found


def complaints(
    direct: Mapping[str, str], proxied: Mapping[str, str], forbidden: Collection[str]
) -> list[str]:
    """Return what is wrong: a case lost by the proxy, or listed without need.

    `forbidden` names cases, or functions: then each case of it that passes without the proxy.
    """
    found = []
    unseen = set(forbidden)
    for case, why in direct.items():
        listed = {case, case.partition("[")[0]} & set(forbidden)
        if why:
            continue
        unseen -= listed
        lost = proxied.get(case, "it was not run")
        if lost and not listed:
            found.append(f"{case} passes without the proxy: {lost}")
        elif listed and not lost:
            found.append(f"{case} is listed, and passes: take it out")
    return found + [f"{name} is listed, and no case of it passes alone" for name in sorted(unseen)]
