"""GPT-2's letters for bytes, in which byte-level BPE writes its tokens. No torch."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1)
def byte_values() -> dict[str, int]:
    """GPT-2's letters for bytes: those that print stand for themselves, the others follow from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printing]
    return {chr(value): value for value in printing} | {chr(256 + n): value for n, value in enumerate(others)}


@lru_cache(maxsize=1)
def _letters() -> dict[int, str]:
    return {value: letter for letter, value in byte_values().items()}


def letters(data: bytes) -> str:
    table = _letters()
    return "".join(table[value] for value in data)
