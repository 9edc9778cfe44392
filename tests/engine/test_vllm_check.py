"""What is known before vLLM is started. GPUs are those that a scripted `nvidia-smi` lists."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clock import own_time
from wellspoken.engine.failure import EngineError
from wellspoken.engine.vllm import vllm_check
from wellspoken.engine.vllm.vllm_check import ask_nvidia, check, check_model, visible

CUDA, CPU = "0.32.0", "0.32.0+cpu"
TWO = """0, GPU-aaaa1111, 80000, 81559
1, GPU-bbbb2222, 2000, 81559"""
"""As nvidia-smi 550 prints two H100 with these options, in MiB."""


class Machine:
    """A root folder and a PATH that a test fills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {"PATH": str(root / "bin")}
        for folder in ("bin", "dev/shm", "proc"):
            (root / folder).mkdir(parents=True)

    def device(self, name: str = "nvidiactl") -> None:
        path = self.root / "dev" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()

    def nvidia_smi(self, script: str) -> None:
        program = self.root / "bin" / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def gpus(self, listing: str = TWO) -> None:
        self.device()
        self.nvidia_smi(f"cat <<'END'\n{listing}\nEND" if listing else "true")
        self.environ["PATH"] += ":/usr/bin:/bin"

    def memory(self, size: int) -> None:
        (self.root / "proc" / "meminfo").write_text(f"MemTotal: {size // 1024} kB\n")

    def check(self, model: str = "org/name", *arguments: str, version: str = CUDA) -> list[str]:
        return check(model, arguments, version, self.environ, self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with weights of 2,000 bytes."""
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    for name in ("model-1-of-2.safetensors", "model-2-of-2.safetensors"):
        (made / name).write_bytes(b"x" * 1_000)
    return made


def refused(machine: Machine, model: str = "org/name", *arguments: str, version: str = CUDA) -> str:
    with pytest.raises(EngineError) as raised:
        machine.check(model, *arguments, version=version)
    assert raised.value.lasting
    return str(raised.value)


# The model.


@pytest.mark.parametrize(
    "model",
    ["org/name", "name", "Qwen/Qwen3-0.6B", "a_b/c.d-e", "org/name:Q4_K_M", "s3://bucket/a/b",
     "https://host/a"],
)  # fmt: skip
def test_names_that_may_be_on_the_hub_pass(model: str) -> None:
    assert check_model(model, ()) == 0


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("/no/such/folder", "there is no folder"),
        ("./name", "there is no folder"),
        ("../org/name", "there is no folder"),
        ("models/org/name", "there is no folder"),
        ("model.gguf", "llama.cpp"),
        ("/a/model.GGUF", "llama.cpp"),
        ("", "neither a folder"),
        ("org name", "neither a folder"),
        ("org/", "neither a folder"),
        ("/", "no config.json"),
        ("--enforce-eager", "neither a folder"),
        ("a--b", "neither a folder"),
        ("https://huggingface.co/org/name", r"is a web page\. Give the model's name: org/name\."),
        ("hf.co/org/name/tree/main", r"the model's name: org/name\."),
    ],
)
def test_what_can_be_no_model_is_refused(model: str, said: str) -> None:
    with pytest.raises(EngineError, match=said) as raised:
        check_model(model, ())
    assert raised.value.lasting


def test_a_folder_has_the_size_of_its_weights(folder: Path) -> None:
    assert check_model(str(folder), ()) == 2_000
    (folder / "pytorch_model.bin").write_bytes(b"x")  # the same weights once more
    assert check_model(str(folder), ()) == 2_000


def test_a_folder_without_configuration_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(EngineError, match=r"has no config\.json") as raised:
        check_model(str(folder), ())
    assert "llama.cpp" not in str(raised.value)
    (folder / "small.gguf").touch()
    with pytest.raises(EngineError, match=r"small\.gguf: serve that with llama\.cpp"):
        check_model(str(folder), ())
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    with pytest.raises(EngineError, match=rf"A model is in it: {snapshot}\."):
        check_model(str(folder), ())
    assert check_model(str(folder), ("--hf-config-path", "org/name")) == 2_000
    (folder / "params.json").write_text("{}")
    assert check_model(str(folder), ()) == 2_000


def test_a_file_is_no_model(folder: Path) -> None:
    with pytest.raises(EngineError, match="is a file"):
        check_model(str(folder / "config.json"), ())


# The device.


def test_a_machine_without_any_gpu_is_refused(machine: Machine) -> None:
    said = refused(machine)
    assert "no GPU" in said and "--gpus all" in said and "llama.cpp" in said


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cu129", "0.32.0.post1", "0.32.0rc1"])
def test_builds_for_cuda_need_a_gpu(machine: Machine, version: str) -> None:
    assert "no GPU" in refused(machine, version=version)


@pytest.mark.parametrize(
    "version", ["", "0.32.0+cpu", "0.32.0+rocm700", "0.32.0+empty", "0.32.1.dev3+g12345"]
)
def test_other_builds_may_have_devices_of_their_own(machine: Machine, version: str) -> None:
    assert machine.check(version=version) == []


@pytest.mark.parametrize(
    "device", ["nvidiactl", "nvidia0", "kfd", "dri/renderD128", "dxg", "accel0", "nvhost-gpu"]
)
def test_any_device_may_be_a_gpu(machine: Machine, device: str) -> None:
    machine.device(device)
    assert machine.check() == []


def test_a_gpu_that_nvidia_smi_lists_is_one(machine: Machine) -> None:
    machine.gpus(TWO)
    (machine.root / "dev" / "nvidiactl").unlink()
    assert machine.check() == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--distributed-executor-backend", "ray"), "X"),
        ((), "RAY_ADDRESS"),
        ((), "VLLM_PLUGINS"),
        ((), "VLLM_TARGET_DEVICE"),
    ],
)
def test_a_gpu_may_be_elsewhere(machine: Machine, arguments: tuple[str, ...], name: str) -> None:
    machine.environ[name] = "x"
    assert machine.check("org/name", *arguments) == []


def test_another_system_is_not_judged(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert machine.check() == []


@pytest.mark.parametrize("chosen", ["", "-1", " ", "none"])
def test_hiding_every_gpu_is_refused(machine: Machine, chosen: str) -> None:
    machine.gpus()
    machine.environ["CUDA_VISIBLE_DEVICES"] = chosen
    assert "CUDA_VISIBLE_DEVICES" in refused(machine)
    assert machine.check(version=CPU) == []


# nvidia-smi.


def test_nvidia_smi_is_asked_for_memory(machine: Machine) -> None:
    machine.gpus()
    first, second = ask_nvidia(machine.environ) or []
    assert (first.number, first.uuid, first.free >> 20, first.total >> 20) == (
        "0", "GPU-aaaa1111", 80_000, 81_559,
    )  # fmt: skip
    assert second.free == 2_000 << 20


def test_the_question_is_nvidia_smis(machine: Machine) -> None:
    machine.gpus()
    machine.nvidia_smi(f'echo "$@" > {machine.root}/asked')
    assert ask_nvidia(machine.environ) == []
    asked = (machine.root / "asked").read_text().split()
    assert asked == [
        "--query-gpu=index,uuid,memory.free,memory.total",
        "--format=csv,noheader,nounits",
    ]


@pytest.mark.parametrize(
    ("script", "known"),
    [
        ("exit 9", False),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", False),
        ("echo 'No devices were found'", True),
        ("echo '0, GPU-a, [N/A], [N/A]'", True),  # a MIG parent, or a GPU with shared memory
        ("printf '\\377\\n'", True),
    ],
)
def test_answers_of_nvidia_smi_without_a_gpu(machine: Machine, script: str, known: bool) -> None:
    machine.device()
    machine.nvidia_smi(script)
    assert ask_nvidia(machine.environ) == ([] if known else None)
    assert machine.check("org/name", "-tp", "8") == []


def test_a_missing_nvidia_smi_refuses_nothing(machine: Machine) -> None:
    machine.device()
    assert ask_nvidia(machine.environ) is None
    assert machine.check() == []


def test_a_hanging_nvidia_smi_is_not_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_check, "ASK_SECONDS", 0.2)
    machine.device()
    machine.nvidia_smi("exec /bin/sleep 60")
    began = own_time()
    assert ask_nvidia(machine.environ) is None
    assert own_time() - began < 30


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        (None, ["0", "1"]),
        ("1", ["1"]),
        ("1,0", ["1", "0"]),
        (" 1 , 0 ", ["1", "0"]),
        ("GPU-bbbb", ["1"]),
        ("", []),
        ("-1", []),
        ("7", None),
        ("MIG-1234", None),
        ("GPU-", None),
    ],
)
def test_cuda_visible_devices(
    machine: Machine, chosen: str | None, numbers: list[str] | None
) -> None:
    machine.gpus()
    environ = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    found = visible(ask_nvidia(machine.environ), environ)
    assert (None if found is None else [gpu.number for gpu in found]) == numbers
    assert visible(None, environ) is None


# Memory.


def test_too_little_free_memory_of_a_gpu_is_warned_of(machine: Machine) -> None:
    machine.gpus()
    assert machine.check() == []
    (warning,) = machine.check("org/name", "-tp", "2")
    assert warning.startswith("GPU 1 has 2.0 GiB of 79.6 GiB free, and vLLM wants 0.92")
    assert warning.endswith("(`nvidia-smi` lists that)")  # 0.01 of it would help nobody
    machine.gpus("0, GPU-aaaa1111, 40000, 81559")
    (warning,) = machine.check()
    assert warning.endswith("or give --gpu-memory-utilization 0.48")
    machine.gpus()
    machine.environ["CUDA_VISIBLE_DEVICES"] = "1"
    assert len(machine.check()) == 1
    assert machine.check("org/name", "--gpu-memory-utilization", "0.02") == []
    assert machine.check("org/name", "--kv-cache-memory-bytes", "1G") == []


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("-tp", "8"), 8),
        (("--tensor-parallel-size=4", "--pipeline-parallel-size", "2"), 8),
        (("-tp", "2", "-dp", "2"), 4),
        (("-tp", "2", "-dp", "8", "-dpl", "2"), 4),
        (("--data-parallel-size-local", "4", "--data-parallel-size", "16"), 4),
    ],
)
def test_more_gpus_than_there_are_is_warned_of(
    machine: Machine, arguments: tuple[str, ...], wanted: int
) -> None:
    machine.gpus()
    (warning,) = machine.check("org/name", *arguments)
    assert f"need {wanted} GPUs, and 2 are visible" in warning
    assert machine.check("org/name", *arguments, "--nnodes", "2")[0].startswith("GPU 1 has")
    assert machine.check("org/name", *arguments, "--distributed-executor-backend", "ray") == []


def test_weights_larger_than_the_gpu_are_warned_of(machine: Machine, folder: Path) -> None:
    machine.gpus("0, GPU-a, 40, 40")
    with (folder / "model-1-of-2.safetensors").open("wb") as weights:
        weights.truncate(50 << 20)
    (warning,) = machine.check(str(folder))
    assert "weights have 0.0 GiB" in warning and "--tensor-parallel-size" in warning
    assert machine.check(str(folder), "--cpu-offload-gb", "1") == []
    assert machine.check(str(folder), "--quantization", "fp8") == []
    machine.gpus("0, GPU-a, 40, 40\n1, GPU-b, 40, 40")
    assert machine.check(str(folder), "-tp", "2") == []


def test_weights_larger_than_the_machine_are_refused_on_a_cpu(
    machine: Machine, folder: Path
) -> None:
    machine.memory(100_000_000)
    assert machine.check(str(folder), version=CPU) == []
    with (folder / "model-1-of-2.safetensors").open("wb") as weights:
        weights.truncate(500_000_000)
    assert "0.5 GB" in refused(machine, str(folder), version=CPU)
    for config in ("[]", "{", '{"torch_dtype": "bfloat16"}'):
        (folder / "config.json").write_text(config)
        assert "0.5 GB" in refused(machine, str(folder), version=CPU)
    (folder / "config.json").write_text('{"torch_dtype": "float32"}')
    machine.memory(260_000_000)
    (warning,) = machine.check(str(folder), version=CPU)  # it may just fit as 16 bits
    assert "0.3 GB" in warning


def test_little_shared_memory_is_warned_of_where_several_gpus_share_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.gpus(TWO.replace(" 2000,", " 80000,"))
    assert machine.check("org/name", "-tp", "2") == []
    monkeypatch.setattr(vllm_check, "SHARED", 1 << 60)
    assert machine.check() == []
    (warning,) = machine.check("org/name", "-tp", "2")
    assert "--shm-size" in warning
    (machine.root / "dev" / "shm").rmdir()
    assert machine.check("org/name", "-tp", "2") == []
