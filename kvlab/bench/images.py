"""Make the README's pictures again: ``python -m kvlab.bench.images`` (needs chromium)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from .. import KVPool, figures, page_major, samples
from .browser import missing, page

FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "images"


def envelope():
    """A recorded speculative step, committed into a page-major pool: expected and written, slot by slot."""
    trace = samples.load_trace()
    layout = page_major(trace.geometry(), torch.bfloat16)
    step, loc_2d = trace.step(8), trace.loc_2d(8)
    snapshots = []
    for fill in (0x00, 0xFF):
        pool = KVPool(layout)
        pool.buffers["raw"].fill_(fill)
        snapshots.append(pool.buffers["raw"].cpu().numpy().copy())
        arguments = [x.to(pool.device) for x in (loc_2d, step.k, step.v)]
        pool.commit(*arguments, commit_lens=step.commit_lens.to(pool.device))
        snapshots.append(pool.buffers["raw"].cpu().numpy().copy())
    expected = figures.expected_mask(layout, loc_2d, np.asarray(step.commit_lens))["raw"]
    before_a, after_a, before_b, after_b = snapshots
    return figures.commit_diff(layout, before_a, after_a, expected, "raw", before_b=before_b, after_b=after_b)


def shoot(fig, path: Path) -> None:
    """A plotly figure as PNG, as a browser draws it."""
    with TemporaryDirectory() as folder, page(fig.layout.width + 20, fig.layout.height + 20) as tab:
        fig.write_html(Path(folder) / "figure.html", include_plotlyjs=True)
        tab.goto((Path(folder) / "figure.html").as_uri())
        tab.wait_for_selector(".js-plotly-plot .main-svg", state="attached")
        tab.wait_for_timeout(500)
        tab.screenshot(path=path)


def main() -> None:
    if reason := missing():
        raise SystemExit(f"no pictures made: {reason}")
    FOLDER.mkdir(exist_ok=True)
    shoot(envelope(), FOLDER / "commit.png")
    print(f"made {FOLDER / 'commit.png'}")


if __name__ == "__main__":
    main()
