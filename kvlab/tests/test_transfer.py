"""Pages between two real processes on loopback. One pair plays all scenarios: starting it takes seconds."""

import re
import time
from itertools import product

import pytest
import torch

from kvlab import transfer
from kvlab.transfer_demo import exchange, run_processes

from .helpers import BUILDERS, assert_same_bytes
from .moving_helpers import FLAT, FOREIGN, FORMATS, TILED, bytes_of, content, layout_of, moved
from .transfer_worker import Scenario, deaths, play

pytestmark = pytest.mark.slow
if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)
BF16 = torch.bfloat16
ODD = ([1, 2], [2, 1])  # page ids of pools with three pages


def scenario(builders=("page_major", "head_major"), kinds=(BF16, BF16), sizes=({}, {}), **options) -> Scenario:
    layouts = tuple(layout_of(b, f, **s) for b, f, s in zip(builders, kinds, sizes, strict=True))
    if TILED in kinds:
        options = {"pages": ODD, **options}
    sent, held = bytes_of(layouts[0], content(layouts[0], 1), FOREIGN), bytes_of(layouts[1], content(layouts[1], 5))
    return Scenario(layouts, sent=sent, held=held, **options)


def mixed_placement() -> Scenario:
    """The sender's scales lie flat, the receiver's in tiles."""
    large = {"page_size": 128, "pages": 3, "heads": 2}
    return scenario(kinds=(FLAT, TILED), sizes=(large, large))


GOOD = {f"{a}-{b}-{k}": scenario((a, b), (FORMATS[k],) * 2) for a, b in product(BUILDERS, BUILDERS) for k in FORMATS}
GOOD |= {
    "placement converted": mixed_placement(),
    "through the kernels": scenario(kernel=True),
    "more free than sent": scenario(pages=([3, 5], [2, 1, 6])),
    "no pages": scenario(pages=([], [2])),
    "page 0": scenario(pages=([0, 4], [3, 0])),
    "unlike pools": scenario(sizes=({"pages": 9}, {"pages": 7})),
    "page ids as tensors": scenario(pages=(torch.tensor([3, 5]), torch.tensor([2, 1]))),
}
BIG = {"page_size": 8, "pages": 8}
# what the sender and the receiver are told
BAD = {
    "heads": (scenario(sizes=({}, {"heads": 4})), *["differ in heads: 3 and 4"] * 2),
    "layers": (scenario(sizes=({}, {"layers": 1})), *["differ in layers: 2 and 1"] * 2),
    "v_head_dim": (scenario(sizes=({}, {"v_head_dim": 64})), *["differ in v_head_dim: 32 and 64"] * 2),
    "format": (scenario(kinds=(BF16, torch.float16)), *["differ in format: bfloat16 and float16"] * 2),
    "scales": (scenario(kinds=(torch.float8_e4m3fn, FLAT)), *["differ in format: float8_e4m3fn and mxfp8"] * 2),
    "page_size": (scenario(sizes=({}, BIG)), *["differ in page_size: 4 and 8"] * 2),
    "short of pages": (scenario(pages=([3, 5, 1], [2, 1])), *["3 pages are sent, 2 are free here"] * 2),
    "header": (scenario(fault="flip a header byte"), *["a header that does not match its checksum"] * 2),
    "version": (scenario(fault="other version"), *["header version 1, this side reads 2"] * 2),
    "page": (scenario(fault="flip a page byte"), *["page 1 of the transfer does not match its checksum"] * 2),
    "last byte": (scenario(fault="flip the last byte"), *["page 2 of the transfer does not match its checksum"] * 2),
    "torn": (scenario(fault="written while sent"), *["page 0 of the transfer does not match its checksum"] * 2),
    "sender's ids": (
        scenario(pages=([3, 8], [2, 1])),
        "IndexError: pages[1]=8 is outside",
        "the sender gave up: IndexE",
    ),
    "sender's twice": (scenario(pages=([3, 3], [2, 1])), "ValueError: pages[1]=3 is given twice", "the sender gave up"),
    "both wrong": (scenario(pages=([3, 3], [2, 99])), "ValueError: pages[1]=3 is given twice", "the sender gave up"),
    "no int": (scenario(pages=([3, 1.5], [2, 1])), "TypeError: 'float' object", "the sender gave up: TypeError"),
    "receiver's ids": (scenario(pages=([3], [-1])), "IndexError: pages[0]=-1 is outside", "IndexError: pages[0]=-1"),
    "receiver's twice": (scenario(pages=([3], [4, 4])), "ValueError: pages[1]=4 is given", "ValueError: pages[1]=4"),
}
AFTER = scenario()  # the wire is still in step


@pytest.fixture(scope="module")
def played():
    """Reports of both ranks for every scenario, by name."""
    scenarios = {**GOOD, **{name: case[0] for name, case in BAD.items()}, "after": AFTER}
    ranks = run_processes(play, 2, list(scenarios.values()), timeout=240)
    for rank in ranks:
        assert not isinstance(rank, str), rank
    return dict(zip(scenarios, zip(*ranks, strict=True), strict=True))


def check_published(s: Scenario, reports) -> None:
    sender, receiver = reports
    assert (sender.error, receiver.error) == ("", "")
    a, b = s.layouts
    size, count = a.geometry.page_size, len(s.pages[0])
    target = moved(
        content(a, 1), transfer.slots_of(s.pages[0], size), content(b, 5), transfer.slots_of(s.pages[1][:count], size)
    )
    assert_same_bytes(Bytes(b, receiver.buffers), bytes_of(b, target), "receiver")
    assert_same_bytes(Bytes(a, sender.buffers), s.sent, "sender")


class Bytes:
    """Buffers that came out of a process, as far as a comparison needs a pool."""

    def __init__(self, layout, buffers):
        self.layout, self.buffers = layout, buffers


@pytest.mark.parametrize("name", GOOD)
def test_pages_arrive(name, played):
    """Converted to the receiver's layout, at its own page ids; every other byte as it was."""
    check_published(GOOD[name], played[name])


@pytest.mark.parametrize("name", GOOD)
def test_bytes_on_the_wire(name, played):
    """pages * page_bytes, each page in one message, and the header: counted where torch.distributed takes them."""
    sender, receiver = played[name]
    count, page = len(GOOD[name].pages[0]), sender.result.page_bytes
    assert receiver.result == sender.result
    assert sender.result.pages == count
    assert sender.sends[2:] == [page] * count
    assert sum(sender.sends) == count * page + sender.result.header_bytes
    assert receiver.sends == [transfer.PREFIX_BYTES] * 2, "two answers, both empty"


@pytest.mark.parametrize("name", GOOD)
def test_page_major_sends_from_where_the_pages_lie(name, played):
    sender, layout = played[name][0], GOOD[name].layouts[0]
    inside = len(GOOD[name].pages[0]) if layout.name == "page_major" else 0
    assert sender.in_place == inside
    if layout.name == "page_major":
        assert sender.result.page_bytes == layout.buffers["raw"] // layout.geometry.pages


@pytest.mark.parametrize("name", BAD)
def test_nothing_is_published(name, played):
    """The receiving pool is as it was, both sides say why, and no page is sent to a receiver that refused."""
    s, told_sender, told_receiver = BAD[name]
    sender, receiver = played[name]
    assert re.search(re.escape(told_sender), sender.error), sender.error
    assert re.search(re.escape(told_receiver), receiver.error), receiver.error
    assert_same_bytes(Bytes(s.layouts[1], receiver.buffers), s.held)
    assert len(sender.sends) == (5 if "page " in told_sender and "checksum" in told_sender else 2)


def test_the_wire_is_in_step_after_all_that(played):
    check_published(AFTER, played["after"])


def test_a_sender_that_dies_and_a_receiver_that_dies():
    s = scenario(fault="die")
    dead, alive, gone = run_processes(deaths, 3, s, timeout=180)
    assert (dead, gone) == ("ended with exit code 3", "ended with exit code 4")
    assert not isinstance(alive, str), alive
    received, sent = alive
    assert "TransferError: the peer went away after 2 of 3 pages; nothing was published" in received.error
    assert_same_bytes(Bytes(s.layouts[1], received.buffers), s.held)
    assert "TransferError: the peer went away" in sent.error
    assert_same_bytes(Bytes(s.layouts[0], sent.buffers), s.sent)


def hang(rank: int) -> int:
    time.sleep(600 * rank)
    return rank


def test_a_process_that_hangs_is_named_and_stopped():
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"processes \[.*1\] of 2 did not end within 5 s and were stopped"):
        run_processes(hang, 2, timeout=5)
    assert time.monotonic() - start < 60


def test_the_notebooks_exchange():
    """Two processes, real rows, unlike layouts: all tokens arrive, come back, and a flipped byte is refused."""
    a, b, c, d, e, f = exchange()
    assert [x.process for x in (a, b, c, d, e, f)] == ["A", "B"] * 3
    assert b.outcome == c.outcome == "64 of 64 tokens equal the sample"
    assert "page 1 of the transfer does not match its checksum" in e.outcome
    assert "nothing was published" in f.outcome
    assert a.wire_bytes == e.wire_bytes > 4 * 16 * 4 * 2 * 3 * 64 * 2
