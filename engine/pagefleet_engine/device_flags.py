"""The command line's flags of devices: what each is by default, and which go together. No torch."""

from __future__ import annotations

import argparse
import importlib.util
import re
from pathlib import Path

from pagefleet_contract.engine_options import MASTER_PORT, MAX_GPUS_PER_NODE, MAX_NODES

DEVICES = ("auto", "cpu", "cuda")
QUANTIZATIONS = {"cpu": ("none", "int8"), "cuda": ("none", "fp8", "awq")}
KV_CACHE_TYPES = {"cpu": ("auto", "float32", "float16"), "cuda": ("auto", "float32", "float16", "bfloat16", "fp8")}
# Sequences, tokens of a step, of one long prompt in a step, and how many make a prompt long. A GPU is idle with the CPU's.
SIZES = {"cpu": (64, 512, 128, 512), "cuda": (256, 8192, 2048, 2048)}
MAX_RANKS = MAX_NODES * MAX_GPUS_PER_NODE
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def add_flags(serve: argparse.ArgumentParser) -> None:
    add = serve.add_argument
    add("--device", choices=DEVICES, default="auto", help="auto: cuda where there is a GPU and torch is built for it")
    add(
        "--tensor-parallel-size",
        type=_ranks,
        default=1,
        metavar="N",
        help=f"GPUs that share the model, 1..{MAX_GPUS_PER_NODE} on each node",
    )
    add("--nnodes", type=_nodes, default=1, metavar="N", help="machines that the GPUs are on, equally many on each")
    add("--node-rank", type=int, default=0, metavar="K", help="which of them this is; 0 serves, the others compute")
    add("--master-addr", default="", metavar="HOST", help="where the others find the first")
    add("--master-port", type=int, default=MASTER_PORT, metavar="PORT")
    add("--kv-offload-memory", type=_bytes, default=0, metavar="BYTES", help="of the host for evicted KV pages; 16Gi")


def resolved(flags: argparse.Namespace) -> str:
    """cpu or cuda, without importing torch."""
    if flags.device != "auto":
        return str(flags.device)
    found = importlib.util.find_spec("torch")
    folders = [] if found is None else found.submodule_search_locations or []
    built = any((Path(folder) / "lib" / "libtorch_cuda.so").exists() for folder in folders)
    return "cuda" if built and Path("/dev/nvidiactl").exists() else "cpu"


def check(flags: argparse.Namespace, device: str) -> None:
    """Raises ValueError naming the flags that do not go with the device."""
    for name, value, table in (
        ("--quantization", flags.quantization, QUANTIZATIONS),
        ("--kv-cache-dtype", flags.kv_cache_dtype, KV_CACHE_TYPES),
    ):
        if value not in table[device]:
            raise ValueError(f"{name}={value} is not for --device={device}; for it: {', '.join(table[device])}")
    _check_nodes(flags)
    if device == "cpu":
        if flags.tensor_parallel_size > 1:
            raise ValueError("--tensor-parallel-size needs --device=cuda")
        if flags.kv_offload_memory:
            raise ValueError("--kv-offload-memory needs --device=cuda")
        return
    if flags.kernels == "native":
        raise ValueError("--kernels=native needs --device=cpu")
    if flags.speculation not in (None, "none"):
        raise ValueError("--speculation needs --device=cpu")
    if flags.lora_adapter and flags.tensor_parallel_size > 1:
        raise ValueError("--lora-adapter needs --tensor-parallel-size=1")
    if flags.kv_offload_memory and flags.no_prefix_caching:
        raise ValueError("--kv-offload-memory keeps cached prefixes: it does not go with --no-prefix-caching")


def _check_nodes(flags: argparse.Namespace) -> None:
    nodes, ranks = flags.nnodes, flags.tensor_parallel_size
    if ranks % nodes:
        raise ValueError(f"--tensor-parallel-size={ranks} cannot be shared by --nnodes={nodes}")
    if ranks // nodes > MAX_GPUS_PER_NODE:
        raise ValueError(f"--tensor-parallel-size={ranks} is more than {MAX_GPUS_PER_NODE} on each of --nnodes={nodes}")
    if not 0 <= flags.node_rank < nodes:
        raise ValueError(f"--node-rank must be 0 to {nodes - 1}, not {flags.node_rank}")
    if flags.node_rank and not flags.master_addr:
        raise ValueError("--node-rank above 0 needs --master-addr")
    if not 1 <= flags.master_port <= 65535:
        raise ValueError(f"--master-port must be a port from 1 to 65535, not {flags.master_port}")


def _nodes(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MAX_NODES:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_NODES}, not {value}")
    return value


def _ranks(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MAX_RANKS:
        raise argparse.ArgumentTypeError(f"must be 1 to {MAX_RANKS}, not {value}")
    return value


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be bytes such as 17179869184 or 16Gi, not {text!r}")
    return int(match[1]) * UNITS[match[2]]
