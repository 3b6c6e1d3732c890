"""The size of JSON as the API server stores it, and the limit of the part of a spec that a status remembers."""

from __future__ import annotations

import json

from pagefleet_operator.domain.base.json_text import json_text

MAX_SNAPSHOT_BYTES = 48 << 10  # of one revision: three in use leave almost half of the status' 256 KiB for all else
MAX_MATCH_BYTES = 4 << 10  # of the labels that an alert must carry
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# The API server writes each of these with six characters; the first three are ASCII.
_ESCAPED = [mark.encode() for mark in "<>&\u2028\u2029"]


def size(document: object) -> int:
    """The bytes of a JSON document in etcd."""
    text = json_text(document)
    if text is None:  # half of a surrogate pair, or a number that is too long
        text = _ENCODER.encode(document).encode(errors="surrogatepass")
    return len(text) + 5 * sum(map(text.count, _ESCAPED[:3] if text.isascii() else _ESCAPED))
