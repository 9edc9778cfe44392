"""What is known of a llama.cpp start beforehand: files that are missing or none, and memory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from wellspoken.engine.failure import EngineError
from wellspoken.engine.llamacpp.llamacpp_check import (
    check_gguf,
    check_memory,
    check_model,
    check_template,
    parts,
)

GB = 10**9


def write(file: Path, begin: bytes = b"GGUF", size: int = 100) -> Path:
    file.write_bytes(begin)
    os.truncate(file, max(size, len(begin)) if begin else 0)
    return file


def refused(model: Path) -> str:
    with pytest.raises(EngineError) as caught:
        check_model(model)
    assert caught.value.lasting
    return str(caught.value)


def test_a_model_has_its_size(tmp_path: Path) -> None:
    assert check_model(write(tmp_path / "m.gguf", size=123)) == 123
    (tmp_path / "link.gguf").symlink_to("m.gguf")
    assert check_model(tmp_path / "link.gguf") == 123


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path / "none.gguf")
    assert f"no model file {tmp_path / 'none.gguf'}" in said and "--model" in said
    assert "no model file" in refused(write(tmp_path / "file") / "m.gguf")
    (tmp_path / "dangling.gguf").symlink_to("gone")
    said = refused(tmp_path / "dangling.gguf")
    assert f"no model file {os.path.realpath(tmp_path)}/gone, to which {tmp_path}/dangling" in said


def test_what_cannot_be_looked_at_is_not_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "round.gguf").symlink_to("round.gguf")
    assert "cannot be read: Too many levels of symbolic links" in refused(tmp_path / "round.gguf")


def test_a_folder_is_said_to_be_one(tmp_path: Path) -> None:
    said = refused(tmp_path)
    assert "that is a folder" in said and "There is no .gguf file in it" in said
    write(tmp_path / "b.gguf")
    write(tmp_path / "a.gguf")
    assert refused(tmp_path).endswith("In it: a.gguf, b.gguf.")


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is not a file" in refused(tmp_path / "pipe.gguf")


def test_an_error_of_the_file_system_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "m.gguf")
    before = Path.open

    def fail(self: Path, *given: object) -> object:
        if self == file:
            raise PermissionError(13, "Permission denied")
        return before(self)

    monkeypatch.setattr(Path, "open", fail)
    said = refused(file)
    assert f"{file} cannot be read: Permission denied. Let the user {os.geteuid()} " in said


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (b"", "is empty"),
        (b"garbage", "b'garb'"),
        (b"GGU", "b'GGU\\x00'"),
        (b"PK\x03\x04", "safetensors, PyTorch"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    ],
)
def test_a_file_that_is_no_model_is_refused(begin: bytes, expected: str, tmp_path: Path) -> None:
    said = refused(write(tmp_path / "m.gguf", begin))
    assert "m.gguf is not a GGUF model" in said and expected in said


def test_what_else_is_gguf_is_named_for_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no mmproj file"):
        check_gguf(tmp_path / "eyes.gguf", "mmproj")
    assert check_gguf(write(tmp_path / "eyes.gguf", size=9), "mmproj") == 9


def split(folder: Path, count: int) -> list[Path]:
    names = [f"big-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    return [write(folder / name, size=10) for name in names]


def test_a_split_model_needs_all_its_parts(tmp_path: Path) -> None:
    files = split(tmp_path, 12)
    assert parts(files[0]) == files
    assert check_model(files[0]) == 120
    for file in files[3:8]:
        file.unlink()
    said = refused(files[0])
    assert said.startswith("5 of the 12 parts")
    assert "big-00004-of-00012.gguf, big-00005-of-00012.gguf, big-00006-of-00012.gguf, ..." in said


def test_a_split_model_is_named_by_its_first_part(tmp_path: Path) -> None:
    files = split(tmp_path, 2)
    assert "first part: big-00001-of-00002.gguf" in refused(files[1])
    files[0].unlink()
    assert "no model file" in refused(files[0])


def test_each_part_is_a_model(tmp_path: Path) -> None:
    files = split(tmp_path, 2)
    write(files[1], b"none")
    assert "00002-of-00002.gguf is not a GGUF model" in refused(files[0])


def test_a_name_that_only_looks_split_is_a_plain_one(tmp_path: Path) -> None:
    file = write(tmp_path / "a-00000-of-00000.gguf")
    assert parts(file) == [file]


def test_a_template_is_a_file_or_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ 'é' }}", encoding="utf-8")
    assert check_template(str(file)) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_template("~/t.jinja") == file
    for text in ("chatml", "{{ a }}", "{% if a %}" + "x" * 5000, "a\0{{ b }}"):
        assert check_template(text) is None


@pytest.mark.parametrize("template", ["gone.jinja", "llama2", "", "x" * 5000])
def test_what_is_neither_is_refused(template: str) -> None:
    with pytest.raises(EngineError, match="no chat template file") as caught:
        check_template(template)
    assert caught.value.lasting and len(str(caught.value)) < 400


def test_a_template_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_bytes("{{ 'é' }}".encode("latin-1"))
    with pytest.raises(EngineError, match="as UTF-8 text"):
        check_template(str(file))


class Machine:
    """A constructed /proc, /sys and /dev, as Linux' proc(5) and cgroups(7) describe them."""

    def __init__(self, root: Path, gigabytes: float | None = 10) -> None:
        self.root = root
        if gigabytes is not None:
            self.put("proc/meminfo", f"MemFree: 5 kB\nMemTotal:   {gigabytes * GB / 1024:.0f} kB\n")

    def put(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def check(self, gigabytes: float, gpu_layers: int = -1) -> list[str]:
        return check_memory(int(gigabytes * GB), gpu_layers, self.root)


def too_large(machine: Machine, gigabytes: float, gpu_layers: int = -1) -> str:
    with pytest.raises(EngineError) as caught:
        machine.check(gigabytes, gpu_layers)
    assert caught.value.lasting
    return str(caught.value)


def test_the_machines_memory_is_the_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.check(8) == []
    [warning] = machine.check(9)
    assert "have 9.0 GB, and this machine has 10.0 GB" in warning and "may not fit" in warning
    said = too_large(machine, 10.1)
    assert "have 10.1 GB, and this machine has 10.0 GB" in said and "smaller model" in said


@pytest.mark.parametrize("device", ["nvidia0", "kfd", "dri/renderD128", "dxg"])
def test_a_gpu_may_take_what_does_not_fit(device: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put(f"dev/{device}", "")
    assert machine.check(100) == machine.check(100, 20) == []
    assert "have 100.0 GB" in too_large(machine, 100, gpu_layers=0)


def test_what_only_looks_like_a_gpu_takes_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put("dev/nvidiactl", "")
    machine.put("dev/dri/card0", "")
    assert "have 11.0 GB" in too_large(machine, 11)


V2 = "0::/pod/container\n"
V1 = "5:cpu,cpuacct:/a\n4:memory:/pod/container\n1:name=systemd:/\n0::/\n"


@pytest.mark.parametrize(
    ("cgroup", "mount", "name"),
    [
        (V2, "sys/fs/cgroup", "memory.max"),
        (V1, "sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("4:hugetlb,memory:/pod/container\n", "sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ],
)
@pytest.mark.parametrize("group", ["/pod/container", "/pod", ""])
def test_a_control_groups_limit_counts(
    group: str, cgroup: str, mount: str, name: str, tmp_path: Path
) -> None:
    machine = Machine(tmp_path)
    machine.put("proc/self/cgroup", cgroup)
    machine.put(f"{mount}{group}/{name}", f"{4 * GB}\n")
    assert machine.check(3) == []
    assert "may not fit" in machine.check(3.9)[0]
    assert f"{mount}{group}/{name} allows 4.0 GB" in too_large(machine, 5)


def test_the_narrowest_limit_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put("proc/self/cgroup", V2)
    machine.put("sys/fs/cgroup/pod/container/memory.max", "max\n")
    machine.put("sys/fs/cgroup/pod/memory.max", f"{3 * GB}\n")
    machine.put("sys/fs/cgroup/memory.max", f"{5 * GB}\n")
    assert "pod/memory.max allows 3.0 GB" in too_large(machine, 4)


def test_no_limit_is_none(tmp_path: Path) -> None:
    machine = Machine(tmp_path, None)
    assert machine.check(1000) == []  # not Linux: nothing is known
    machine.put("proc/self/cgroup", V1)
    machine.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine.check(1000) == []


def test_this_machines_own_memory_is_read() -> None:
    assert stat.S_ISREG(Path("/proc/meminfo").stat().st_mode)
    with pytest.raises(EngineError, match="GB, and "):
        check_memory(10**15, 0)
    assert check_memory(1, 0) == []
