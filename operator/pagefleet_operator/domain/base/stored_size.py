"""The size of JSON as the API server stores it, and the limit of the part of a spec that a status remembers."""

from __future__ import annotations

import json

MAX_SNAPSHOT_BYTES = 48 << 10  # of one revision: three in use leave almost half of the status' 256 KiB for all else
MAX_MATCH_BYTES = 4 << 10  # of the labels that an alert must carry
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ESCAPED = "<>&\u2028\u2029"  # the API server writes each of these with six characters


def size(document: object) -> int:
    """The bytes of a JSON document in etcd."""
    text = _ENCODER.encode(document)
    return len(text.encode(errors="surrogatepass")) + 5 * sum(map(text.count, _ESCAPED))
