"""A fault of a model that a user can fix, with the field of the InferenceService to fix."""

from __future__ import annotations


class ModelError(Exception):
    """`field` is a spec path ("spec.model.source"); `message` states the fault and the allowed values."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


SOURCE = "spec.model.source"
