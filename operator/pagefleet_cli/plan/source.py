"""Finds a model's sizes on this machine: a folder, a config.json, a GGUF file, or the Hugging Face cache.

Fetches nothing and reads no weights: headers and config.json only.
"""

from __future__ import annotations

import importlib.util
import json
import os
from math import prod
from pathlib import Path
from typing import Any

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.plan.shape import PERIODS, Shape, checked, counted, from_config, periodic

ALLOWED = (
    "a folder with config.json, a config.json, a .gguf file, hf://org/name[@revision] or python://package/file.gguf"
)
# The weights of a group of compressed-tensors, by their bits and type.
GROUPS = {(8, "float"): "fp8", (8, "int"): "int8", (4, "int"): "awq"}


def read(source: str) -> tuple[Shape, str | None]:
    """The shape, and how the files hold the linear layers: one of memory.LINEAR, None when that is not known. Raises CommandError."""
    path = _path(source)
    if path.is_file() and path.suffix == ".gguf":
        return _gguf(path), None
    config = path / "config.json" if path.is_dir() else path
    try:
        document: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
        shape, held = from_config(document, source.removeprefix("hf://"), _stored(config.parent)), precision(document)
    except (OSError, ValueError, TypeError, AttributeError, ArithmeticError, LookupError) as error:
        raise CommandError(f"{source}: {config.name} cannot be read ({error}); allowed: {ALLOWED}") from error
    return shape, held


def precision(document: dict[str, Any]) -> str | None:
    """How a checkpoint holds its linear layers, by config.json: one of memory.LINEAR, None when that is not known."""
    method = str((document.get("quantization_config") or {}).get("quant_method", ""))
    bits = (document.get("quantization_config") or {}).get("bits", 4)
    match method:
        case "awq" | "gptq" if bits == 4:
            return "awq"
        case "fp8" | "fbgemm_fp8":
            return "fp8"
        case "compressed-tensors":
            groups = [one["weights"] for one in document["quantization_config"].get("config_groups", {}).values()]
            kinds = {(one.get("num_bits"), one.get("type")) for one in groups}
            return GROUPS.get(kinds.pop()) if len(kinds) == 1 else None
        case "":
            kind = document.get("dtype") or document.get("torch_dtype") or "bfloat16"
            return "float32" if kind == "float32" else "bf16"
        case _:
            return None


def _path(source: str) -> Path:
    scheme, separator, rest = source.partition("://")
    if not separator:
        path = Path(source).expanduser()
    elif scheme == "file":
        path = Path("/" + rest.lstrip("/"))
    elif scheme == "hf":
        path = _cached(rest)
    elif scheme == "python":
        package, _, name = rest.partition("/")
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise CommandError(f"{source}: the package {package!r} is not installed on this machine")
        path = Path(next(iter(spec.submodule_search_locations))) / name
    else:
        raise CommandError(f"{source!r} is not supported; allowed: {ALLOWED}")
    if not path.exists():
        raise CommandError(f"{source}: {path} does not exist; allowed: {ALLOWED}")
    return path


def _cached(rest: str) -> Path:
    """The snapshot in the Hugging Face cache."""
    name, _, revision = rest.partition("@")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = hub / f"models--{name.replace('/', '--')}"
    reference = folder / "refs" / (revision or "main")
    snapshot = folder / "snapshots" / (reference.read_text().strip() if reference.is_file() else revision or "main")
    if not (snapshot / "config.json").is_file():
        raise CommandError(
            f"hf://{rest} is not in the cache {hub}; only its config.json is needed: "
            f"hf download {name} config.json, or give the sizes (--layers --heads --kv-heads ...)"
        )
    return snapshot


def _stored(folder: Path) -> int | None:
    """Bytes of the weights by the index of the shards, else by the files; None when there are none."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        total = json.loads(index.read_text(encoding="utf-8")).get("metadata", {}).get("total_size")
        if total:
            return int(total)
    # As is fetched: consolidated.safetensors is the same weights a second time.
    files = [path for path in folder.glob("*.safetensors") if "consolidated" not in path.name]
    return sum(path.stat().st_size for path in files or folder.glob("*.safetensors")) or None


def _gguf(path: Path) -> Shape:
    from pagefleet_engine.model.checkpoint.errors import ModelError
    from pagefleet_engine.model.checkpoint.gguf_metadata import Header

    try:
        header = Header(path)
        kind = header.field("general.architecture")

        def need(name: str) -> int:
            value = header.field(f"{kind}.{name}")
            if not isinstance(value, int):
                raise CommandError(f"{path.name}: its {kind}.{name} is {value!r}, not a number")
            return value

        layers, heads, hidden = counted(need("block_count")), need("attention.head_count"), need("embedding_length")
        kv_heads, window = (
            header.field(f"{kind}.attention.head_count_kv"),
            header.field(f"{kind}.attention.sliding_window"),
        )
        head_dim = header.field(f"{kind}.attention.key_length") or hidden // heads
        sizes = {name: prod(info.shape) for name, info in header.tensors.items()}
    except ModelError as error:
        raise CommandError(str(error)) from error
    linear = sum(size for name, size in sizes.items() if name.startswith("blk.") and "norm" not in name)
    experts, chosen = header.field(f"{kind}.expert_count") or 0, header.field(f"{kind}.expert_used_count") or 0
    in_experts = sum(size for name, size in sizes.items() if "_exps." in name)
    family = str(kind).replace("-", "_")
    warnings = () if kv_heads else (f"{path.name} has no head_count_kv: {heads}, the number of query heads, is used",)
    return checked(
        Shape(
            name=path.name,
            layers=layers,
            heads=heads,
            kv_heads=int(kv_heads or heads),
            head_dim=int(head_dim),
            linear=linear,
            others=sum(sizes.values()) - linear,
            active=linear - (in_experts * (experts - chosen) // experts if experts else 0),
            windows=periodic(int(window), layers, PERIODS.get(family, 0)) if window else (None,) * layers,
            experts=experts,
            experts_per_token=chosen,
            stored=path.stat().st_size,
            longest=need("context_length"),
            warnings=warnings,
        )
    )
