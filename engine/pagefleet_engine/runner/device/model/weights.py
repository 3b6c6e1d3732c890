"""Reads one rank's part of a checkpoint onto its device: Q, K, V merged, gate and up merged, quantised layers packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

import torch

from pagefleet_engine.model.checkpoint import dequantise
from pagefleet_engine.model.checkpoint.errors import SOURCE, ModelError
from pagefleet_engine.model.checkpoint.integers import Awq, Integers
from pagefleet_engine.model.checkpoint.weights import Weights
from pagefleet_engine.runner.device.model import linear
from pagefleet_engine.runner.device.model.linear import Dense, Fp8, Linear
from pagefleet_engine.runner.device.model.shard import Shard
from pagefleet_engine.runner.device.model.upload import Upload
from pagefleet_kernels.kernels import Kernels

EMBEDDING = "model.embed_tokens.weight"
MIN_GROUP = 16  # of awq_gemm


class Cut(IntEnum):
    """Along which dimension of [out, in] the ranks share a product."""

    ROWS = 0
    COLUMNS = 1


class Reader:
    """fp8: floats are rounded to FP8. stored_fp8: the device multiplies FP8; elsewhere stored FP8 becomes floats.

    Raises ModelError for tensors that are missing, of a wrong shape, or that the ranks cannot share.
    """

    def __init__(
        self, weights: Weights, shard: Shard, device: torch.device, kernels: Kernels, fp8: bool, stored_fp8: bool = True
    ) -> None:
        self._weights, self._shard, self._device, self._kernels = weights, shard, device, kernels
        self._fp8, self._takes_fp8 = fp8, stored_fp8
        self._upload = Upload(device)
        self.dtype = torch.float32

    def embedding(self, rows: int, columns: int, dtype: torch.dtype | None) -> torch.Tensor:
        """The whole embedding; everything read after it has its dtype: the checkpoint's, unless `dtype` is given."""
        stored = self._weights.take_stored(EMBEDDING, rows, columns)
        self.dtype = stored.dtype if dtype is None else dtype
        return self._there(stored, self.dtype)

    def head(self, rows: int, columns: int) -> torch.Tensor:
        """This rank's rows of the output matrix."""
        begin, end = self._shard.rows(rows)
        return self._there(self._weights.take_stored("lm_head.weight", rows, columns)[begin:end], self.dtype)

    def has(self, name: str) -> bool:
        return name in self._weights

    def whole(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor that every rank holds."""
        return self._there(self._weights.take_stored(name, *shape), self.dtype)

    def part(self, name: str, size: int) -> torch.Tensor:
        """This rank's part of a vector."""
        return self._there(self._shard.cut(self._weights.take_stored(name, size), 0), self.dtype)

    def norm(self, name: str, size: int, wide: bool) -> torch.Tensor:
        """A norm's factors; `wide`: as float32, for sums of a weight and an offset, which have more digits than the weight."""
        return self._there(self._weights.take_stored(name, size), torch.float32 if wide else self.dtype)

    def stacked(
        self, prefixes: Sequence[str], parts: Mapping[str, int], columns: int, cut: Cut
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same product of several modules, as floats: [modules, rows, columns] and its biases [modules, rows]."""
        own = {name: rows // self._shard.size if cut is Cut.ROWS else rows for name, rows in parts.items()}
        wide = columns // self._shard.size if cut is Cut.COLUMNS else columns
        weight = torch.empty(len(prefixes), sum(own.values()), wide, dtype=self.dtype, device=self._device)
        biases = []
        for prefix, target in zip(prefixes, weight, strict=True):
            packed = [self._weights.take_packed(f"{prefix}{name}") for name in parts]
            self._fill(target, prefix, parts, columns, cut, packed)
            biases.append(self._bias(prefix, parts, cut, promised=False))
        given = [bias for bias in biases if bias is not None]
        return weight, torch.stack(given) if given else None

    def left(self) -> list[str]:
        return self._weights.left()

    def merged(self, prefix: str, parts: Mapping[str, int], columns: int, cut: Cut, promised: bool = False) -> Linear:
        """One product in place of several on the same input: {name: rows}. `promised`: the config says it has a bias."""
        bias = self._bias(prefix, parts, cut, promised)
        packed = [self._weights.take_packed(f"{prefix}{name}") for name in parts]
        awqs = [part.awq() if isinstance(part, Integers) else part for part in packed]
        if all(isinstance(part, Awq) for part in awqs):
            return self._awq([part for part in awqs if isinstance(part, Awq)], prefix, cut, bias)
        if self._takes_fp8 and all(isinstance(part, dequantise.Fp8) and part.block is None for part in packed):
            return self._stored_fp8([part for part in packed if isinstance(part, dequantise.Fp8)], cut, bias)
        weight = self._dense(prefix, parts, columns, cut, packed)
        if not self._fp8:
            return Dense(weight, bias)
        rounded, scales = self._kernels.fp8_quantise(weight)
        return Fp8(rounded, scales, bias, self._kernels)

    def _dense(
        self, prefix: str, parts: Mapping[str, int], columns: int, cut: Cut, packed: list[dequantise.Packed | None]
    ) -> torch.Tensor:
        """[rows, columns] of this rank. Parts that no kernel takes (such as FP8 in blocks) are floats from here on."""
        size = self._shard.size
        rows = sum(parts.values()) // (size if cut is Cut.ROWS else 1)
        wide = columns // size if cut is Cut.COLUMNS else columns
        weight = torch.empty(rows, wide, dtype=self.dtype, device=self._device)
        self._fill(weight, prefix, parts, columns, cut, packed)
        return weight

    def _fill(
        self, weight: torch.Tensor, prefix: str, parts: Mapping[str, int], columns: int, cut: Cut,
        packed: Sequence[dequantise.Packed | None],
    ) -> None:  # fmt: skip
        own = [rows // self._shard.size if cut is Cut.ROWS else rows for rows in parts.values()]
        for (name, rows), part, target in zip(parts.items(), packed, torch.split(weight, own), strict=True):
            if part is None:
                source = self._weights.take_stored(f"{prefix}{name}.weight", rows, columns)
            else:
                source = part.dequantise()
            self._upload(self._shard.cut(source, cut), target)

    def _stored_fp8(self, parts: list[dequantise.Fp8], cut: Cut, bias: torch.Tensor | None) -> Fp8:
        self._weights.keep()
        own = [self._shard.cut(part.weight, cut) for part in parts]
        weight = torch.empty(
            sum(len(one) for one in own), own[0].shape[1], dtype=torch.float8_e4m3fn, device=self._device
        )
        for one, target in zip(own, torch.split(weight, [len(one) for one in own]), strict=True):
            self._upload(one.view(torch.uint8), target.view(torch.uint8))
        scales = []
        for part in parts:
            whole = part.scale.float().reshape(-1).expand(part.weight.shape[0])
            scales.append(self._shard.cut(whole, 0) if cut is Cut.ROWS else whole)
        return Fp8(weight, torch.cat(scales).to(self._device), bias, self._kernels)

    def _awq(self, parts: list[Awq], prefix: str, cut: Cut, bias: torch.Tensor | None) -> linear.Awq:
        for part in parts:
            groups, columns = part.scales.shape
            size = part.qweight.shape[0] // groups
            uneven = columns % (8 * self._shard.size) if cut is Cut.ROWS else groups % self._shard.size
            if uneven or size % MIN_GROUP:
                raise ModelError(
                    SOURCE,
                    f"{prefix}*: {groups} groups of {size} by {columns} outputs cannot be shared by "
                    f"{self._shard.size} GPUs; groups are multiples of {MIN_GROUP}",
                )
        self._weights.keep()
        dim = 1 - cut  # AWQ stores [in, out]
        names = ("qweight", "qzeros", "scales")
        joined = [
            torch.cat([self._shard.cut(getattr(part, name), dim) for part in parts], dim=1).to(self._device)
            for name in names
        ]
        return linear.Awq(joined[0], joined[1], joined[2], bias, self._kernels)

    def _bias(self, prefix: str, parts: Mapping[str, int], cut: Cut, promised: bool) -> torch.Tensor | None:
        """A bias of an output that the ranks sum is added by the first one only."""
        names = {f"{prefix}{name}.bias": rows for name, rows in parts.items()}
        if not promised and not any(name in self._weights for name in names):
            return None
        biases = [self._weights.take_stored(name, rows) for name, rows in names.items()]
        if cut is Cut.COLUMNS:
            return self._there(torch.cat(biases), self.dtype) if self._shard.rank == 0 else None
        return self._there(torch.cat([self._shard.cut(one, 0) for one in biases]), self.dtype)

    def _there(self, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self._upload(source, torch.empty(source.shape, dtype=dtype, device=self._device))
