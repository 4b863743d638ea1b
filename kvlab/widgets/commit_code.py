"""The playground's state as code: the few lines that run the same commit, and a test that pins what it did."""

from __future__ import annotations

from pprint import pformat

from ..debug.commit_data import STATES
from ..formats import MXFP8, parse_format
from .commit_presets import geometry, steps_of
from .commit_run import FILLS


def python_code(state: dict, trace, own=None) -> str:
    """Lines that build the pool and run the call on it. ``own``: the layout, where no builder of kvlab made it."""
    return f"""import torch

import kvlab
from kvlab.samples import load_trace

{_inputs(state, trace, own)}
pool = kvlab.KVPool(layout)
{_call(state, "pool")}
print(pool)
"""


def pytest_code(state: dict, trace, outcome, fault: Exception | None, own=None) -> str:
    """A test of the same call: kernel against reference, and every byte's state, over two fills; or its refusal.

    ``outcome`` is None where not even the layout could be built.
    """
    if fault is None:
        return _ran(state, trace, outcome, own)
    return _refused(state, trace, fault, own) if outcome is not None else _no_layout(state, trace, fault)


def _ran(state: dict, trace, outcome, own) -> str:
    counts = {s: outcome.counts[s] for s in STATES[1:]}
    mask = "row_mask.cpu().numpy()" if state["row_mask"] is not None else "None"
    return f"""import numpy as np
import torch

import kvlab
from kvlab.backends import reference_backend
from kvlab.figures import classify, expected_mask
from kvlab.samples import load_trace

{_inputs(state, trace, own)}

def commit(pool):
    {_call(state, "pool", indent=4)}


def test_commit():
    snapshots = []
    for fill in {FILLS}:
        pool, reference = kvlab.KVPool(layout), kvlab.KVPool(layout)
        for buffer in [*pool.buffers.values(), *reference.buffers.values()]:
            buffer.fill_(fill)
        commit(pool)
        with reference_backend():
            commit(reference)
        for name in layout.buffers:
            assert torch.equal(pool.buffers[name], reference.buffers[name]), name
        snapshots += [{{n: np.full(size, fill, np.uint8) for n, size in layout.buffers.items()}}]
        snapshots += [{{n: x.cpu().numpy() for n, x in pool.buffers.items()}}]
    expected = expected_mask(layout, loc_2d.cpu().numpy(), commit_lens.cpu().numpy(), {mask}, layer={state["layer"]})
    states = np.concatenate([classify(expected[n], *(s[n] for s in snapshots)) for n in layout.buffers])
    written, missing, unexpected = (int((states == i).sum()) for i in (1, 2, 3))
    assert (written, missing, unexpected) == {tuple(counts.values())}{_remark(counts)}
"""


def _remark(counts: dict) -> str:
    return (
        "  # a right commit has neither missing nor unexpected bytes"
        if counts["missing"] or counts["unexpected"]
        else ""
    )


def _refused(state: dict, trace, error: Exception, own) -> str:
    return f"""import re

import pytest
import torch

import kvlab
from kvlab.samples import load_trace

{_inputs(state, trace, own)}

def test_refused():
    pool = kvlab.KVPool(layout)
    with pytest.raises({type(error).__name__}, match=re.escape({str(error)!r})):
        {_call(state, "pool", indent=8)}
    assert not any(buffer.any() for buffer in pool.buffers.values()), "something was written all the same"
"""


def _no_layout(state: dict, trace, error: Exception) -> str:
    return f"""import re

import pytest
import torch

import kvlab


def test_refused():
    with pytest.raises({type(error).__name__}, match=re.escape({str(error)!r})):
        {_layout(state, trace)}
"""


def _layout(state: dict, trace, own=None) -> str:
    if own is not None:
        return f"kvlab.Layout.from_dict({own.to_dict()!r})"
    g = geometry(trace, state["page_size"]).to_dict()
    sizes = ", ".join(f"{n}={x}" for n, x in g.items() if n != "v_head_dim")
    return f"kvlab.{state['layout']}(kvlab.Geometry({sizes}), {_format(state['format'])})"


def _inputs(state: dict, trace, own) -> str:
    """Lines that define layout, loc_2d, commit_lens, row_mask (where there is one), k and v."""
    steps, layer = steps_of(trace, state["step"], len(state["loc"])), state["layer"]
    mask = f"row_mask = torch.tensor({_nested(state['row_mask'])}, device=device)\n" if state["row_mask"] else ""
    return f"""layout = {_layout(state, trace, own)}
device = kvlab.KVPool(layout).device
steps = [load_trace().step(i) for i in {steps}]
k = torch.cat([s.k[{layer}] for s in steps]).to(device)
v = torch.cat([s.v[{layer}] for s in steps]).to(device)
loc_2d = torch.tensor({_nested(state["loc"])}, device=device)
commit_lens = torch.tensor({state["commit_lens"]}, device=device)
{mask}"""


def _call(state: dict, pool: str, indent: int = 0) -> str:
    layer, mask = state["layer"], state["row_mask"] is not None
    before = ""
    if state["call"] == "payload_only":
        before = "from kvlab.widgets.commit_run import payload_pool\n\n" + " " * indent
        pool = f"payload_pool({pool})"
    if state["call"] == "set_kv_buffer":
        return f"{pool}.set_kv_buffer({layer}, loc_2d, k, v{', dcp_kv_mask=row_mask' * mask})"
    if mask:
        call = f"{pool}.commit(loc_2d, k, v, layer={layer}, commit_lens=commit_lens, row_mask=row_mask)"
    else:
        call = f"{pool}.set_kv_buffer_prefix_valid({layer}, loc_2d, commit_lens, k, v)"
    return before + call


def _nested(rows: list) -> str:
    return pformat(rows, width=100) if len(rows) > 1 else repr(rows)


def _format(name: str) -> str:
    fmt = parse_format(name)
    return f'kvlab.MXFP8("{fmt.scales}", "{fmt.rounding}")' if isinstance(fmt, MXFP8) else f"torch.{name}"
