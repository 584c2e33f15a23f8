"""The REST reference, from the OpenAPI documents that the services serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, cast

from docs.generate.text import sentence, table

__all__ = ["billing_page", "controller_page"]

_METHODS: Final = ("get", "post", "put", "patch", "delete")
_HEAD: Final = """
Base address: {address}. Send an API key as `Authorization: Bearer wk_...`; on a service that listens on loopback only, none is needed.
Errors are problem documents (RFC 9457); the [error reference](errors.md) lists their types. The running service shows this interface with
Swagger UI at `/schema/swagger` of the controller; its OpenAPI document is at `/schema/openapi.json`.
"""


def controller_page() -> str:
    """REST of the controller."""
    from services.controller.app import make_app

    document = make_app(cast(Any, None), cast(Any, None)).openapi_schema.to_schema()
    return "# REST reference: controller\n" + _HEAD.format(address="`WOOLY_HTTP` of the controller, port 8080 by default") + _page(document)


def billing_page() -> str:
    """REST of billing."""
    from services.billing.routes import make_app

    document = make_app(cast(Any, SimpleNamespace(access=None))).openapi_schema.to_schema()
    return "# REST reference: billing\n" + _HEAD.format(address="`WOOLY_HTTP` of billing, port 8082 by default") + _page(document)


def _page(document: dict[str, Any]) -> str:
    paths = document["paths"].items()
    return "\n".join(_operation(document, method, path, item[method]) for path, item in paths for method in _METHODS if method in item)


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [
        f"\n## {method.upper()} {path}\n",
        sentence(operation.get("summary", "")),
        "",
        operation.get("description", "").replace("``", "`"),
        "",
    ]
    rows = []
    for parameter in operation.get("parameters", []):
        what = sentence(parameter.get("description") or "")
        required = "yes" if parameter.get("required") else "no"
        rows.append((f"`{parameter['name']}`", parameter["in"], _type(document, parameter["schema"]), required, what))
    if rows:
        parts += [table(("Parameter", "In", "Type", "Required", "Meaning"), rows)]
    for content, body in (operation.get("requestBody") or {}).get("content", {}).items():
        parts += [f"Body (`{content}`):\n", _fields(document, body["schema"])]
    answers = [
        (status, ", ".join(f"`{kind}`" for kind in answer.get("content", {})) or "none", sentence(answer.get("description", "")))
        for status, answer in operation["responses"].items()
    ]
    return "\n".join([*parts, table(("Status", "Content", "Meaning"), answers)])


def _resolve(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]) if "$ref" in schema else schema


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> str:
    schema = _resolve(document, schema)
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", _type(document, field), "yes" if name in required else "no", sentence(field.get("description", "")))
        for name, field in schema.get("properties", {}).items()
    ]
    return table(("Field", "Type", "Required", "Meaning"), rows) if rows else f"{_type(document, schema)}\n"


def _type(document: dict[str, Any], schema: dict[str, Any]) -> str:
    schema = _resolve(document, schema)
    if "oneOf" in schema:
        return " or ".join(dict.fromkeys(_type(document, one) for one in schema["oneOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    kind = schema.get("type", "any")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if text == "array":
        text = f"array of {_type(document, schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        text += f", {low:.0f} to {high:.0f}"
    if "maxLength" in schema:
        text += f", at most {schema['maxLength']} characters"
    return text
