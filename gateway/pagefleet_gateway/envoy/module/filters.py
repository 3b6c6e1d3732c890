"""The configuration of the gateway's own filters. Pure: builds dicts."""

from __future__ import annotations

from pathlib import Path

from pagefleet_gateway.envoy.module.library import module_name

HTTP_FILTERS = "type.googleapis.com/envoy.extensions.filters.http."


def arrival_filter() -> dict[str, object]:
    """Build the filter on the clients' side. It comes before every filter that waits for the request's body."""
    return _filter("arrival", "")


def engine_filters(pipe: Path) -> list[dict[str, object]]:
    """Build the filters of an attempt at an engine. Each answer's first token goes into `pipe` (first_tokens.py)."""
    codec = {"@type": f"{HTTP_FILTERS}upstream_codec.v3.UpstreamCodec"}  # must be the last one
    return [_filter("first-token", str(pipe)), {"name": "envoy.filters.http.upstream_codec", "typed_config": codec}]


def _filter(name: str, config: str) -> dict[str, object]:
    return {
        "name": f"pagefleet.{name}",
        "typed_config": {
            "@type": f"{HTTP_FILTERS}dynamic_modules.v3.DynamicModuleFilter",
            "dynamic_module_config": {"name": module_name()},
            "filter_name": name,
            "filter_config": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": config},
        },
    }
