"""A model's weights as float tensors under Hugging Face's names, read one at a time: never all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from safetensors import SafetensorError

from pagefleet_engine.model.checkpoint import arrange, dequantise, fp4, gguf_blocks, shards
from pagefleet_engine.model.checkpoint.config import ModelConfig, from_json
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.gguf_config import from_gguf
from pagefleet_engine.model.checkpoint.gguf_file import GGUF
from pagefleet_engine.model.checkpoint.quantization import Method, Stored
from pagefleet_engine.model.checkpoint.shards import Reader
from pagefleet_engine.model.checkpoint.source import Format, ModelSource
from pagefleet_engine.model.families import registry
from pagefleet_kernels.cpu import Coded

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# Some files have tables beside the weights that the config states as well.
TABLES = ("rotary_emb.inv_freq", "rope_freqs.weight")
MATRICES, EMBEDDING = ("_proj.weight", "_proj"), "model.embed_tokens.weight"
EMBEDS = "1_Pooling/config.json"  # sentence-transformers' file of models of embeddings
T = TypeVar("T")
CODED = (Method.AWQ, Method.GPTQ, Method.PACKED, Method.INT8)


@dataclass(frozen=True)
class ElementBytes:
    """The most bytes that an element of a prepared matrix has on a CPU, in the form of `take_compact`: of the layers' matrices, of the
    output's, and of the embedding, which is no codes."""

    layers: float = 4
    output: float = 4
    embedding: float = 4


class Weights:
    """Names and readers of tensors. `take` reads one; `left` names those that were not read. Several threads may take.

    A quantised layer shows as its float `weight`; `take_packed` and `take_compact` return it as it is stored.
    """

    def __init__(
        self,
        readers: Mapping[str, arrange.Tensor],
        where: str,
        packed: Mapping[str, Callable[[], dequantise.Packed]] | None = None,
        coded: Callable[[str, int], Coded | None] = lambda name, most_bits: None,
        element_bytes: ElementBytes = ElementBytes(),
        method: str = "floats",
    ) -> None:
        self.element_bytes, self._method = element_bytes, method
        self._kept = False
        self._readers, self._where, self._packed, self._coded = dict(readers), where, dict(packed or {}), coded
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def take(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A copy of the tensor `name`. Raises ModelError when it is missing, unreadable or of another shape."""
        return self._read(name, shape).to(dtype, copy=True)

    def take_stored(self, name: str, *shape: int) -> torch.Tensor:
        """As `take`, in the dtype of the file and without a copy where it is memory-mapped."""
        return self._read(name, shape)

    def take_compact(self, rows: Mapping[str, int], columns: int, most_bits: int = 8) -> list[torch.Tensor] | Coded:
        """Several matrices [count, columns] below one another, in the smallest form that has exactly the file's values: codes, or
        parts of one dtype, without a copy where they are memory-mapped. Raises as `take`.

        Codes of more than `most_bits` bits are read as floats.
        """
        shapes = [(name, (count, columns)) for name, count in rows.items()]
        codes = [self._guarded(name, partial(self._coded, name, most_bits)) for name in rows if name in self._readers]
        parts = [part for part in codes if part is not None]
        if len(parts) == len(rows) and all(
            part.codes.shape == shape for part, (_, shape) in zip(parts, shapes, strict=True)
        ):
            self._taken |= set(rows)
            self._kept = True
            return Coded.below(parts)
        stored = [self._read(name, shape) for name, shape in shapes]
        same = len({part.dtype for part in stored}) == 1
        return stored if same else [part.float() for part in stored]

    def take_packed(self, layer: str) -> dequantise.Packed | None:
        """A linear layer ("model.layers.0.mlp.up_proj") as a quantised checkpoint holds it, once; None: it is floats.

        A caller that keeps it so calls `keep`.
        """
        if layer not in self._packed:
            return None
        self._taken.add(f"{layer}.weight")
        return self._guarded(layer, self._packed.pop(layer))

    def keep(self) -> None:
        """Note that layers of `take_packed` stay in memory as they are stored."""
        self._kept = True

    def views_file(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of `take_stored` or `take_compact` may be a view of the file, and so keep all of it mapped."""
        return self._method != "gguf" or tensor.dtype != torch.float32

    @property
    def summary(self) -> str:
        """How the checkpoint stores its weights, and whether those that were taken are so in memory."""
        if self._method in ("floats", "gguf"):
            return self._method
        return f"{self._method}, {'packed' if self._kept else 'widened'}"

    def left(self) -> list[str]:
        return sorted(name for name in self._readers if name not in self._taken and not name.endswith(TABLES))

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._readers:
            raise ModelError(SOURCE, f"{self._where} lacks the tensor {name}")
        self._packed.pop(name.removesuffix(".weight"), None)
        self._taken.add(name)
        tensor = self._guarded(name, self._readers[name])
        if tuple(tensor.shape) != shape:
            raise ModelError(SOURCE, f"{self._where}: tensor {name} is {tuple(tensor.shape)}, the config says {shape}")
        if tensor.dtype not in FLOATS:
            raise ModelError(
                SOURCE, f"{self._where}: tensor {name} is {tensor.dtype}; allowed: float32, float16, bfloat16"
            )
        return tensor

    def _guarded(self, name: str, read: Callable[[], T]) -> T:
        try:
            return read()
        except (SafetensorError, NotImplementedError, IndexError, ValueError, OSError) as error:
            raise ModelError(SOURCE, f"{self._where}: tensor {name} cannot be read: {error}") from error


def load(source: ModelSource) -> tuple[ModelConfig, Weights]:
    """Return the config, and weights that are not read yet. Raises ModelError."""
    match source.format:
        case Format.GGUF:
            return _from_gguf(source)
        case Format.SAFETENSORS:
            return _from_safetensors(source)


def gguf_config(file: GGUF) -> ModelConfig:
    """The config of an open GGUF file. Raises ModelError."""
    tied = "lm_head.weight" not in file.names
    return from_gguf(file.field, file.length("tokenizer.ggml.tokens"), file.rope_divisors(), tied)


def _from_gguf(source: ModelSource) -> tuple[ModelConfig, Weights]:
    file = GGUF(source.path)
    config = gguf_config(file)

    def read(name: str) -> torch.Tensor:
        stored = file.stored(name, config.heads, config.kv_heads)
        return gguf_blocks.halves(stored) if stored.type in gguf_blocks.HALVES else gguf_blocks.dequantise(stored)

    def coded(name: str, most_bits: int) -> Coded | None:
        return gguf_blocks.coded(file.stored(name, config.heads, config.kv_heads), most_bits)

    types = {name: file.type(name) for name in file.names}
    sizes = {name: gguf_blocks.element_bytes(kind) for name, kind in types.items()}
    element_bytes = _most(sizes, config, 2 if types.get(EMBEDDING) in gguf_blocks.HALVES else 4)
    readers = {name: partial(read, name) for name in file.names}
    return config, Weights(readers, source.path.name, coded=coded, element_bytes=element_bytes, method="gguf")


def _from_safetensors(source: ModelSource) -> tuple[ModelConfig, Weights]:
    config, files = from_json(source.path), _causal(shards.readers(source.path))
    if not config.tied and "lm_head.weight" not in files and (source.path / EMBEDS).is_file():
        config = replace(config, tied=True)  # a model of embeddings has no output to be used
    family = registry.family(config.kind)
    stored_as, unused = {family.tensor(name): reader for name, reader in files.items()}, set[str]()
    packed: dict[str, Callable[[], dequantise.Packed]] = {}
    parts: dict[str, dict[str, Reader]] = {}
    if (stored := config.stored) is not None:
        for name, names in dequantise.parts(stored, stored_as).items():
            missing = [one for one in names if one not in stored_as]
            if missing:
                raise ModelError(SOURCE, f"{source.path.name} lacks the tensor {missing[0]}")
            parts[name] = {one.rpartition(".")[2]: stored_as[one] for one in names}
            packed[name] = partial(_packed, stored, parts[name])
            unused |= set(names)
    floats: dict[str, arrange.Tensor] = {name: partial(_unpacked, read) for name, read in packed.items()}
    if stored is not None and stored.method is Method.MXFP4:
        floats = {name: Mxfp4(stored_as[f"{name}_blocks"], stored_as[f"{name}_scales"]) for name in packed}
        packed = {}
    rest = {
        name: read for name, read in stored_as.items() if name not in unused and not name.endswith(dequantise.UNUSED)
    }
    tensors = arrange.arranged({**rest, **floats}, family, config)
    layers = {
        name.removesuffix(".weight"): read for name, read in packed.items() if tensors.get(name) is floats[name]
    }  # fmt: skip
    method = "floats" if stored is None else str(stored.method)

    def coded(name: str, most_bits: int) -> Coded | None:
        read = layers.get(name.removesuffix(".weight"))
        return None if read is None else dequantise.coded(read(), most_bits)

    sizes: dict[str, float] = {name: read.bytes for name, read in rest.items()}
    if stored is not None:
        whole = {name: parts[name] for name in parts if name.removesuffix(".weight") in layers}
        sizes |= {**dict.fromkeys(parts, 2 if stored.method is Method.MXFP4 else 4), **_coded_bytes(stored, whole)}
    element_bytes = _most(sizes, config, sizes.get(EMBEDDING, 4))
    return config, Weights(tensors, source.path.name, layers, coded, element_bytes, method)


def _causal(files: Mapping[str, Reader]) -> dict[str, Reader]:
    """The tensors under a causal model's names, where a model without an output was saved (Qwen3-Embedding)."""
    if EMBEDDING in files or EMBEDDING.removeprefix("model.") not in files:
        return dict(files)
    return {name if name.startswith("lm_head.") else f"model.{name}": read for name, read in files.items()}


def _most(sizes: Mapping[str, float], config: ModelConfig, embedding: float) -> ElementBytes:
    """`sizes`: the bytes of an element of each tensor in the form of `take_compact`."""
    layers = max((size for name, size in sizes.items() if name.endswith(MATRICES)), default=4)
    return ElementBytes(layers, sizes.get(EMBEDDING if config.tied else "lm_head.weight", 4), embedding)


def _coded_bytes(stored: Stored, layers: Mapping[str, Mapping[str, Reader]]) -> dict[str, float]:
    """The bytes of an element of each layer. Of its tensors only the shapes are read, and which group a column is of."""
    found: dict[str, float] = {}
    known: dict[tuple[object, ...], float] = {}  # models of experts have many layers of few kinds
    for name, parts in layers.items() if stored.method in CODED else ():
        try:
            outlines = {part: read() if part.endswith("g_idx") else read.outline() for part, read in parts.items()}
            kinds = (
                (one.shape, one.dtype, None if one.is_meta else one.numpy().tobytes()) for one in outlines.values()
            )
            key = (*outlines, *kinds)
            if key not in known:
                known[key] = dequantise.coded_bytes(dequantise.packed(stored, outlines))
            found[name] = known[key]
        except (KeyError, ValueError, RuntimeError, SafetensorError):
            found[name] = 4  # its own error comes when it is read
    return found


@dataclass(frozen=True)
class Mxfp4:
    """gpt-oss's experts [experts, in, out], of which one matrix is read at a time."""

    blocks: Reader
    scales: Reader

    def __call__(self) -> torch.Tensor:
        return fp4.mxfp4(self.blocks(), self.scales()).dequantise().transpose(1, 2)

    def expert(self, index: int) -> torch.Tensor:
        return fp4.mxfp4(self.blocks.expert(index), self.scales.expert(index)).dequantise().t()


def _packed(stored: Stored, parts: Mapping[str, arrange.Tensor]) -> dequantise.Packed:
    return dequantise.packed(stored, {name: read() for name, read in parts.items()})


def _unpacked(read: Callable[[], dequantise.Packed]) -> torch.Tensor:
    return read().dequantise()
