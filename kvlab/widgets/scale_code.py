"""The state of a ScaleExplorer as code: the lines that commit that page and read that block, and a test of them."""

from __future__ import annotations

from ..formats import BLOCK
from .scale_page import FIRST, PAGE, Block, geometry, sample

_KEYS = ("kind", "layer", "field", "token", "head", "block", "element")


def checked_injection(inject: dict | None) -> dict | None:
    """The same dict if it names one element of the sample; ValueError if not."""
    if inject is None:
        return None
    layers, tokens, heads, head_dim = sample().k.shape
    legal = (("nan", "inf", "zero"), range(layers), ("k", "v"), range(tokens), range(heads), range(head_dim // BLOCK))
    if not isinstance(inject, dict) or sorted(inject) != sorted(_KEYS):
        raise ValueError(f"state: inject={inject!r} needs the keys {', '.join(_KEYS)}")
    for key, values in zip(_KEYS, (*legal, range(BLOCK)), strict=True):
        if inject[key] not in values:
            raise ValueError(f"state: inject[{key!r}]={inject[key]!r} is not one of {values}")
    return dict(inject)


def python(s: dict, block: Block) -> str:
    """Lines that commit the page and print the block."""
    return "\n".join([*_imports(), "", *_commit(s), *_look(s), "print(byte, scale, payload.tolist())", "print(read)"])


def pytest(s: dict, block: Block) -> str:
    """The same lines as a test: what was shown, and the whole page against kvlab.formats.quantize."""
    field, i = s["field"], "kv".index(s["field"])
    checks = [
        f"assert (byte, scale) == ({block.buffer_byte}, {block.scale})",
        f"assert payload.tolist() == {block.payload.tolist()}",
        "want = [quantize(x, {!r}) for x in (k, v)]".format(s["rounding"]),
        "got = pool.gather(slots, layer=0, dequantize=False)",
        "for i in range(2):",
        "    assert torch.equal(got[i].view(torch.uint8), want[i][0].view(torch.uint8))",
        "    assert torch.equal(pool.gather_scales(slots, layer=0)[i], want[i][1])",
    ]
    row, start = s["token"] % PAGE, BLOCK * s["block"]
    checks.append(
        f"assert torch.equal(read, dequantize(*want[{i}])[{row}, {s['head']}, {start}:{start + BLOCK}])"
        if scale_is_number(block)
        else "assert read.isnan().all()"
    )
    name = f"def test_scale_of_{field}_layer{s['layer']}_token{s['token']}_head{s['head']}_block{s['block']}():"
    body = [*_commit(s), *_look(s), *checks]
    imports = [*_imports(), "from kvlab.formats import dequantize, quantize"]
    return "\n".join([*imports, "", "", name, *(f"    {line}" for line in body)]) + "\n"


def scale_is_number(block: Block) -> bool:
    """Whether the block reads back as numbers."""
    return block.scale != 255


def _imports() -> list[str]:
    return ["import torch", "", "import kvlab", "from kvlab import samples"]


def _commit(s: dict) -> list[str]:
    g, start = geometry(), s["token"] // PAGE * PAGE
    stop = min(sample().k.shape[1], start + PAGE)
    lines = [
        "text = samples.load_kv()",
        f"g = kvlab.Geometry(layers=1, heads={g.heads}, head_dim={g.head_dim}, page_size={PAGE}, pages=2)",
        f'pool = kvlab.KVPool(kvlab.token_major(g, kvlab.MXFP8("interleaved", rounding="{s["rounding"]}")))',
        f"k, v = (x[{s['layer']}, {start}:{stop}].to(pool.device).clone() for x in (text.k, text.v))",
    ]
    i = s["inject"]
    if i and i["layer"] == s["layer"] and start <= i["token"] < stop:
        first = BLOCK * i["block"]
        at = f"{first}:{first + BLOCK}" if i["kind"] == "zero" else str(first + i["element"])
        value = "0" if i["kind"] == "zero" else f'float("{i["kind"]}")'
        lines.append(f"{i['field']}[{i['token'] - start}, {i['head']}, {at}] = {value}")
    return [
        *lines,
        f"slots = torch.arange({FIRST}, {FIRST + stop - start}, device=pool.device)",
        "pool.commit(slots, k, v, layer=0)",
    ]


def _look(s: dict) -> list[str]:
    row, start, i = s["token"] % PAGE, BLOCK * s["block"], "kv".index(s["field"])
    here = f"[{row}, {s['head']}, {start}:{start + BLOCK}]"
    return [
        f'buffer, byte = pool.layout.locate("{s["field"]}_scale", 0, {FIRST + row}, {s["head"]}, {s["block"]})',
        "scale = int(pool.buffers[buffer][byte])",
        f"payload = pool.gather(slots, layer=0, dequantize=False)[{i}]{here}.view(torch.uint8)",
        f"read = pool.gather(slots, layer=0)[{i}]{here}",
    ]
