"""The prompts that clients have pinned, each client its own, until their time is over. Pure: the engine holds the pages."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from pagefleet_engine.core.blocks import page_hashes, root_hash
from pagefleet_engine.core.requests import EngineRequest


@dataclass(frozen=True)
class PinnedPrompt:
    """`until`: seconds of the monotonic clock. `model`: the name by which the client asked for it."""

    id: str
    model: str
    tokens: int
    pages: int
    until: float


class PinnedPrompts:
    """`owner`: who may see a pin, a digest of the API key."""

    def __init__(self) -> None:
        self._of: dict[tuple[bytes, str], PinnedPrompt] = {}

    def add(self, owner: bytes, pin: PinnedPrompt, now: float) -> PinnedPrompt:
        """Return the pin as it is now: one that is here already lasts until the later time."""
        self._of = {key: one for key, one in self._of.items() if one.until > now}
        before = self._of.get((owner, pin.id), pin)
        made = self._of[owner, pin.id] = replace(before, until=max(before.until, pin.until))
        return made

    def list_of(self, owner: bytes, now: float) -> list[PinnedPrompt]:
        return [pin for (who, _), pin in self._of.items() if who == owner and pin.until > now]

    def get(self, owner: bytes, id: str, now: float) -> PinnedPrompt | None:
        pin = self._of.get((owner, id))
        return pin if pin is not None and pin.until > now else None

    def remove(self, owner: bytes, id: str) -> None:
        self._of.pop((owner, id), None)

    def remove_model(self, model: str) -> list[str]:
        """Forget the pins of an adapter that is no longer loaded. Return their ids."""
        gone = {key: pin for key, pin in self._of.items() if pin.model == model}
        self._of = {key: pin for key, pin in self._of.items() if key not in gone}
        return [pin.id for pin in gone.values()]

    def clear(self) -> None:
        self._of.clear()


def pin_id(owner: bytes, request: EngineRequest, page_size: int) -> str:
    """Return the name of one client's pin of a prompt: the same for the same full pages."""
    root = root_hash(request.cache_salt, request.adapter or "")
    last = page_hashes(request.prompt_token_ids, page_size, root)[-1]
    return f"pin_{hashlib.blake2b(owner + last, digest_size=12).hexdigest()}"
