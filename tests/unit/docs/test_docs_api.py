"""Protects docs/api.md: its table of fields is what the parsers' tables say, and every route is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagefleet_engine.api.endpoints import openapi
from pagefleet_engine.api.parameters import others, pins
from pagefleet_engine.api.parameters.fields import Table
from pagefleet_engine.api.parameters.generation import CHAT, COMPLETION, NOT_SUPPORTED
from pagefleet_engine.api.protocols import message_request, response_request

PAGE = Path(__file__).resolve().parents[3] / "docs" / "api.md"
COLUMNS: Mapping[str, tuple[Table, Mapping[str, tuple[Any, ...]]]] = {
    "completions": (COMPLETION, NOT_SUPPORTED),
    "chat": (CHAT, NOT_SUPPORTED),
    "responses": (response_request.TABLE, response_request.NOT_SUPPORTED),
    "messages": (message_request.TABLE, message_request.NOT_SUPPORTED),
    "pin": ({**pins.PIN_PROMPT, **pins.PIN_CHAT}, {}),
    "embeddings": (others.EMBEDDING, others.EMBEDDING_NOT_SUPPORTED),
    "rerank": (others.RERANK, others.SCORE_NOT_SUPPORTED),
    "score": (others.SCORE, others.SCORE_NOT_SUPPORTED),
}


def cell(name: str, table: Table, refused: Mapping[str, tuple[Any, ...]]) -> str:
    if name in table:
        return "yes" if table[name].effect else "ignored"
    return "refused" if name in refused else ""


def rows() -> list[str]:
    names = sorted({name for tables in COLUMNS.values() for table in tables for name in table})
    head = ["| field | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    return head + [
        f"| `{name}` | " + " | ".join(cell(name, *tables) for tables in COLUMNS.values()) + " |" for name in names
    ]


def test_the_table_of_fields_is_that_of_the_parsers() -> None:
    table = PAGE.read_text().split("## Fields")[1]
    written = [re.sub(r" +", " ", line) for line in table.splitlines() if line.startswith("|")]
    assert written == [re.sub(r" +", " ", row) for row in rows()], "\n".join(rows())


def test_every_inference_route_is_named() -> None:
    text = PAGE.read_text()
    for path in openapi.document(["m"])["paths"]:
        if path.startswith("/v1/") and not path.startswith(("/v1/models", "/v1/responses/")):
            assert f"`{path}`" in text, path
