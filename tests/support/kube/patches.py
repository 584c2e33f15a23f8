"""The ways to change an object of Kubernetes: merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge patch, server-side apply.
Pure: nothing that is given is changed.

A path is a tuple of field names; an element of a list that is merged by a key is the pair (key, value) in it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["Conflict", "Owners", "Refused", "applied", "changed_by", "json_patched", "merge_patched", "strategic_patched"]

Json = dict[str, Any]
Path = tuple[Any, ...]
Owners = Mapping[tuple[str, str, str], frozenset[Path]]
"""Which fields a (manager, operation, subresource) owns."""

_KEYS: Final = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath", "conditions": "type",
    "ownerReferences": "uid", "schedulingGates": "name", "webhooks": "name", "imagePullSecrets": "name", "rules": None, "tolerations": None,
}  # fmt: skip
_SET_BY_SERVER: Final = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "managedFields", "name", "namespace", "selfLink"}
)
_MISSING: Final = object()


class Refused(ValueError):
    """The patch does not fit the object."""


class Conflict(Exception):
    """Other managers own fields that the patch would change. ``fields``: (manager, path as text)."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__("conflict")
        self.fields = fields


def merge_patched(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    out = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            out.pop(name, None)
        else:
            out[name] = merge_patched(out.get(name), change)
    return out


def strategic_patched(value: Any, patch: Any, name: str = "") -> Any:
    """As a merge patch, but elements of lists with a key are merged by it; ``$patch: delete`` removes one."""
    if isinstance(patch, dict):
        out = dict(value) if isinstance(value, dict) else {}
        for field, change in patch.items():
            if change is None:
                out.pop(field, None)
            else:
                out[field] = strategic_patched(out.get(field), change, field)
        return out
    key = _KEYS.get(name)
    if not isinstance(patch, list) or key is None or not isinstance(value, list):
        return copy.deepcopy(patch)
    elements = {one[key]: one for one in value}
    for change in patch:
        if change.get("$patch") == "delete":
            elements.pop(change[key], None)
        else:
            elements[change[key]] = strategic_patched(elements.get(change[key]), change)
    return list(elements.values())


def json_patched(value: Any, patch: list[Json]) -> Any:
    """Raises Refused, also where a ``test`` fails."""
    out = {"": copy.deepcopy(value)}
    for step in patch:
        try:
            match step["op"]:
                case "add":
                    _put(out, step["path"], copy.deepcopy(step["value"]))
                case "remove":
                    _take(out, step["path"])
                case "replace":
                    _take(out, step["path"])
                    _put(out, step["path"], copy.deepcopy(step["value"]))
                case "test":
                    if _at(out, step["path"]) != step["value"]:
                        raise Refused(f"testing value {step['path']} failed: test failed")
                case "move" | "copy":
                    found = _take(out, step["from"]) if step["op"] == "move" else copy.deepcopy(_at(out, step["from"]))
                    _put(out, step["path"], found)
                case _:
                    raise Refused(f"unexpected kind: {step['op']}")
        except (KeyError, IndexError, ValueError, TypeError) as error:
            if isinstance(error, Refused):
                raise
            raise Refused(f"{step.get('op')} operation does not apply: doc is missing path: {step.get('path')}") from None
    return out[""]


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise Refused(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]


def _parent(document: Any, pointer: str) -> tuple[Any, Any]:
    """The container of the last step, and its key there."""
    steps = _steps(pointer)
    found = document
    for step in steps[:-1]:
        found = found[_index(step)] if isinstance(found, list) else found[step]
    last = steps[-1]
    return found, (last if not isinstance(found, list) or last == "-" else _index(last))


def _index(step: str) -> int:
    if not step.isdigit():
        raise Refused(f"{step!r} is no index")
    return int(step)


def _at(document: Any, pointer: str) -> Any:
    parent, key = _parent(document, pointer)
    return parent[key]


def _take(document: Any, pointer: str) -> Any:
    parent, key = _parent(document, pointer)
    return parent.pop(key)


def _put(document: Any, pointer: str, value: Any) -> None:
    parent, key = _parent(document, pointer)
    if not isinstance(parent, list):
        parent[key] = value
    elif key == "-":
        parent.append(value)
    elif key > len(parent):
        raise IndexError
    else:
        parent.insert(key, value)


# -- server-side apply -----------------------------------------------------------------------------------------------------------------


def applied(live: Json, wanted: Json, owners: Owners, manager: tuple[str, str, str], *, force: bool) -> tuple[Json, dict[Any, Any]]:
    """The object and its owners after ``manager`` has applied ``wanted``. Raises Conflict."""
    mine = frozenset(path for path, _ in _leaves(wanted))
    held = {one: paths for one, paths in owners.items() if one != manager}
    disputed = [
        (one, path) for one, paths in held.items() for path in mine & paths if _value(live, path) is not _MISSING and
        _value(live, path) != _value(wanted, path)
    ]  # fmt: skip
    if disputed and not force:
        raise Conflict([(one[0], _text(path)) for one, path in disputed])
    for one, path in disputed:
        held[one] = held[one] - {path}
    out = _merged(copy.deepcopy(live), wanted, "")
    for path in sorted(owners.get(manager, frozenset()) - mine, key=len, reverse=True):
        if not any(path[: len(other)] == other or other[: len(path)] == path for paths in (*held.values(), mine) for other in paths):
            _drop(out, path)
    return out, {**held, manager: mine}


def changed_by(old: Json, new: Json, owners: Owners, manager: tuple[str, str, str]) -> dict[Any, Any]:
    """Owners after ``manager`` has written ``new``: it owns what differs."""
    before = dict(_leaves(old))
    after = dict(_leaves(new))
    changed = frozenset(path for path, value in after.items() if before.get(path, _MISSING) != value)
    lost = changed | (before.keys() - after.keys())
    held = {one: paths - lost for one, paths in owners.items()}
    held[manager] = held.get(manager, frozenset()) | changed
    return {one: paths for one, paths in held.items() if paths}


def _leaves(value: Any, path: Path = (), name: str = "") -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for field, one in value.items():
            if (path == () and field in ("apiVersion", "kind")) or (path == ("metadata",) and field in _SET_BY_SERVER):
                continue
            yield from _leaves(one, (*path, field), field)
    elif _by_key(value, name):
        for one in value:
            yield from _leaves(one, (*path, (_KEYS[name], one[_KEYS[name]])))
    else:
        yield path, value


def _by_key(value: Any, name: str) -> bool:
    key = _KEYS.get(name)
    return key is not None and isinstance(value, list) and bool(value) and all(isinstance(one, dict) and key in one for one in value)


def _merged(live: Any, wanted: Any, name: str) -> Any:
    if isinstance(live, dict) and isinstance(wanted, dict):
        return {**live, **{field: _merged(live.get(field), value, field) for field, value in wanted.items()}}
    if _by_key(wanted, name) and _by_key(live, name):
        key = _KEYS[name]
        elements = {one[key]: one for one in live}
        for one in wanted:
            elements[one[key]] = _merged(elements.get(one[key]), one, "")
        return list(elements.values())
    return copy.deepcopy(wanted)


def _value(value: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, tuple):
            value = next((one for one in value if one.get(step[0]) == step[1]), _MISSING) if isinstance(value, list) else _MISSING
        else:
            value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
        if value is _MISSING:
            break
    return value


def _drop(value: Json, path: Path) -> None:
    """Remove the field, and what is empty then; of an element of a list, its key takes the whole element along."""
    if isinstance(path[-2] if len(path) > 1 else None, tuple) and path[-1] == path[-2][0]:
        path = path[:-1]
    parent = _value(value, path[:-1])
    if parent is _MISSING:
        return
    if isinstance(path[-1], tuple):
        key, wanted = path[-1]
        parent[:] = [one for one in parent if one.get(key) != wanted]
    else:
        parent.pop(path[-1], None)
    if not parent and len(path) > 1:
        _drop(value, path[:-1])


def _text(path: Path) -> str:
    return "".join(f'[{step[0]}="{step[1]}"]' if isinstance(step, tuple) else f".{step}" for step in path)
