"""Readings of a tensor as sentences: "K of layer 3 in page_major of 8 layers: 64 pages of 16 slots, …"."""

from __future__ import annotations

from .recognise import Reading
from .stride_words import FIELDS, counted


def sentences(fits) -> list[tuple[str, Reading]]:
    """Sentences; readings that differ in layout, head_dim or format alone share one."""
    groups: dict[str, tuple[list[dict], Reading]] = {}
    for fit, r in fits:
        same = {k: v for k, v in fit.items() if k not in ("layout", "head_dim", "other_head_dim", "formats")}
        groups.setdefault(f"{same}, {r.symmetric}", ([], r))[0].append(fit)
    return [(_sentence(alike, r), r) for alike, r in groups.values()]


def _sentence(alike: list[dict], r: Reading) -> str:
    fit = alike[0]
    layouts = list(dict.fromkeys(f["layout"] for f in alike))
    names = listed(layouts if len(layouts) < 4 else [*layouts[:2], f"{len(layouts) - 2} other layouts"])
    what = (" and " if r.view.both else " or ").join(FIELDS[f] for f in fit["fields"])
    if fit["layers"] is None:
        where = f"{what} of one layer in {names}, where each layer has an allocation of its own"
    elif r.view.layers:
        where = f"{what} of all {counted(fit['layers'], 'layer')} in {names}"
    else:
        one = "one layer" if fit["layer"] is None else f"layer {fit['layer']}"
        where = f"{what} of {one} in {names} of {counted(fit['layers'], 'layer')}"
    slots = counted(fit["slots"], "slot")
    if fit["page_size"]:
        slots = f"{counted(fit['pages'], 'page')} of {counted(fit['page_size'], 'slot')}"
    sizes = [slots, counted(fit["heads"], "head"), f"head_dim {listed(dict.fromkeys(f['head_dim'] for f in alike))}"]
    if not r.symmetric:
        whose = "K" if fit["fields"][0].startswith("v") else "V"
        sizes.append(f"head_dim of {whose} {listed(dict.fromkeys(f['other_head_dim'] for f in alike))}")
    formats = dict.fromkeys(name for f in alike for name in f["formats"])
    axes = f", axes ({', '.join(fit['axes'])})" if len(fit["axes"]) < 6 else ""
    return f"{where}: {', '.join(sizes)}, {listed(formats)}{axes}"


def listed(values) -> str:
    words = [str(v) for v in values]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
