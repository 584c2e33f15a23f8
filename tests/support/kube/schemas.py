"""Structural schemas of custom resources: defaults, pruning, and errors in the words of the API server. Pure."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema

__all__ = ["completed", "errors_of"]

Json = dict[str, Any]
_META = ("apiVersion", "kind", "metadata")


def completed(value: Any, schema: Json, *, top: bool = True) -> Any:
    """``value`` with its defaults, and without fields that the schema does not name."""
    if isinstance(value, list):
        return [completed(one, schema.get("items", {}), top=False) for one in value]
    if not isinstance(value, dict):
        return value
    named, others = schema.get("properties", {}), schema.get("additionalProperties")
    out: Json = {}
    for field, one in value.items():
        if top and field in _META:
            out[field] = one
        elif field in named:
            out[field] = completed(one, named[field], top=False)
        elif isinstance(others, dict):
            out[field] = completed(one, others, top=False)
        elif others or schema.get("x-kubernetes-preserve-unknown-fields"):
            out[field] = one
    for field, one in named.items():
        if field not in out and "default" in one:
            out[field] = completed(copy.deepcopy(one["default"]), one, top=False)
    return out


def errors_of(value: Any, schema: Json) -> list[str]:
    """One for each field that the schema does not allow: its path, what is wrong, what is expected."""
    found = jsonschema.Draft202012Validator(_plain(schema)).iter_errors(value)
    return [_said(error) for error in sorted(found, key=lambda error: [str(step) for step in error.absolute_path])]


def _plain(schema: Any) -> Any:
    """JSON schema for what OpenAPI 3.0 writes in its own way."""
    if not isinstance(schema, dict):
        return schema
    out = {
        key: {name: _plain(one) for name, one in value.items()} if key == "properties" else _plain(value) for key, value in schema.items()
    }
    if out.pop("nullable", False):
        out["type"] = [out["type"], "null"]
    if out.pop("x-kubernetes-int-or-string", False):
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    for limit in ("Minimum", "Maximum"):
        if out.get(f"exclusive{limit}") is True:
            out[f"exclusive{limit}"] = out.pop(limit.lower())
    return out


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null"}


def _said(error: jsonschema.ValidationError) -> str:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path).lstrip(".")
    value, limit = error.instance, error.validator_value
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    match error.validator:
        case "required":
            missing = next(name for name in limit if name not in value)
            return f"{path}.{missing}: Required value".lstrip(".")
        case "enum":
            supported = ", ".join(f'"{one}"' for one in limit)
            return f"{path}: Unsupported value: {shown}: supported values: {supported}"
        case "type":
            kind = _TYPES[type(value)]
            return f'{path}: Invalid value: "{kind}": {path} in body must be of type {limit}: "{kind}"'
        case "minimum" | "maximum":
            side = "greater" if error.validator == "minimum" else "less"
            return f"{path}: Invalid value: {shown}: {path} in body should be {side} than or equal to {limit}"
        case "pattern":
            return f"{path}: Invalid value: {shown}: {path} in body should match '{limit}'"
        case _:
            return f"{path}: Invalid value: {shown}: {error.message}"
