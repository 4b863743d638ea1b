"""The sample files are whole, small, and say what data/README.md says."""

import hashlib

import pytest
import torch

from kvlab import samples

LAYERS, HEADS, HEAD_DIM = 4, 3, 64
STEPS, B, W = 12, 4, 8


@pytest.fixture(scope="module")
def kv():
    return samples.load_kv()


@pytest.fixture(scope="module")
def trace():
    return samples.load_trace()


def row_mask(lens):
    """(S, B) lengths to a (S, B, W) mask of the rows below the length."""
    return torch.arange(W) < lens[..., None]


def rows_of(x):
    """(S, layers, B, W, heads, head_dim) to (S, B, W, layers * heads * head_dim)."""
    return x.permute(0, 2, 3, 1, 4, 5).flatten(3)


def test_files_match_their_sums_and_are_small():
    lines = (samples.data_dir() / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    assert set(sums) == {samples.KV_FILE, samples.TRACE_FILE}
    for name, digest in sums.items():
        blob = (samples.data_dir() / name).read_bytes()
        assert hashlib.sha256(blob).hexdigest() == digest
        assert len(blob) < 4 << 20


def test_kv_shapes_and_dtypes(kv):
    tokens = len(kv.tokens)
    assert tokens >= 256
    assert kv.k.shape == kv.v.shape == (LAYERS, tokens, HEADS, HEAD_DIM)
    assert kv.k.dtype == kv.v.dtype == torch.bfloat16
    assert kv.token_ids.shape == (tokens,) and kv.token_ids.dtype == torch.int32
    assert kv.layer_ids == (0, 9, 19, 29)
    assert "".join(kv.tokens) == kv.text


def test_trace_shapes_and_dtypes(trace):
    assert trace.k.shape == trace.v.shape == (STEPS, LAYERS, B, W, HEADS, HEAD_DIM)
    assert trace.k.dtype == trace.v.dtype == torch.bfloat16
    assert trace.draft_tokens.shape == (STEPS, B, W)
    for x in (trace.block_lens, trace.commit_lens, trace.start_pos):
        assert x.shape == (STEPS, B) and x.dtype == torch.int32
    assert trace.draft_tokens.dtype == torch.int32
    assert trace.layer_ids == (0, 9, 19, 29)
    assert len(trace.prompts) == len(trace.texts) == B


def test_values_are_finite(kv, trace):
    for x in (kv.k, kv.v, trace.k, trace.v):
        assert x.isfinite().all()


def test_lengths_are_ordered_and_mixed(trace):
    assert (trace.commit_lens >= 1).all()
    assert (trace.commit_lens <= trace.block_lens).all()
    assert (trace.block_lens <= W).all()
    assert set(trace.commit_lens.flatten().tolist()) == set(range(1, W + 1))
    assert (trace.block_lens < W).any()


def test_start_pos_advances_by_commit_lens(trace):
    assert torch.equal(trace.start_pos[1:], trace.start_pos[:-1] + trace.commit_lens[:-1])


def test_padding_rows_are_zero_and_fed_rows_are_not(trace):
    fed = row_mask(trace.block_lens)
    assert torch.equal(trace.draft_tokens >= 0, fed)
    assert (trace.draft_tokens[~fed] == -1).all()
    for x in (trace.k, trace.v):
        assert torch.equal(rows_of(x).ne(0).any(-1), fed)


def test_rejected_rows_are_real(trace):
    rejected = row_mask(trace.block_lens) & ~row_mask(trace.commit_lens)
    assert rejected.any()
    # A rejected row differs from the row that later takes its position: it belongs to another token.
    k, tokens, compared = rows_of(trace.k), trace.draft_tokens, 0
    for s, b, row in rejected.nonzero().tolist():
        if s + 1 < STEPS and row == trace.commit_lens[s, b]:  # the first rejected row: retaken by row 0
            assert tokens[s, b, row] != tokens[s + 1, b, 0]
            assert not torch.equal(k[s, b, row], k[s + 1, b, 0])
            compared += 1
    assert compared


def test_committed_rows_spell_the_generated_text(trace):
    for b in range(B):
        kept = (trace.tokens[s][b][: trace.commit_lens[s, b]] for s in range(STEPS))
        text = "".join(token for block in kept for token in block)
        assert trace.texts[b].startswith(text)  # the text ends with one more token, sampled last


def test_step_lays_blocks_one_after_another(trace):
    step = trace.step(3)
    assert step.k.shape == step.v.shape == (LAYERS, B * W, HEADS, HEAD_DIM)
    for b in range(B):
        assert torch.equal(step.k[:, b * W : (b + 1) * W], trace.k[3, :, b])
        assert torch.equal(step.v[:, b * W : (b + 1) * W], trace.v[3, :, b])
        assert len(step.tokens[b]) == step.block_lens[b]
    assert torch.equal(step.commit_lens, trace.commit_lens[3])
    assert torch.equal(step.start_pos, trace.start_pos[3])
    with pytest.raises(IndexError, match="i is 12"):
        trace.step(STEPS)


def test_missing_files_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("KVLAB_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"pip install -e \."):
        samples.load_kv()
