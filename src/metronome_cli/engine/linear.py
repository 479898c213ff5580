"""Products with weights that never change, laid out once for the CPU's matrix library.

Knows:   weights, and the layout in which oneDNN multiplies a few rows by them.
Ignores: what the weights mean.

With weights as a checkpoint holds them, the library lays them out anew in every product, which takes longer
than a product of a few rows: 8 rows, one thread, 1.6 to 2.5 times as long (docs/log.md). Weights and inputs
rounded to bfloat16 for the product alone take another third off a few rows and half off many.
"""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear:
    """`x @ weight.T + bias` for any number of rows. `weight` is [out, in], `bias` [out].

    `products`: what weights and inputs are rounded to for the product; by default nothing is. Its result has
    the inputs' dtype again. Without units for bfloat16, the rounded weights are multiplied as they came.
    The caller drops its own reference to `weight`: the packed copy takes as much memory again, or half.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, products: torch.dtype | None = None
    ) -> None:
        self._packed = can_pack(weight)
        self._products = weight.dtype
        if products is not None and products != weight.dtype:
            weight = weight.to(products)
            if self._packed and has_units(products):
                self._products, bias = products, None if bias is None else bias.to(products)
            else:
                weight = weight.to(self._products)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._bias = bias

    @property
    def weight(self) -> Tensor:
        """[out, in], as it lies in memory; for weights not packed."""
        return self._weight

    @property
    def bias(self) -> Tensor | None:
        return self._bias

    def __call__(self, x: Tensor) -> Tensor:
        """[..., out] of x [..., in]."""
        if not self._packed:
            return linear_plain(x, self._weight, self._bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.to(self._products), self._weight, self._bias, "none", [], ""
        )
        return product.to(x.dtype)

    def into(self, x: Tensor, out: Tensor) -> None:
        """The same of x [T, in], written to `out` [T, out]; for weights not packed, without a bias."""
        torch.mm(x, self._weight.t(), out=out)


def linear_plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The plain twin of `Linear`."""
    return F.linear(x, weight, bias)


def can_pack(weight: Tensor) -> bool:
    """Whether torch has the packed product for such weights. It is what torch's own compiler calls; it has no
    public name, so a build without it must do too. Measured on x86-64 in float32 alone."""
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def has_units(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies `dtype` in units made for it; elsewhere it would be slower than float32."""
    told: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every build
    return dtype == torch.bfloat16 and bool(told.get("avx512_bf16") or told.get("amx_bf16"))


def products_of(name: str | None) -> torch.dtype | None:
    """A profile's `model.products` as `Linear` takes it."""
    return torch.bfloat16 if name == "bfloat16" else None
