"""Turns a model URI into a path on this machine, and reads JSON files there. Never imports the package that a python:// URI names."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError

ALLOWED = "python://<package>/<file.gguf>, file:///<folder or .gguf file>, hf://<org>/<name>[@<revision>]"

# Files of a hub repository to leave out; Mistral's and Meta's hold the weights a second time in their own layouts.
WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
UNWANTED = ["*consolidated*", "original/*", "metal/*"]

GENERATION_CONFIG = "generation_config.json"


class Format(StrEnum):
    GGUF = "gguf"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True)
class ModelSource:
    """A GGUF file, or a folder with config.json, a tokenizer's file and *.safetensors."""

    path: Path
    format: Format


def resolve(uri: str) -> ModelSource:
    """Return the model's path. Raises ModelError (field spec.model.source) when it does not exist."""
    scheme, separator, rest = uri.partition("://")
    if not separator or not rest:
        raise ModelError(SOURCE, f"{uri!r} is not a model URI; allowed: {ALLOWED}")
    match scheme:
        case "python":
            path = _in_package(uri, rest)
        case "file":
            path = Path("/" + rest.lstrip("/"))
        case "hf":
            path = _from_hub(rest)
        case _:
            raise ModelError(SOURCE, f"{uri!r} has the unknown scheme {scheme!r}; allowed: {ALLOWED}")
    return _inspect(uri, path)


def read_json(path: Path) -> Any:
    """Return a JSON file's value, None where there is no file. Raises ModelError."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(SOURCE, f"{path.name} of {path.parent.name} cannot be read: {error}") from error


def generation_config(folder: Path) -> dict[str, Any]:
    """Return what the model's makers say about generating text; empty where there is no file. Raises ModelError."""
    document = read_json(folder / GENERATION_CONFIG)
    if document is not None and not isinstance(document, dict):
        raise ModelError(SOURCE, f"{GENERATION_CONFIG} of {folder.name} must be a JSON object")
    return document or {}


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json's entries. Older tools name the special tokens in special_tokens_map.json, which goes before, as
    in transformers. Raises ModelError."""
    settings, apart = (read_json(folder / name) for name in ("tokenizer_config.json", "special_tokens_map.json"))
    settings = settings if isinstance(settings, dict) else {}
    if not isinstance(apart, dict) or "added_tokens_decoder" in settings:
        return settings
    return {**settings, **apart}


def _in_package(uri: str, rest: str) -> Path:
    package, separator, name = rest.partition("/")
    if not separator or not name or ".." in Path(name).parts:
        raise ModelError(SOURCE, f"{uri!r} must be python://<package>/<file>")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(SOURCE, f"{uri!r}: the Python package {package!r} is not installed in this image")
    return Path(next(iter(spec.submodule_search_locations))) / name


def _from_hub(rest: str) -> Path:
    name, _, revision = rest.partition("@")
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError:
        raise ModelError(
            SOURCE, f"hf://{rest}: this image holds no huggingface_hub; use file://, pvc:// or python://"
        ) from None
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(SOURCE, f"hf://{rest} cannot be fetched: {error}") from error


def _inspect(uri: str, path: Path) -> ModelSource:
    if path.is_file() and path.suffix == ".gguf":
        return ModelSource(path, Format.GGUF)
    if path.is_dir():
        if not (path / "config.json").is_file() or not list(path.glob("*.safetensors")):
            raise ModelError(SOURCE, f"{uri!r}: {path} holds no config.json with *.safetensors beside it")
        return ModelSource(path, Format.SAFETENSORS)
    if path.exists():
        raise ModelError(SOURCE, f"{uri!r}: {path.name} is neither a .gguf file nor a folder with safetensors")
    siblings = sorted(other.name for other in path.parent.glob("*.gguf")) if path.parent.is_dir() else []
    hint = f"; beside it there is {', '.join(siblings)}" if siblings else ""
    raise ModelError(SOURCE, f"{uri!r}: there is no {path.name} in {path.parent}{hint}")
