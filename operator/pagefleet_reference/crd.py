"""docs/reference/crd.md: every field of an InferenceService, from the CRD's own schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_operator.crd import definition
from pagefleet_operator.domain.spec.rules.check import RULES
from pagefleet_operator.domain.spec.rules.nodes import NAME_RULES
from pagefleet_reference.markdown import cell, code, table

Schema = Mapping[str, Any]
HEAD = ("field", "type", "default", "allowed", "what it is")
INTRODUCTION = """\
# Fields of an InferenceService

`apiVersion: pagefleet.io/v1alpha1`, `kind: InferenceService`, short name `isvc`. Made from `crds/inferenceservices.yaml`'s
source. **Bold** fields are required where their parent is given. A dash for a default means that nothing is filled in: what
then happens is said in the description. kubectl from 1.25 on refuses unknown fields, and API
servers drop those that other clients send; the operator refuses fields without
behaviour. `[]` stands for each entry of a list.
"""


def page() -> str:
    root = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts = [INTRODUCTION]
    for name, schema in root["spec"]["properties"].items():
        rows = [_row(f"{name}", schema, name in root["spec"].get("required", ())), *_rows(name, schema)]
        parts.append(f"## spec.{name}\n\n{cell(schema['description'])}\n\n{table(HEAD, rows)}")
    rules = [(code(rule.field), cell(rule.message)) for rule in (*RULES, *NAME_RULES)]
    parts.append(
        "## Rules across fields\n\nHeld by the API server where it knows CEL (1.25 and newer), and by the operator"
        f" everywhere.\n\n{table(('field', 'rule'), rules)}"
    )
    parts.append(
        f"## status\n\n{cell(root['status']['description'])}\n\n{table(HEAD, _rows('status', root['status']))}"
    )
    return "\n".join(parts)


def _rows(path: str, schema: Schema) -> Iterator[tuple[str, ...]]:
    """Rows of everything below `schema`, depth first, in the schema's order."""
    below = schema.get("items", schema) if schema.get("type") == "array" else schema
    path = path + "[]" if schema.get("type") == "array" else path
    for name, field in below.get("properties", {}).items():
        yield _row(f"{path}.{name}", field, name in below.get("required", ()))
        yield from _rows(f"{path}.{name}", field)


def _row(path: str, schema: Schema, required: bool) -> tuple[str, ...]:
    shown = f"**{code(path)}**" if required else code(path)
    default = code(json.dumps(schema["default"])) if "default" in schema else "-"
    return shown, _type(schema), default, _allowed(schema), cell(schema.get("description", ""))


def _type(schema: Schema) -> str:
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {schema['items'].get('type', 'any')}"
    if kind == "object" and "additionalProperties" in schema:
        return f"map of {schema['additionalProperties'].get('type', 'any')}"
    return kind


def _allowed(schema: Schema) -> str:
    limits = []
    if "enum" in schema:
        limits.append(", ".join(code(str(value)) for value in schema["enum"]))
    if "minimum" in schema or "maximum" in schema:
        limits.append(f"{_number(schema.get('minimum'))} to {_number(schema.get('maximum'))}")
    for key, text in (
        ("minItems", "at least {} entries"), ("maxItems", "at most {} entries"), ("maxProperties", "at most {} keys"),
        ("maxLength", "at most {} characters"),
    ):  # fmt: skip
        if key in schema:
            limits.append(text.format(_number(schema[key])))
    if "pattern" in schema:
        limits.append(code(schema["pattern"]))
    if "format" in schema:
        limits.append(str(schema["format"]))
    if isinstance(inner := schema.get("additionalProperties"), Mapping) and "maxLength" in inner:
        limits.append(f"values of at most {_number(inner['maxLength'])} characters")
    return "; ".join(limits) or "-"


def _number(value: float | None) -> str:
    if value is None:
        return "any"
    return f"{value:,}" if isinstance(value, int) and value < 1 << 31 else f"{value:g}"
