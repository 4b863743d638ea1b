"""``python -m kvlab.bench.copy``: kvlab.copy of whole pages on the plain path, against ``copy_`` of as many bytes.

The two alternate in one process, so that what else the machine does meets both. Pages go to shuffled places.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

from .. import MXFP8, Geometry, KVPool, copy, head_major, page_major, token_major
from ..backends import reference_backend
from ..formats import format_name
from ..transfer import slots_of

BUILDERS = (token_major, page_major, head_major)
FORMATS = (torch.bfloat16, MXFP8("flat"), MXFP8("interleaved"))


def geometry(fmt, nbytes: int) -> Geometry:
    """4 layers of 8 heads of 128, in pages of 16 slots (128 for tiles), as many as make ``nbytes``."""
    page_size = 128 if fmt == MXFP8("interleaved") else 16
    page = page_major(Geometry(4, 8, 128, page_size=page_size, pages=1), fmt).nbytes
    return Geometry(4, 8, 128, page_size=page_size, pages=max(2, nbytes // page))


def measure(source, target, fmt, nbytes: int = 2**26, repeats: int = 9) -> tuple[list[float], list[float]]:
    """Seconds of each copy between two pools, and of each ``copy_`` of the same bytes, in turn."""
    g = geometry(fmt, nbytes)
    a, b = KVPool(source(g, fmt), device="cpu"), KVPool(target(g, fmt), device="cpu")
    for buffer in (*a.buffers.values(), *b.buffers.values()):
        buffer.fill_(1)  # memory that was never written is not there yet
    pages = torch.arange(1, g.pages)
    shuffled = pages[torch.randperm(len(pages), generator=torch.Generator().manual_seed(0))]
    source_loc, target_loc = slots_of(pages.tolist(), g.page_size), slots_of(shuffled.tolist(), g.page_size)
    x = torch.ones(sum(a.get_kv_size_bytes()) * len(pages) // g.pages, dtype=torch.uint8)
    y = torch.zeros_like(x)
    moved, plain = [], []
    with reference_backend():
        for i in range(repeats + 1):
            start = time.perf_counter()
            copy(a, source_loc, b, target_loc)
            middle = time.perf_counter()
            y.copy_(x)
            if i:  # the first round warms up
                moved.append(middle - start)
                plain.append(time.perf_counter() - middle)
    return moved, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="bytes of a pool, in MiB (default 64)")
    parser.add_argument("--repeats", type=int, default=9, help="rounds that count (default 9)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch's threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.mib} MiB, pages shuffled, {options.threads} threads; milliseconds, and how near to a plain copy_")
    print(f"{'format':26} {'from':12} {'to':12} {'copy':>7} {'copy_':>7} {'ratio':>6}   {'minima':>14} {'ratio':>6}")
    for fmt in FORMATS:
        for source in BUILDERS:
            for target in BUILDERS:
                moved, plain = measure(source, target, fmt, options.mib * 2**20, options.repeats)
                middle, least = (median(moved), median(plain)), (min(moved), min(plain))
                print(
                    f"{format_name(fmt):26} {source.__name__:12} {target.__name__:12} "
                    f"{middle[0] * 1e3:7.1f} {middle[1] * 1e3:7.1f} {middle[1] / middle[0]:6.2f}   "
                    f"{least[0] * 1e3:6.1f} {least[1] * 1e3:7.1f} {least[1] / least[0]:6.2f}"
                )


if __name__ == "__main__":
    main()
