"""Reading a case file: every tensor and every number is checked before memory is taken for it."""

from __future__ import annotations

import json

import torch

from .. import checks
from ..layout import Layout
from ..pool import KVPool
from .case_checks import CaseError, check_call, parse_layout
from .page_bytes import PageBytes
from .recorded import CALL, Case

FORMAT = "1"  # of the file; another one is refused
DTYPES = {"U8", "I32", "I64", "BOOL", "BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2"}  # safetensors' names


def read_case(path: str, file) -> Case:
    """The case in an open safetensors file; ValueError and its like say what is wrong with it."""
    header = file.metadata() or {}
    if "kvlab_case" not in header:
        raise ValueError("a safetensors file, but no kvlab case: its metadata has no 'kvlab_case'")
    if header["kvlab_case"] != FORMAT:
        raise CaseError(
            f"{path}: of case format {header['kvlab_case']!r:.20}, and this kvlab reads {FORMAT!r}; open it with the "
            "version of kvlab that saved it, or save the case again with this one"
        )
    if missing := {"layout", "about"} - set(header):
        raise ValueError(f"its metadata lacks {', '.join(sorted(missing))}")
    layout = parse_layout(_json("layout", header["layout"]))
    layer, note, saved_with = _about(_json("about", header["about"]), layout)
    shapes = _shapes(file, layout)
    pages = None
    if "pages" in shapes:
        pages = _checked_pages(file.get_tensor("pages"), layout, shapes)
    take = None if pages is None else PageBytes(layout, pages)
    for name, shape in shapes.items():
        buffer = name.partition("/")[2]
        want = buffer and (layout.buffers[buffer] if take is None else take.nbytes(buffer))
        if buffer and shape != [want]:
            raise ValueError(f"tensor {name!r} has shape {shape}; the layout asks for {want:,} bytes")
    pool = _pool(layout, file, "pool", take)
    before = _pool(layout, file, "before", take) if any(n.startswith("before/") for n in shapes) else None
    call = {name: file.get_tensor(name).clone() if name in shapes else None for name in CALL}
    for name in ("k_scale", "v_scale"):
        if call[name] is not None and call[name].dtype == torch.float64:
            call[name] = float(call[name])
    check_call(layout, pool.device, layer, call)
    return Case(path=path, pool=pool, before=before, layer=layer, pages=pages, note=note, versions=saved_with, **call)


def _json(name: str, text: str):
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {name} is no JSON ({error!s:.80})") from error


def _about(about, layout: Layout) -> tuple[int | None, str, dict[str, str]]:
    """Layer, note and versions, checked."""
    if not isinstance(about, dict) or set(about) != {"layer", "note", "versions"}:
        raise ValueError("its description must hold layer, note and versions")
    layer, note, saved_with = about["layer"], about["note"], about["versions"]
    if layer is not None:
        layer = checks.layer_range(layer, layout.geometry.layers)[0]
    texts = isinstance(saved_with, dict) and all(isinstance(x, str) for x in [*saved_with, *saved_with.values()])
    if not isinstance(note, str) or not texts:
        raise ValueError("its note must be a text, and its versions a dict of texts")
    return layer, note, saved_with


def _shapes(file, layout: Layout) -> dict[str, list[int]]:
    """Shape of every tensor in the file; ValueError for one that is missing, of a wrong kind, or not a case's."""
    buffers = {f"{prefix}/{name}": prefix for prefix in ("pool", "before") for name in layout.buffers}
    names = list(file.keys())
    has_before = any(n.startswith("before/") for n in names)
    missing = [n for n, prefix in buffers.items() if n not in names and (prefix == "pool" or has_before)]
    if missing:
        raise ValueError(f"tensor {missing[0]!r:.100} is missing")
    shapes = {}
    for name in names:
        if name not in buffers and name not in CALL and name != "pages":
            raise ValueError(f"tensor {name!r:.100} belongs to no case")
        one = file.get_slice(name)
        legal = {"U8"} if name in buffers else {"I64"} if name == "pages" else DTYPES
        if one.get_dtype() not in legal:
            raise ValueError(f"tensor {name!r} is {one.get_dtype()}; legal are {', '.join(sorted(legal))}")
        shapes[name] = one.get_shape()
    return shapes


def _checked_pages(pages: torch.Tensor, layout: Layout, shapes: dict) -> list[int]:
    """The pages that are in the file, once it is known that it has bytes for so many."""
    count = layout.geometry.pages
    if pages.dim() != 1 or len(pages) > count:
        raise ValueError(f"tensor 'pages' has shape {list(pages.shape)}; legal is at most {count:,} pages")
    held = sum(shapes[f"pool/{name}"][0] if len(shapes[f"pool/{name}"]) == 1 else 0 for name in layout.buffers)
    if PageBytes.least(layout, len(pages)) > held:
        raise ValueError(f"{len(pages)} pages need more than the {held:,} bytes that its 'pool/' tensors have")
    pages = pages.tolist()
    if pages != sorted(set(pages)) or (pages and not 0 <= pages[0] <= pages[-1] < count):
        raise ValueError(f"tensor 'pages' must hold rising numbers within 0 … {count - 1:,}")
    return pages


def _pool(layout: Layout, file, prefix: str, take: PageBytes | None) -> KVPool:
    pool = KVPool(layout, device="cpu")  # its memory is the system's zeros until something is written
    for name, buffer in pool.buffers.items():
        values = file.get_tensor(f"{prefix}/{name}")
        if take is None:
            buffer.copy_(values)
        else:
            take.write(buffer, name, values)
    return pool
