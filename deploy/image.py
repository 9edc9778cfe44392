"""Build the image of the proxy with docker, podman or buildah, whichever is here.

    python deploy/image.py [--tag NAME:TAG] [--archive FILE] [OPTION OF THE BUILD...]

All else goes to the build as it is: --build-arg BASE=..., --build-arg EXTRAS=..., -v HERE:THERE.
With SOURCE_DATE_EPOCH in the environment the files of the image have that time, so that podman and
buildah make the same bytes of the same base twice; docker writes times of its own into the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGINES = ("docker", "podman", "buildah")
NO_ENGINE = 3  # the exit code where none of them is here


def find_engine() -> str | None:
    """Return the first of the engines that is here and works; a docker may lack its daemon."""
    for name in ENGINES:
        program = shutil.which(name)
        if program and subprocess.run([program, "info"], capture_output=True).returncode == 0:
            return name
    return None


def default_tag(root: Path) -> str:
    """Return the image's name with the project's version."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return f"{project['name']}:{project['version']}"


def build_words(engine: str, tag: str, epoch: str | None, more: Sequence[str]) -> list[str]:
    """Return the command that builds the image of the current folder."""
    words = [engine, "build", "-f", "deploy/Containerfile", "-t", tag]
    if engine != "docker":  # which has that format, and finds the file beside the other one
        words += ["--format", "docker", "--ignorefile", "deploy/Containerfile.dockerignore"]
    if epoch is not None:
        words += ["--build-arg", f"SOURCE_DATE_EPOCH={epoch}"]
        words += [] if engine == "docker" else ["--timestamp", epoch]
    return [*words, *more, "."]


def save_words(engine: str, tag: str, archive: Path) -> list[str]:
    """Return the command that writes an image as a file that `docker load` reads."""
    if engine == "buildah":
        return [engine, "push", tag, f"docker-archive:{archive}:{tag}"]
    form = ["--format", "docker-archive"] if engine == "podman" else []
    return [engine, "save", *form, "--output", str(archive), tag]


def normalize(archive: Path, epoch: int) -> None:
    """Write an archive anew with what the image is made of: its layers, its settings, its name.

    What is left out differs from build to build: which container it was, on which host, when it was
    written, and the links that tools before docker 1.10 wanted.
    """
    raw = archive.with_suffix(".part")
    with tarfile.open(archive) as given, tarfile.open(raw, "w", format=tarfile.GNU_FORMAT) as made:

        def read(name: str) -> bytes:
            file = given.extractfile(name)
            assert file is not None, f"{name} is no file of {archive}"
            return file.read()

        def write(name: str, data: bytes) -> None:
            plain = tarfile.TarInfo(name)
            plain.size, plain.mtime, plain.mode = len(data), epoch, 0o644
            made.addfile(plain, io.BytesIO(data))

        (image,) = json.loads(read("manifest.json"))
        settings = json.loads(read(image["Config"]))
        for key in ("container", "container_config"):
            settings.pop(key, None)
        settings["config"].pop("Hostname", None)
        config = json.dumps(settings, sort_keys=True).encode()
        names = [f"{each.partition(':')[2]}.tar" for each in settings["rootfs"]["diff_ids"]]
        for layer, name in zip(image["Layers"], names, strict=True):
            write(name, read(layer))
        image |= {"Config": f"{hashlib.sha256(config).hexdigest()}.json", "Layers": names}
        write(image["Config"], config)
        write("manifest.json", json.dumps([image], sort_keys=True).encode())
    raw.replace(archive)


def main(arguments: Sequence[str]) -> int:
    """Build, and write the archive that is asked for; return the exit code."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--tag", default=default_tag(ROOT))
    parser.add_argument("--archive", type=Path)
    options, more = parser.parse_known_args(arguments)
    engine = find_engine()
    if engine is None:
        print(f"No image: none of {', '.join(ENGINES)} is here, or works.", file=sys.stderr)
        return NO_ENGINE
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    commands = [build_words(engine, options.tag, epoch, more)]
    if options.archive is not None:
        options.archive.unlink(missing_ok=True)  # buildah would not write over it
        commands.append(save_words(engine, options.tag, options.archive.absolute()))
    for words in commands:
        print("+", *words, flush=True)
        if code := subprocess.run(words, cwd=ROOT).returncode:
            return code
    if options.archive is not None:
        normalize(options.archive, int(epoch or 0))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
