"""What can be known before llama.cpp is started: whether its files are there, whole, and fit."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from wellspoken.engine.cgroups import find_limits
from wellspoken.engine.failure import lasting_error

MAGIC = b"GGUF"
LFS_POINTER = b"version https://git-lfs"
CLOSE = 0.85
"""The share of the memory from which on a model is close to it: the context comes on top."""

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_DEVICES = ("nvidia[0-9]*", "kfd", "dri/renderD*", "dxg", "accel/*")
"""Those on which some build of llama.cpp computes."""

_NAMED = 3  # missing parts that a message names


def parts(model: Path) -> list[Path]:
    """Return the files of a model: itself, or all parts of a split one (see llama-gguf-split).

    Raises EngineError if `model` is another part than the first, which llama.cpp wants to be given.
    """
    split = _PART.fullmatch(model.name)
    if split is None:
        return [model]
    first, *others = [
        model.with_name(f"{split['stem']}-{number:05d}-of-{split['count']}.gguf")
        for number in range(1, int(split["count"]) + 1)
    ] or [model]
    if model != first:
        raise lasting_error(
            f"{model} is part {int(split['number'])} of a split model. "
            f"Give --model the first part: {first.name}."
        )
    return [first, *others]


def check_model(model: Path) -> int:
    """Return the size in bytes of a model's files; raise EngineError if one cannot be a model."""
    if os.path.isdir(model):
        raise lasting_error(_folder(model))
    files = parts(model)
    missing = [file.name for file in files if _is_absent(file)]
    if model.name in missing:
        link = f", to which {model} links" if os.path.islink(model) else ""
        raise lasting_error(
            f"there is no model file {os.path.realpath(model) if link else model}{link}. "
            "Give --model the path of a .gguf file."
        )
    if missing:
        named = ", ".join(missing[:_NAMED]) + (", ..." if missing[_NAMED:] else "")
        raise lasting_error(
            f"{len(missing)} of the {len(files)} parts of {model} are missing: {named}. "
            "Put all parts into the same folder."
        )
    return sum(check_gguf(file, "model") for file in files)


def check_gguf(file: Path, what: str) -> int:
    """Return the size in bytes of a GGUF file; raise EngineError if it cannot be read as one.

    `what`: what it is for, as the messages name it.
    """
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise lasting_error(f"{file} is not a file. Give the path of the {what}'s .gguf file.")
        with file.open("rb") as opened:
            begin = opened.read(len(LFS_POINTER))
    except FileNotFoundError as error:
        raise lasting_error(
            f"there is no {what} file {file}. Give the path of a .gguf file."
        ) from error
    except OSError as error:
        raise lasting_error(
            f"the {what} file {file} cannot be read: {error.strerror or error}. "
            f"Let the user {os.geteuid()} read it, and search its folders."
        ) from error
    if not begin.startswith(MAGIC):
        raise lasting_error(f"{file} is not a GGUF {what}: {_instead(begin)}")
    return about.st_size


def check_template(template: str) -> Path | None:
    """Return the file that `template` names, None if it is a template; raise EngineError else."""
    path = os.path.expanduser(template)
    if os.path.isfile(path):  # unlike Path.is_file: False also for a text that no path can be
        try:
            Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise lasting_error(
                f"the chat template {template} cannot be read as UTF-8 text: {error}."
            ) from error
        return Path(path)
    # llama.cpp knows chatml by name, and would take the name of any other for the text itself.
    if "{{" in template or "{%" in template or template == "chatml":
        return None
    raise lasting_error(
        f"there is no chat template file {template[:200]}. Give the path of a jinja file, or the "
        "template's text."
    )


def check_memory(size: int, gpu_layers: int, root: Path = Path("/")) -> list[str]:
    """Return a warning if `size` bytes of model are close to this machine's memory, else nothing.

    Raises EngineError if the model is larger than the memory and no GPU can take some of it.
    `root`: where /proc, /sys and /dev are.
    """
    known = list(find_limits(root))
    if not known:
        return []
    limit, whose = min(known)
    offloaded = gpu_layers != 0 and has_device(root, *_DEVICES)
    said = f"the model's files have {_gigabytes(size)}, and {whose} {_gigabytes(limit)}"
    if size > limit and not offloaded:
        raise lasting_error(
            f"{said}. Take a smaller model or a smaller quantisation of it, or raise that."
        )
    if size > CLOSE * limit and not offloaded:
        return [f"{said}: with its context it may not fit. A smaller context or model helps."]
    return []


def _folder(folder: Path) -> str:
    found = sorted(file.name for file in folder.glob("*.gguf"))
    hint = f"In it: {', '.join(found[:_NAMED])}." if found else "There is no .gguf file in it."
    return f"there is no model file {folder}: that is a folder. Give --model a .gguf file. {hint}"


def _is_absent(file: Path) -> bool:
    """Say whether there is no such file; one in a folder that may not be searched may be there."""
    try:
        file.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _instead(begin: bytes) -> str:
    """Return what a file is that does not begin as it should, and what to do about it."""
    if not begin:
        return "it is empty. Download it again."
    if begin.startswith(LFS_POINTER):
        return "it is a Git LFS pointer to one. Run `git lfs pull` in its folder."
    return (
        f"its first four bytes are {begin[:4]!r} where a model's read GGUF. "
        "llama.cpp takes no other format (safetensors, PyTorch): download the model's .gguf file, "
        "or convert it with llama.cpp's convert_hf_to_gguf.py."
    )


def has_device(root: Path, *names: str) -> bool:
    """Say whether there is a device, one of these patterns of names below /dev."""
    return any(True for name in names for _ in (root / "dev").glob(name))


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
