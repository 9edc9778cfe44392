"""deploy/systemd: systemd takes the units, finds them hardened, and what they start works."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.deploy.sandbox import Ran, asked, running, status
from tests.deploy.tools import DEPLOY, run, system_tool
from tests.ports import free_port
from tests.waiting import until
from wellspoken.proxy.config.tables import Config, Engine

UNIT = DEPLOY / "systemd" / "wellspoken.service"
ENGINE = DEPLOY / "systemd" / "engine.conf"
COMMAND = "/opt/wellspoken/bin/wellspoken"
KEY = "sk-canary"
EXPOSURE = 20
"""Tenths of what `systemd-analyze security` calls exposure, of 100; a bare unit has 96.

systemd 252 finds 14, and 18 with engine.conf.
"""


def settings(text: str) -> list[tuple[str, str]]:
    """Return a unit's settings, in their order; one may stand there more than once."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#[")
    return [(key, value) for key, _, value in pairs]


def single(text: str) -> dict[str, str]:
    """Return those settings of which the last one counts."""
    return dict(settings(text))


def placed(folder: Path, text: str, engine: str | None = None) -> Path:
    """Write a unit, and a drop-in, where systemd-analyze can find them; return the unit's path.

    Its command is one that is there.
    """
    unit = folder / UNIT.name
    unit.write_text(text.replace(COMMAND, sys.executable))
    if engine is not None:
        drop_in = folder / f"{UNIT.name}.d"
        drop_in.mkdir()
        (drop_in / ENGINE.name).write_text(engine)
    return unit


def verified(unit: Path) -> tuple[int, str]:
    analyze = system_tool("systemd-analyze", "systemd")
    return run(analyze, "verify", "--man=no", "--recursive-errors=no", unit)


def exposed(unit: Path, threshold: int) -> tuple[int, str]:
    analyze = system_tool("systemd-analyze", "systemd")
    options = ["--offline=true", "--no-pager", f"--threshold={threshold}"]
    return run(analyze, "security", *options, unit)


def test_systemd_takes_them(tmp_path: Path) -> None:
    unit = placed(tmp_path, UNIT.read_text(), ENGINE.read_text())
    assert verified(unit) == (0, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("KillMode=mixed", "KilMode=mixed"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@sistem-service"),
        ("TimeoutStopSec=330", "TimeoutStopSec=long"),
        (COMMAND, "/opt/nothing/here"),
    ],
)
def test_systemd_does_not_take_mistakes(tmp_path: Path, old: str, new: str) -> None:
    assert old in UNIT.read_text()
    unit = placed(tmp_path, UNIT.read_text().replace(old, new))
    assert verified(unit)[1] != ""


def test_a_mistake_in_the_drop_in_is_seen(tmp_path: Path) -> None:
    engine = ENGINE.read_text().replace("PrivateDevices=no", "PrivateDevice=no")
    assert "PrivateDevice" in verified(placed(tmp_path, UNIT.read_text(), engine))[1]


def test_they_are_hardened(tmp_path: Path) -> None:
    code, said = exposed(placed(tmp_path, UNIT.read_text()), EXPOSURE)
    assert code == 0, said


def test_with_an_engine_they_are_still_hardened(tmp_path: Path) -> None:
    text = UNIT.read_text() + ENGINE.read_text()  # as the drop-in comes last
    code, said = exposed(placed(tmp_path, text), EXPOSURE)
    assert code == 0, said


def lacks(engine: str) -> list[str]:
    """Return what a vLLM needs and a unit with this drop-in does not let it have.

    Without AF_NETLINK gloo ends with `Address family not supported by protocol` (torch 2.13, seen
    under a seccomp filter that refuses it).
    """
    given = settings(UNIT.read_text() + engine)
    stated = [value for key, value in given if key == "RestrictAddressFamilies"]
    families = {word for value in stated for word in value.split()}
    found = sorted({"AF_INET", "AF_INET6", "AF_NETLINK", "AF_UNIX"} - families)
    wanted = {"PrivateDevices": "no", "DevicePolicy": "auto", "MemoryDenyWriteExecute": "no"}
    wanted |= {"ProcSubset": "all", "CacheDirectory": "wellspoken"}
    return found + [key for key, value in wanted.items() if dict(given).get(key) != value]


@pytest.mark.parametrize("name", [*dict(settings(ENGINE.read_text())), None])
def test_an_engine_gets_what_it_needs(name: str | None) -> None:
    text = ENGINE.read_text()
    lines = [line for line in text.splitlines() if name is None or not line.startswith(f"{name}=")]
    optional = {None, "LimitMEMLOCK", "Environment"}
    assert (lacks("\n".join(lines)) == []) == (name in optional)


@pytest.mark.parametrize("setting", ["CapabilityBoundingSet", "SystemCallFilter"])
def test_a_unit_that_is_less_hardened_is_found(tmp_path: Path, setting: str) -> None:
    lines = [each for each in UNIT.read_text().splitlines() if not each.startswith(setting)]
    assert exposed(placed(tmp_path, "\n".join(lines)), EXPOSURE)[0] != 0


# ---- what the proxy promises, and the unit relies on


def faults(text: str) -> list[str]:
    """Return what does not go together with the proxy's own ways."""
    given, found = single(text), []
    defaults, engine = Config().server, Engine(kind="vllm", model="m")
    needed = defaults.drain_delay + defaults.drain_timeout + engine.grace
    if float(given.get("TimeoutStopSec", "90")) <= needed:
        found.append(f"an orderly end may take {needed:g} s")
    if given.get("KillMode") != "mixed":
        found.append("SIGTERM would reach the engine beside the proxy")
    if given.get("Restart") != "on-failure" or given.get("RestartPreventExitStatus") != "2":
        found.append("it is started again when that helps, and only then")
    if given.get("DynamicUser") != "yes" or "User" in given:
        found.append("it has no user of its own")
    if given.get("ExecReload") != "/bin/kill -HUP $MAINPID":
        found.append("systemctl reload does not reload")
    variables = [value for key, value in settings(text) if key == "Environment"]
    if "WELLSPOKEN_AUTH_KEYS=file:%d/keys" not in variables:
        found.append("the keys are not the credential")
    if not given.get("LoadCredential", "").startswith("keys:/"):
        found.append("there is no credential")
    if not given.get("EnvironmentFile", "").startswith("-/"):
        found.append("settings in variables have no place, or have to be there")
    return found


def test_it_goes_together_with_the_proxy() -> None:
    assert faults(UNIT.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TimeoutStopSec=330", "TimeoutStopSec=300"),
        ("TimeoutStopSec=330\n", ""),
        ("KillMode=mixed", "KillMode=control-group"),
        ("Restart=on-failure", "Restart=no"),
        ("RestartPreventExitStatus=2\n", ""),
        ("DynamicUser=yes", "User=root"),
        ("-HUP", "-TERM"),
        ("file:%d/keys", "env:KEYS"),
        ("LoadCredential=keys:", "LoadCredential=key:"),
        ("EnvironmentFile=-", "EnvironmentFile="),
    ],
)
def test_a_mutant_is_found(old: str, new: str) -> None:
    assert old in UNIT.read_text()
    assert faults(UNIT.read_text().replace(old, new)) != []


async def test_what_it_starts_serves_reloads_and_ends(llama_server: str, tmp_path: Path) -> None:
    """ExecStart in its environment, with a credential; ExecReload, twice; the end of it.

    systemd is not process 1 where tests run, so the test does what it would.
    """
    given = single(UNIT.read_text())
    (tmp_path / "keys").write_text(KEY + "\n")
    (tmp_path / "state").mkdir()
    config = tmp_path / "wellspoken.toml"
    port = free_port()
    config.write_text(
        f'[server]\nlisten = "127.0.0.1:{port}"\n[[backend]]\nurl = "{llama_server}"\n'
    )
    environ = {"PATH": os.environ["PATH"]}
    for key, value in settings(UNIT.read_text()):
        if key == "Environment":
            for word in value.split():
                name, _, text = word.partition("=")
                text = text.replace("%d", str(tmp_path)).replace("%S", str(tmp_path / "state"))
                environ[name] = text
    command = given["ExecStart"].split()
    assert command[0] == COMMAND
    command[0] = str(Path(sys.executable).with_name("wellspoken"))
    command[command.index("/etc/wellspoken/wellspoken.toml")] = str(config)
    bare = ["env", "-i", *(f"{name}={value}" for name, value in environ.items())]
    kill, number, main = given["ExecReload"].split()
    assert (kill, main) == ("/bin/kill", "$MAINPID")
    reload = signal.Signals[f"SIG{number.removeprefix('-')}"]
    ended: list[Ran] = []
    async with running([*bare, *command], port, ended) as served:
        assert (await asked(served.url, KEY))[0] == 200
        assert (await asked(served.url, "sk-other"))[0] == 401
        text = config.read_text()
        config.write_text(text + "nonsense = 1\n")
        served.send(reload)

        async def is_refused() -> bool:
            async with ClientSession() as session, session.get(f"{served.url}/metrics") as metrics:
                return "wellspoken_config_last_reload_success 0" in await metrics.text()

        await until(is_refused)
        assert (await asked(served.url, KEY))[0] == 200
        config.write_text(text + 'models = ["tiny", "added"]\n')
        served.send(reload)

        async def is_added() -> bool:
            return await status(f"{served.url}/v1/models/added", KEY) == 200

        await until(is_added)
    assert ended[0].status == 0, ended[0].out
    assert "nonsense" in ended[0].out and "Traceback" not in ended[0].out
