"""The operator's command decides, beside the key, which nodes connect to a secure bus."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path

import nats.errors
import pytest

from services.controller.bus_guard import Attestation
from services.kit.access.errors import Forbidden
from services.kit.errors import SettingError
from tests.support.secure import SecureStack, line

COMMAND = """
import json, pathlib, sys
asked = json.load(sys.stdin)
folder = pathlib.Path(sys.argv[1])
with (folder / "asked").open("a") as log:
    log.write(json.dumps(asked) + "\\n")
if asked["node"] in (folder / "refused").read_text().split():
    print("its measurement is unknown")
    sys.exit(3)
"""


def is_admitted(stack: SecureStack, key: str) -> bool:
    async def once() -> bool:
        try:
            async with line(stack, key):
                return True
        except (nats.errors.Error, OSError):  # nats-py writes to a connection that the bus has ended
            return False

    return asyncio.run(once())


def test_a_node_connects_only_while_the_command_accepts_it(tmp_path: Path) -> None:
    script, refused, asked = tmp_path / "attest.py", tmp_path / "refused", tmp_path / "asked"
    script.write_text(COMMAND)
    refused.write_text("rack-9")
    (tmp_path / "stack").mkdir()
    command = shlex.join([sys.executable, str(script), str(tmp_path)])
    with SecureStack(tmp_path / "stack", WOOLY_NODE_ATTESTATION=command) as stack:  # whose own node is accepted
        good, bad = (stack.key(role="node", node=name, title=name) for name in ("rack-7", "rack-9"))
        assert is_admitted(stack, good) and not is_admitted(stack, bad)
        refused.write_text("rack-7")
        assert not is_admitted(stack, good) and is_admitted(stack, bad)
        assert is_admitted(stack, stack.key(user="", role="operator", title="a person's")), "people are not asked about"
    said = [json.loads(text) for text in asked.read_text().splitlines()]
    assert {one["node"] for one in said} > {"rack-7", "rack-9"} and all(one["node"] for one in said)
    of_good = next(one for one in said if one["node"] == "rack-7")
    assert of_good["key"] in good and of_good["address"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("cat", ""),
        ("true", ""),
        ("sh -c 'echo no quote; echo more; exit 3'", "node n1 is not attested: no quote"),
        ("false", "node n1 is not attested: exit code 1"),
        ("/nowhere/attest", "No such file"),
        ("sh -c 'cat >/dev/null; exec sleep 60'", "no answer about node n1 within"),
        ("sh -c 'yes | head -c 100000; exit 3'", "node n1 is not attested: y"),
    ],
)
def test_what_a_command_says(command: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.controller.bus_guard._ANSWER_S", 1.0 if "sleep" in command else 20.0)
    attested = Attestation(command).check("n1", "k1", "10.0.0.1")
    if why:
        with pytest.raises(Forbidden, match=why):
            asyncio.run(attested)
    else:
        asyncio.run(attested)


def test_settings_that_name_no_command() -> None:
    for wrong in ("'", " "):
        with pytest.raises(SettingError, match="WOOLY_NODE_ATTESTATION"):
            Attestation(wrong)
