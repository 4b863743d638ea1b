"""Real K/V rows of SmolLM2-135M-Instruct, read from data/ of the clone.

`load_kv` gives one text's rows. `load_trace` gives a speculative-decoding trace with its rejected rows.
K is stored after RoPE. See data/README.md for how the files were made.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch

KV_FILE = "smollm2_kv.safetensors"
TRACE_FILE = "smollm2_trace.safetensors"


@dataclass(frozen=True)
class KVSample:
    """K and V of every token of one text, for a few layers."""

    k: torch.Tensor  # (layers, tokens, heads, head_dim) bf16, after RoPE
    v: torch.Tensor  # (layers, tokens, heads, head_dim) bf16
    layer_ids: tuple[int, ...]  # which layers of the model these are
    token_ids: torch.Tensor  # (tokens,) int32
    tokens: list[str]  # the text of each token
    text: str


@dataclass(frozen=True)
class SpecStep:
    """One verify step of a batch. Request b owns rows b*W .. b*W + W - 1 of k and v."""

    k: torch.Tensor  # (layers, B*W, heads, head_dim) bf16, padding rows zero
    v: torch.Tensor  # (layers, B*W, heads, head_dim) bf16, padding rows zero
    commit_lens: torch.Tensor  # (B,) int32, rows to keep; the rest of the block is rejected
    block_lens: torch.Tensor  # (B,) int32, rows really fed; the rest is padding
    start_pos: torch.Tensor  # (B,) int32, KV length before the step
    tokens: list[list[str]]  # tokens[b][row], block_lens[b] strings for request b


@dataclass(frozen=True)
class SpecTrace:
    """A speculative-decoding trace: S verify steps of B requests, blocks of up to W rows.

    Row 0 of a block is the last sampled token, the other rows are drafts. Row 0 is always accepted.
    The rows of the prompts are not in the trace: it starts at start_pos[0].
    """

    draft_tokens: torch.Tensor  # (S, B, W) int32, -1 in padding rows
    block_lens: torch.Tensor  # (S, B) int32, rows really fed, 1..W
    commit_lens: torch.Tensor  # (S, B) int32, rows accepted, 1..block_lens
    start_pos: torch.Tensor  # (S, B) int32, KV length before the step
    k: torch.Tensor  # (S, layers, B, W, heads, head_dim) bf16, after RoPE, padding rows zero
    v: torch.Tensor  # (S, layers, B, W, heads, head_dim) bf16, padding rows zero
    layer_ids: tuple[int, ...]  # which layers of the model these are
    prompts: list[str]  # B prompts
    texts: list[str]  # B generated texts
    tokens: list[list[list[str]]]  # tokens[step][b][row]

    def step(self, i: int) -> SpecStep:
        """Step i, with the blocks of all requests laid one after another along the row axis."""
        steps = self.k.shape[0]
        if not 0 <= i < steps:
            raise IndexError(f"i is {i}; the trace has steps 0..{steps - 1}")
        return SpecStep(
            k=self.k[i].flatten(1, 2),
            v=self.v[i].flatten(1, 2),
            commit_lens=self.commit_lens[i],
            block_lens=self.block_lens[i],
            start_pos=self.start_pos[i],
            tokens=self.tokens[i],
        )

    def geometry(self, page_size: int = 16):
        """Sizes of a pool that holds every position of every request: see :meth:`loc_2d` for its pages."""
        from .geometry import Geometry

        _, layers, requests, width, heads, head_dim = self.k.shape
        longest = int((self.start_pos + width).max())
        pages = 1 + requests * -(-longest // page_size)
        return Geometry(layers, heads, head_dim, page_size=page_size, pages=pages)

    def loc_2d(self, i: int, page_size: int = 16) -> torch.Tensor:
        """Slots of step i's block, int64 (B, W); -1 in padding rows.

        Page n of request b is page ``1 + n*B + b`` of the pool: the requests grow side by side, so their pages
        interleave, and page 0 stays free for the padding sink.
        """
        requests, width = self.draft_tokens.shape[1:]
        row = torch.arange(width)
        position = self.start_pos[i].long()[:, None] + row
        page = 1 + position // page_size * requests + torch.arange(requests)[:, None]
        slot = page * page_size + position % page_size
        return slot.where(row < self.block_lens[i][:, None], -1)


def data_dir() -> Path:
    """The folder of the sample files: KVLAB_DATA if set, else data/ of the clone."""
    override = os.environ.get("KVLAB_DATA")
    return Path(override) if override else Path(__file__).resolve().parent.parent / "data"


def load_kv() -> KVSample:
    """K and V of one text: k and v (layers, tokens, heads, head_dim) bf16. See KVSample."""
    tensors, meta = _read(KV_FILE)
    return KVSample(
        **tensors,
        layer_ids=tuple(json.loads(meta["layer_ids"])),
        tokens=json.loads(meta["tokens"]),
        text=meta["text"],
    )


def load_trace() -> SpecTrace:
    """A speculative-decoding trace: k and v (S, layers, B, W, heads, head_dim) bf16. See SpecTrace."""
    tensors, meta = _read(TRACE_FILE)
    return SpecTrace(
        **tensors,
        layer_ids=tuple(json.loads(meta["layer_ids"])),
        prompts=json.loads(meta["prompts"]),
        texts=json.loads(meta["texts"]),
        tokens=json.loads(meta["tokens"]),
    )


def _read(filename: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """All tensors and the metadata of one safetensors file."""
    path = data_dir() / filename
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing. The samples are in a clone of the repository, not in an installed copy: "
            "clone it and run `pip install -e .` there, or set KVLAB_DATA to its data folder."
        )
    from safetensors import safe_open  # here, so that importing kvlab needs only torch and numpy

    with safe_open(path, framework="pt") as file:
        names = file.keys()
        return {name: file.get_tensor(name) for name in names}, file.metadata()
