"""Limits of this server, besides those of a request's fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagefleet_engine.api.parsing.reasoning import Reasoning
from pagefleet_engine.api.parsing.registry import Style


@dataclass(frozen=True)
class Limits:
    """Caps of this server; None means the model's own. `queued_tokens` are prompt tokens without an answer yet.

    `pin_tokens` are those of one pinned prompt, None for as many as all pins may have; `pin_seconds` how long a pin may last.
    """

    prompt_tokens: int | None
    output_tokens: int | None
    queued: int
    queued_tokens: int | None = None
    n: int = 16
    pin_tokens: int | None = None
    pin_seconds: int = 86400


@dataclass(frozen=True)
class Rules:
    """Features that requests may use on this server. `priorities`: whether its scheduler knows them.

    `sampling_defaults`: the values of sampling fields that a request does not name, where they are not those of
    core/sampling_fields.py.
    """

    priorities: bool = True
    request_templates: bool = False
    tool_style: Style = Style.HERMES
    reasoning: Reasoning = Reasoning.AUTO
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
