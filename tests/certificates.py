"""Real certificates, made by the openssl command: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DAYS: Final = 30
_LEAF: Final = (
    "basicConstraints=CA:FALSE\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
)
"""Extensions without which Python 3.13 trusts no certificate."""
_EC: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, each a PEM file."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority in a folder of its own."""

    folder: Path
    pair: Pair

    @classmethod
    def make(cls, folder: Path) -> Authority:
        """Return a new one."""
        folder.mkdir()
        pair = Pair(folder / "ca.crt", folder / "ca.key")
        _run("req", "-x509", *_EC, "-keyout", pair.key, "-out", pair.certificate,
             "-days", DAYS, "-subj", f"/CN=authority {folder.name}",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
        return cls(folder, pair)

    @property
    def file(self) -> Path:
        """The file with what trusts it."""
        return self.pair.certificate

    def sign(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1", days: int = DAYS) -> Pair:
        """Return a pair for these names; `days` -1: it expired yesterday."""
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        _run("req", "-new", *_EC, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
        extensions.write_text(_LEAF + f"subjectAltName={names}\n")
        _run("x509", "-req", "-in", request, "-CA", self.pair.certificate, "-CAkey", self.pair.key,
             "-set_serial", abs(hash(name)) + 2, "-days", days, "-extfile", extensions,
             "-out", pair.certificate)  # fmt: skip
        return pair

    def encrypt(self, name: str) -> None:
        """Put a password on the key of a pair."""
        key, plain = self.folder / f"{name}.key", self.folder / f"{name}.plain"
        key.rename(plain)
        _run("pkcs8", "-topk8", "-in", plain, "-out", key, "-passout", "pass:secret")


def _run(*words: object) -> None:
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
