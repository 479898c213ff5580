"""The packed product against its plain twin."""

from __future__ import annotations

import pytest
import torch

from metronome_cli.engine import linear
from metronome_cli.engine.linear import Linear, can_pack, linear_plain


@pytest.mark.parametrize("shape", [(0, 48), (1, 48), (7, 48), (8, 48), (300, 48), (2, 5, 48)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_agrees_with_the_plain_twin(shape: tuple[int, ...], biased: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(97, 48, dtype=dtype), torch.randn(shape, dtype=dtype)
    bias = torch.randn(97, dtype=dtype) if biased else None
    got, want = Linear(weight, bias)(x), linear_plain(x, weight, bias)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_rows_that_do_not_lie_side_by_side_are_multiplied_all_the_same() -> None:
    torch.manual_seed(0)
    weight, wide = torch.randn(97, 48), torch.randn(8, 200)
    for x in (wide[:, :48], wide[:, ::2][:, :48], wide[:, :48].T.contiguous().T):
        torch.testing.assert_close(Linear(weight)(x), linear_plain(x, weight), rtol=1e-5, atol=1e-5)


def test_without_the_packed_product_the_plain_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(97, 48), torch.randn(8, 48)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not can_pack(weight)
    assert torch.equal(Linear(weight)(x), linear_plain(x, weight))


@pytest.mark.parametrize("rows", [0, 1, 8, 300])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("units", [False, True], ids=["weights only", "as the machine can"])
def test_products_in_bfloat16_agree_with_the_plain_twin_of_what_is_rounded(
    rows: int, biased: bool, units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not units:
        monkeypatch.setattr(linear, "has_units", lambda dtype: False)
    torch.manual_seed(0)
    weight, x = torch.randn(97, 48), torch.randn(rows, 48)
    bias = torch.randn(97) if biased else None
    got = Linear(weight, bias, torch.bfloat16)(x)
    rounds_inputs = can_pack(weight) and linear.has_units(torch.bfloat16)
    want = linear_plain(rounded(x) if rounds_inputs else x, rounded(weight), bias)
    assert got.dtype == torch.float32
    # The result, and the bias, are rounded to 8 bits where inputs are.
    tolerance = 2**-7 if rounds_inputs else 1e-5
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    if rows:
        assert not torch.equal(got, linear_plain(x, weight, bias))


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def test_the_weights_own_dtype_is_no_other_one_to_multiply_in() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(97, 48), torch.randn(8, 48)
    assert torch.equal(Linear(weight, None, torch.float32)(x), Linear(weight)(x))
