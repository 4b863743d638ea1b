"""Triton's own E4M3 cast, which a notebook compares with kvlab's."""

import pytest
import torch

from kvlab.backends import backend
from kvlab.formats import cast

if backend() == "reference":
    pytest.skip("needs Triton", allow_module_level=True)
if backend() == "cuda" and torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("this GPU has no E4M3 conversion", allow_module_level=True)

from kvlab.kernels.native_cast import native_e4m3

from .helpers import DEVICE


def test_exact_numbers_agree():
    """Numbers that E4M3 holds need no rounding, so any cast gives them."""
    codes = torch.tensor([c for c in range(256) if c & 0x7F != 0x7F], dtype=torch.uint8, device=DEVICE)
    normal = codes[(codes & 0x78) != 0]
    x = normal.view(torch.float8_e4m3fn).float()
    assert torch.equal(native_e4m3(x).view(torch.uint8), normal)


@pytest.mark.skipif(backend() != "interpreter", reason="compares Triton's interpreter with kvlab's own conversion")
def test_the_interpreter_is_asked_for_its_own_cast():
    """kvlab's bytes for numbers that need rounding come from integer arithmetic; this kernel must not use that."""
    x = torch.linspace(1, 448, 1000, device=DEVICE)
    native, own = native_e4m3(x), cast(x, torch.float8_e4m3fn)
    assert native.shape == x.shape and (native.float() - x).abs().max() < 448
    assert not torch.equal(native.view(torch.uint8), own.view(torch.uint8))
