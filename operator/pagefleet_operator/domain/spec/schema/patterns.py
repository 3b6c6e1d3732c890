"""The patterns of texts in `.spec`, each with words for the people whose text does not match it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pagefleet_contract.engine_metrics import SELECTOR
from pagefleet_contract.engine_options import ADAPTER_NAME
from pagefleet_contract.names import OBJECT_NAME
from pagefleet_contract.quantity import CONFIDENCE, DURATION, PART, PERCENT, QUANTITY, SHARE, TIME_LIMIT

# The forms of a model's source, by its scheme.
SOURCES: Mapping[str, str] = {
    "hf": "hf://org/name[@revision]",
    "s3": "s3://bucket[/prefix]",
    "gs": "gs://bucket[/prefix]",
    "az": "az://account/container[/prefix]",
    "pvc": "pvc://claim/path",
    "oci": "oci://registry/name@sha256:DIGEST[/path]",
    "file": "file:///path",
    "python": "python://package/file.gguf",
}
*_FIRST, _LAST = SOURCES.values()
SOURCE_FORMS = f"{', '.join(_FIRST)} or {_LAST}"

URI = (
    r"^((hf|file|python)://.+|(s3|gs)://[a-z0-9][-_a-z0-9.]*(/.*)?|az://[a-z0-9]+/[a-z0-9$][-a-z0-9]*(/.*)?|pvc://[a-z0-9][-a-z0-9.]*(/.*)?"
    r"|oci://[a-z0-9][-A-Za-z0-9._:/]*@sha256:[0-9a-f]{64}(/.*)?)$"
)
LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"  # of DNS
OBJECT_KEY = r"^[-._a-zA-Z0-9]+$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
# Of a label or annotation: an optional DNS subdomain of at most 252 and a slash, then a name of at most 63.
LABEL_NAME = r"^([a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
RESOURCE_NAME = r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$"
ADAPTER = f"^{ADAPTER_NAME}$"
SERVED_NAME = r"^[A-Za-z0-9][-A-Za-z0-9._/:@+]*$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
PATH = r"^/[A-Za-z0-9._~/-]*$"
GATE_NAME = r"^[A-Za-z][A-Za-z0-9_-]*$"
# A histogram without _bucket, and matchers; $namespace, $service and $revision are filled in.
HISTOGRAM = r"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}\[\]]*\})?$"
STICKY_BY = r"^header/[A-Za-z0-9-]+$"
HEADER_NAME = r"^[A-Za-z0-9-]+$"
HOST_NAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
KIND = r"^[A-Z][A-Za-z0-9]*$"
DAYS = r"^([1-9]|[1-8][0-9]|90)d$"
WEB_ADDRESS = r"^https?://[^\s\"<>]+$"

# What a text must be, after "must be".
ALLOWED: Mapping[str, str] = {
    DURATION: "a duration such as 90s, 1h30m or 3d",
    TIME_LIMIT: "a duration such as 90s, 5m or 1h30m",
    PERCENT: "a percentage such as 15%",
    SHARE: "a percentage from 0% to 100%",
    PART: "a percentage from 0% to below 100%",
    CONFIDENCE: "a percentage from 50% to 99.999%, with at most three decimals: at 100% no canary is ever rolled back",
    QUANTITY: "a quantity such as 500m, 2 or 4Gi",
    URI: SOURCE_FORMS,
    OBJECT_NAME: "an object's name: lower-case letters, digits, - and ., with a letter or digit at both ends",
    LABEL: "a name of lower-case letters, digits and -, at most 63, with a letter or digit at both ends",
    OBJECT_KEY: "a key: letters, digits, -, _ and .",
    LABEL_VALUE: "a label's value: letters, digits, -, _ and ., with a letter or digit at both ends, or empty",
    LABEL_NAME: "a label's name such as topology.kubernetes.io/zone",
    RESOURCE_NAME: "an extended resource such as nvidia.com/gpu",
    ADAPTER: "a name of letters, digits, ., _, / and -, at most 128, with a letter or digit first",
    SERVED_NAME: "a name of letters, digits, ., _, /, :, @, + and -, with a letter or digit first",
    VARIABLE: "an environment variable's name: letters, digits and _, no digit first",
    PATH: "a path such as /health: letters, digits, ., _, ~, - and /",
    SELECTOR: 'NAME, NAME{label="value"} or NAME{label} of a metric',
    GATE_NAME: "a name of letters, digits, _ and -, with a letter first",
    HISTOGRAM: 'a histogram\'s name without _bucket, with matchers where needed: NAME{label="value"}',
    STICKY_BY: "header/NAME, with the name of a header",
    HEADER_NAME: "a header name: letters, digits and -",
    HOST_NAME: "a host name such as models.example.com or *.example.com",
    KIND: "a kind such as Gateway",
    DAYS: "whole days from 1d to 90d, such as 30d",
    WEB_ADDRESS: "an address that begins with http:// or https://",
}


def mismatch(text: str, pattern: str, shown: str) -> str:
    """The message for a text that does not match; `shown` is the text as it may be printed."""
    scheme, separator, _ = text.partition("://")
    if pattern == URI and separator and scheme not in SOURCES and re.fullmatch(r"[A-Za-z0-9+.-]{1,20}", scheme):
        *first, last = (f"{name}://" for name in SOURCES)
        return f"unsupported scheme {scheme}://; use {', '.join(first)} or {last}"
    return f"must be {ALLOWED.get(pattern, f'a text that matches {pattern}')}; not {shown}"
