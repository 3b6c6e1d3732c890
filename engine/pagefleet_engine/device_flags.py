"""Settings that follow from the device: its kind, the default sizes for it, and the flags that it allows. No torch."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from pagefleet_contract.engine_options import MAX_GPUS_PER_NODE
from pagefleet_engine.flags import BY_NAME, FLAGS

LONG_PROMPT = {"cpu": 512, "cuda": 2048}  # tokens from which a prompt is computed in chunks


def resolved(flags: argparse.Namespace) -> str:
    """cpu or cuda, without importing torch."""
    if flags.device != "auto":
        return str(flags.device)
    package = importlib.util.find_spec("torch")
    folders = [] if package is None else package.submodule_search_locations or []
    built = any((Path(folder) / "lib" / "libtorch_cuda.so").exists() for folder in folders)
    return "cuda" if built and Path("/dev/nvidiactl").exists() else "cpu"


def check(flags: argparse.Namespace, device: str) -> None:
    """Raises ValueError naming the flags that do not go with the device."""
    for flag in FLAGS:
        value, allowed = getattr(flags, flag.dest), flag.devices.get(device)
        if allowed is not None and value not in allowed:
            raise ValueError(f"{flag.name}={value} is not for --device={device}; for it: {', '.join(allowed)}")
    _check_nodes(flags)
    if device == "cpu":
        if flags.tensor_parallel_size > 1:
            raise ValueError("--tensor-parallel-size needs --device=cuda")
        if flags.kv_offload_memory:
            raise ValueError("--kv-offload-memory needs --device=cuda")
        return
    if flags.kernels not in ("auto", "reference"):
        raise ValueError(f"--kernels={flags.kernels} needs --device=cpu")
    if flags.lora_adapter and flags.nnodes > 1:
        raise ValueError("--lora-adapter needs --nnodes=1")
    if flags.kv_offload_memory and flags.no_prefix_caching:
        raise ValueError("--kv-offload-memory keeps cached prefixes: it does not go with --no-prefix-caching")


def fill_sizes(flags: argparse.Namespace, device: str) -> None:
    """Give the sizes that were not given the device's defaults. A given chunk is every prompt's. The budget's default holds the sequences
    and a given chunk; a chunk's default is at most the budget.
    """
    flags.long_prompt_tokens = flags.max_chunk_tokens or LONG_PROMPT[device]
    flags.max_num_seqs = flags.max_num_seqs or BY_NAME["--max-num-seqs"].defaults[device]
    usual = BY_NAME["--max-num-batched-tokens"].defaults[device]
    enough = max(usual, flags.max_num_seqs, flags.max_chunk_tokens or 0)
    flags.max_num_batched_tokens = flags.max_num_batched_tokens or enough
    chunk = min(BY_NAME["--max-chunk-tokens"].defaults[device], flags.max_num_batched_tokens)
    flags.max_chunk_tokens = flags.max_chunk_tokens or chunk


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
