"""The names that requests may put in `model`: those of the served model, and of LoRA adapters loaded on top of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagefleet_engine.api.base.errors import ApiError, invalid


@dataclass(frozen=True)
class Adapter:
    name: str
    path: str
    created: int


class Models:
    """`names` are aliases of one model; the first is the one that metrics carry."""

    def __init__(self, names: Sequence[str], adapters: Sequence[tuple[str, str]]) -> None:
        self.names = tuple(names)
        self._created = int(time.time())
        self._adapters = {name: Adapter(name, path, self._created) for name, path in adapters}

    def adapter(self, model: str) -> str | None:
        """The adapter that a request's `model` means, None for the model itself. Raises ApiError (404)."""
        if model in self.names:
            return None
        if model in self._adapters:
            return model
        here = ", ".join(repr(name) for name in [*self.names, *sorted(self._adapters)][:8])
        raise ApiError(
            404,
            f"the model {model[:200]!r} does not exist; this server has {here}",
            param="model",
            code="model_not_found",
        )

    def check_new(self, name: str) -> None:
        """Raises ApiError (400) when an adapter cannot be called so."""
        if name in self.names:
            raise invalid("lora_name", f"lora_name {name!r} is the served model's name")
        if name in self._adapters:
            raise invalid("lora_name", f"the adapter {name!r} is loaded already", "adapter_exists")

    def check_loaded(self, name: str) -> None:
        """Raises ApiError (404)."""
        if name not in self._adapters:
            raise ApiError(404, f"no adapter {name!r} is loaded", param="lora_name", code="adapter_not_found")

    def add(self, name: str, path: str) -> dict[str, Any]:
        self._adapters[name] = Adapter(name, path, int(time.time()))
        return self._of_adapter(self._adapters[name], None)

    def remove(self, name: str) -> None:
        self._adapters.pop(name, None)

    def documents(self, max_model_len: int | None) -> list[dict[str, Any]]:
        """https://platform.openai.com/docs/api-reference/models/object, with vLLM's root, parent and max_model_len."""
        served = [self._document(name, self.names[0], None, self._created, max_model_len) for name in self.names]
        return served + [self._of_adapter(adapter, max_model_len) for adapter in self._adapters.values()]

    def document(self, name: str, max_model_len: int | None) -> dict[str, Any]:
        """Raises ApiError (404)."""
        self.adapter(name)
        return next(document for document in self.documents(max_model_len) if document["id"] == name)

    def _of_adapter(self, adapter: Adapter, max_model_len: int | None) -> dict[str, Any]:
        return self._document(adapter.name, adapter.path, self.names[0], adapter.created, max_model_len)

    @staticmethod
    def _document(name: str, root: str, parent: str | None, created: int, max_model_len: int | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "pagefleet",
            "root": root,
            "parent": parent,
            "max_model_len": max_model_len,
        }
