"""Prints, as JSON, the flags of the argument parser of a released engine: `released_parsers.py vllm|sglang FOLDER`, with the
package's sources in FOLDER. It runs as a program of its own: the packages change the process that imports them.

A module that the engine imports and that is not installed here (CUDA, codecs, ZeroMQ) is replaced by one that has every
name, so that the parser is built by the engine's own code. Nothing else is replaced.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from pydantic_core import core_schema

PLATFORMS = ("libtpu", "amdsmi")  # whose absence says that a platform is not this machine's


class AnyName(MagicMock):
    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> object:
        return core_schema.any_schema()


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds last what nothing else finds, for imports by the engine itself only: libraries notice what they lack."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in (self._package, *PLATFORMS) or self._importer() != self._package:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    @staticmethod
    def _importer() -> str:
        frame = sys._getframe(2)
        while frame.f_back and str(frame.f_globals.get("__name__", "")).startswith(("importlib", "_frozen")):
            frame = frame.f_back
        return str(frame.f_globals.get("__name__", "")).partition(".")[0]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        module = AnyName(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, _: ModuleType) -> None:
        return


def vllm() -> tuple[argparse.ArgumentParser, Mapping[str, Iterable[str]], Mapping[str, Iterable[str]]]:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.tool_parsers import _TOOL_PARSERS_TO_REGISTER
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    late = {"--quantization": QUANTIZATION_METHODS, "--tool-call-parser": _TOOL_PARSERS_TO_REGISTER}
    words = {"KV connectors": KVConnectorFactory._registry}
    return make_arg_parser(FlexibleArgumentParser()), late, words


def sglang() -> tuple[argparse.ArgumentParser, Mapping[str, Iterable[str]], Mapping[str, Iterable[str]]]:
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser, {"--speculative-algorithm": [one.name for one in SpeculativeAlgorithm if one.name != "NONE"]}, {}


def takes(action: argparse.Action) -> str | list[str]:
    if action.nargs == 0:
        return "nothing"
    if action.choices:
        return sorted(map(str, action.choices))
    return "values" if action.nargs in ("*", "+") or isinstance(action.nargs, int) else "value"


def main() -> None:
    name, folder = sys.argv[1:]
    sys.path.insert(0, folder)
    sys.meta_path.append(Absent(name))
    engines: dict[str, Callable[[], Any]] = {"vllm": vllm, "sglang": sglang}
    parser, late, words = engines[name]()
    flags = {flag: takes(action) for action in parser._actions for flag in action.option_strings if flag[:2] == "--"}
    flags |= {flag: sorted(values) for flag, values in late.items()}
    found = {"flags": dict(sorted(flags.items())), **{key: sorted(values) for key, values in words.items()}}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
