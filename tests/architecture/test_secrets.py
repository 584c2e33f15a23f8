"""Secrets are compared in constant time: never with ``==``, whose time says how many bytes of a guess are right."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.stack import ROOT

COMPARE = frozenset({"compare_digest"})
MACS = frozenset({"_mac", "csrf_token", "_token", "digest", "hexdigest", "make"})
"""Functions whose result is a secret or is made with one, in the modules that compare what a caller gives with it."""
MODULES = {
    "services/controller/oidc.py": frozenset({"nonce"}),
    "services/controller/routes/oidc.py": frozenset({"state"}),
    "services/kit/access/access.py": frozenset({"given"}),
    "services/kit/access/tokens.py": frozenset({"mac", "payload"}),
    "services/kit/access/totp.py": frozenset({"given", "digest"}),
    "services/kit/seal.py": frozenset({"given"}),
    "services/server/executor/staging.py": frozenset({"token"}),
    "services/server/model_cache_door.py": frozenset({"token"}),
}
"""The module, and the names that hold what a caller gave or what it is compared with."""


def name_of(node: ast.expr) -> str:
    """The last name of a name, an attribute or a call; empty for others."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func):
            return name_of(func)
    return ""


def comparisons(source: str, secret: frozenset[str]) -> list[str]:
    """Comparisons by value of something secret, as text."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops):
            sides = [name_of(side) for side in (node.left, *node.comparators)]
            if any(side in secret for side in sides) or any(
                isinstance(side, ast.Call) and name_of(side) in MACS for side in (node.left, *node.comparators)
            ):
                found.append(ast.unparse(node))
    return found


def calls(source: str, names: frozenset[str]) -> int:
    return sum(isinstance(node, ast.Call) and name_of(node.func) in names for node in ast.walk(ast.parse(source)))


@pytest.mark.parametrize("module", MODULES)
def test_secrets_are_compared_in_constant_time(module: str) -> None:
    source = (ROOT / module).read_text()
    assert comparisons(source, MODULES[module]) == []
    assert calls(source, COMPARE) == 1


def test_every_module_that_compares_secrets_is_known_here() -> None:
    """A new use of ``compare_digest`` belongs into the table above, with the names that it compares."""
    files = [path for folder in ("services", "wooly", "bus_schemas", "billing") for path in Path(ROOT / folder).rglob("*.py")]
    assert {str(path.relative_to(ROOT)) for path in files if calls(path.read_text(), COMPARE)} == set(MODULES)


@pytest.mark.parametrize(
    "fault", ["mac != _mac(secret, payload)", "_mac(secret, payload) == mac", "x == hmac.digest(a, b, c)", "mac in known"]
)
def test_the_rule_finds_what_it_forbids(fault: str) -> None:
    assert comparisons(fault, frozenset({"mac"})) == [fault]
