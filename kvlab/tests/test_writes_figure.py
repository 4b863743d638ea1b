"""The figure of writes: every touched byte is drawn or counted as left out, in the colour of its state."""

import base64
import zlib

import numpy as np
import pytest
import torch

import kvlab
from kvlab import zoo
from kvlab.debug.commit_data import MISSING, UNEXPECTED, WRITTEN
from kvlab.debug.expect import WRONG
from kvlab.figures import text, writes_figure
from kvlab.figures.writes import COLORS, LINES, STRIPES
from kvlab.figures.writes_data import STATES, Written, written_buffers

from .helpers import BUILDERS, DEVICE, geometry, numbers, poisoned, rows_for, slots


def pixels(image) -> np.ndarray:
    """States in a picture trace, stripes undone."""
    data = base64.b64decode(image.source.partition(",")[2])
    width, height = (int.from_bytes(data[i : i + 4], "big") for i in (16, 20))
    at = data.index(b"IDAT")
    lines = zlib.decompress(data[at + 4 : at + 4 + int.from_bytes(data[at - 4 : at], "big")])
    codes = np.frombuffer(lines, np.uint8).reshape(height, width + 1)[:, 1:].copy()
    for i, state in enumerate(STRIPES):
        codes[codes == len(STATES) + i] = state
    return codes


def wrong_commit(builder, fmt=torch.bfloat16):
    """Slot 6 missing, slot 5 unexpected, V of slot 4 wrong in every byte."""
    pool = poisoned(builder(geometry(), fmt))
    k, v = (torch.full((3, 2, 64), x, dtype=torch.bfloat16, device=DEVICE) for x in (1.0, -3.0))
    w = kvlab.watch(pool, lambda: pool.set_kv_buffer(0, slots([4, 5, 8]), k, v))
    v = v.clone()
    v[0] = 1.5e-30  # 0x0DF4: no byte of it is one of -3.0, 0xC040
    return w, w.expect(slots([4, 6, 8]), layer=0, k=k, v=v)


@pytest.mark.parametrize("builder", [*BUILDERS.values(), *zoo.ALL.values()], ids=lambda b: b.__name__)
def test_every_line_is_drawn_with_the_states_of_its_bytes(builder):
    _, verdict = wrong_commit(builder)
    assert (verdict.counts["missing"], verdict.counts["unexpected"], verdict.counts["wrong"]) == (512, 512, 256)
    total = dict.fromkeys((WRITTEN, MISSING, UNEXPECTED, WRONG), 0)
    for b in written_buffers(verdict):
        again = np.zeros(b.nbytes, np.uint8)
        for group in b.groups():
            for line in range(group.first, group.last + 1):
                again[line * b.columns : (line + 1) * b.columns] = group.states
        assert np.array_equal(again, verdict.states[b.name])
        for state in total:
            total[state] += int((again == state).sum())
    assert total == {WRITTEN: 768, MISSING: 512, UNEXPECTED: 512, WRONG: 256}
    fig = writes_figure(verdict)
    assert "768 bytes written, 512 bytes missing, 512 bytes unexpected, 256 bytes wrong" in text(fig)
    for line in str(verdict).splitlines():
        assert line in text(fig)


def test_the_picture_has_the_colours_of_the_states():
    w, verdict = wrong_commit(kvlab.page_major)
    overview, lines = (trace for trace in writes_figure(verdict).data if trace.type == "image")
    found = pixels(lines)[::4]
    gap = COLORS.index("#ffffff")
    want = [WRITTEN, UNEXPECTED, MISSING, gap, WRONG, UNEXPECTED, MISSING, gap, WRITTEN, gap, WRITTEN]
    assert [set(line.tolist()) for line in found] == [{x} for x in want]
    whole = pixels(overview)[0]  # 65,536 bytes in 256 parts of 256, which is a row each
    assert np.flatnonzero(whole).tolist() == [16, 17, 18, 20, 21, 22, 32, 36]
    assert whole[[16, 17, 18, 20]].tolist() == [WRITTEN, UNEXPECTED, MISSING, WRONG]
    fig = writes_figure(w)
    assert {int(x) for t in fig.data if t.type == "image" for x in np.unique(pixels(t))} == {0, WRITTEN, gap}
    labels = [a.text for a in fig.layout.annotations]
    assert "W 256 × 2 lines" in labels and "W 256" in labels
    assert "4,096  <b>K L0 p1 o0</b> " in fig.layout.yaxis2.ticktext
    words = [x for t in fig.data if t.type == "heatmap" for line in t.text for x in line]
    first = "byte 5,120: V layer 0 slot 4 = page 1 offset 0, head 0 dim 0 byte 0<br>written<br>the same in 1 more lines"
    assert first in words


def test_what_is_not_shown_is_counted_and_faults_come_first():
    g = geometry(layers=20, heads=3, head_dim=24)
    pool = poisoned(zoo.vllm_nhd(g, torch.bfloat16))
    loc = slots(list(range(2, 60, 2)))
    k, v = rows_for(g, len(loc), torch.bfloat16, layers=g.layers, make=numbers)
    w = kvlab.watch(pool, lambda: pool.commit(loc, k, v))
    assert "Not shown: 4 more touched buffers; the lines of 16 buffers." in text(writes_figure(w))
    fig = text(writes_figure(w, "layer.19"))
    # 58 touched lines of 144 bytes, every other one: 40 rows of the picture have them
    assert "'layer.19': 40 of 128 lines of 144 bytes, faults first; 18 more were touched" in fig
    assert "the lines of 19 buffers" in fig and "'layer.0':" not in fig
    late = w.expect(loc[:-1])  # only the last slot, 58, is a fault: line 58 of K and line 122 of V
    fig = text(writes_figure(late, "layer.3"))
    assert "8,352 …      8,495  K L3 slot 58 (page 14)  U 144" in fig and "K L3 slot 2 (page 0)  W 144" in fig
    for kind in ("V L3 slot 58 (page 14)  U 144", f"{LINES} of 128 lines"):
        assert kind in fig


def test_columns_that_find_no_room_are_joined_by_their_worst_state():
    states = np.zeros(3000, np.uint8)
    states[1024:], states[1500] = WRITTEN, WRONG
    b = Written("x", states, None, 1024)
    assert b.parts(np.array([0, 1024, 2048])).tolist() == [0, WRONG, WRITTEN]
    assert [(x.first, x.last, x.worst, len(x.states)) for x in b.groups()] == [
        (1, 1, WRONG, 1024),
        (2, 2, WRITTEN, 952),
    ]


def test_tensors_and_an_empty_watch():
    a = torch.zeros(10, 20)
    with kvlab.watch({"x": a[2:5, ::2]}) as w:
        with pytest.raises(ValueError, match="the block has not ended"):
            writes_figure(w)
        a[3, 6] = 1
        a[9, 19] = 1
    fig = text(writes_figure(w))
    assert "'storage of x': 2 of 10 lines of 80 bytes" in fig and "no cell, bytes 798-799 of 'storage of x'" in fig
    assert "a byte rewritten with its own value does not show" in fig
    pool = poisoned(kvlab.token_major(geometry(), torch.bfloat16))
    with kvlab.watch(pool) as w:
        pass
    fig = writes_figure(w)
    assert "0 bytes written" in text(fig) and sum(t.type == "image" for t in fig.data) == 1
    with pytest.raises(KeyError, match=r"buffer='q' is not one of \['k', 'v'\]"):
        writes_figure(w, "q")
    assert "nothing changed" in text(writes_figure(w, "k"))
