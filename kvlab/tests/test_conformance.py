"""check_layout: kvlab's own layouts pass, and each kind of broken layout or operation is named by coordinate."""

import re
from dataclasses import replace

import pytest
import torch

import kvlab
from kvlab import reference
from kvlab.backends import reference_backend
from kvlab.testing import check_layout
from kvlab.testing.conformance import CASES
from kvlab.testing.operations import OPERATIONS


@pytest.mark.parametrize("builder", [kvlab.token_major, kvlab.page_major, kvlab.head_major])
def test_kvlabs_own_layouts_pass(builder):
    report = check_layout(builder)
    assert report.refused == [] and len(report.passed) == len(CASES)
    ran = {name for _, _, names in report.passed for name in names}
    assert ran == set(OPERATIONS)
    assert str(report).startswith(f"{builder.__name__}: every operation is right on {len(CASES)} pools")


def test_every_layout_of_the_zoo_is_soundly_described():
    from kvlab import zoo
    from kvlab.testing.described import described

    for builder in zoo.ALL.values():
        for fmt, geometry in CASES:
            assert described(builder(geometry, fmt), geometry, fmt) is None, (builder.__name__, fmt)


def test_a_refused_format_is_named_and_no_failure():
    def bf16_only(geometry, fmt):
        if fmt != torch.bfloat16:
            raise ValueError("mine: only bf16")
        return kvlab.page_major(geometry, fmt)

    with reference_backend():
        report = check_layout(bf16_only)
    assert len(report.passed) == 2 and len(report.refused) == len(CASES) - 2
    assert "float16" in str(report) and "refused by the layout: ValueError: mine: only bf16" in str(report)


def test_a_builder_that_refuses_all_fails():
    def nothing(geometry, fmt):
        raise NotImplementedError("later")

    with pytest.raises(AssertionError, match="refuses every pool; bfloat16: NotImplementedError: later"):
        check_layout(nothing)
    with pytest.raises(TypeError, match="must be a function"):
        check_layout("page_major")


def changed(name: str, **changes):
    """page_major with one field changed."""

    def broken(geometry, fmt):
        layout = kvlab.page_major(geometry, fmt)
        fields = dict(layout.fields)
        fields[name] = replace(fields[name], **{k: f(fields[name]) for k, f in changes.items()})
        return replace(layout, fields=fields)

    return broken


def steps(coordinate: str, digit: int, step):
    """The axes with one stride changed."""
    return lambda f: tuple(
        replace(a, stride=step(a.stride)) if (a.coordinate, a.digit) == (coordinate, digit) else a for a in f.axes
    )


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (
            changed("v", offset=lambda f: 0),
            r"byte 0 of 'raw' belongs to v layer 0 slot 0 head 0 dim 0 and to field 'k'",
        ),
        (changed("v", offset=lambda f: f.offset + (1 << 20)), r"field 'v' reaches from byte \d+ to \d+, but 'raw' has"),
        (changed("k", item=lambda f: 1), r"field 'k' has items of 1 bytes; this format stores 2"),
        (changed("k", offset=lambda f: 1), r"its offset 1 is no multiple of its 2-byte items"),
        (changed("k", buffer=lambda f: "none"), r"field 'k' of layer 0 lies in 'none'; the buffers are \['raw'\]"),
        (changed("k", extents=lambda f: {**f.extents, "slot": 3}), r"has the extents .*; the geometry asks for"),
        (lambda g, fmt: None, r"returned a NoneType, not a kvlab.Layout"),
        (lambda g, fmt: kvlab.page_major(replace(g, pages=g.pages + 1), fmt), r"not what was asked for"),
    ],
)
def test_a_broken_description_is_named(builder, words):
    with pytest.raises(AssertionError, match=words):
        check_layout(builder)


def test_scales_that_are_called_interleaved_must_lie_in_tiles():
    def flat_in_disguise(geometry, fmt):
        return replace(kvlab.token_major(geometry, kvlab.MXFP8("flat")), format=fmt)

    def only_tiles(geometry, fmt):
        if fmt != kvlab.MXFP8("interleaved"):
            raise ValueError("other formats are not at stake here")
        return flat_in_disguise(geometry, fmt)

    with pytest.raises(AssertionError, match=r"no 128x4 tiles.*k_scale layer 0 slot 1 head 0 dim 0 lies at byte 4, "):
        check_layout(only_tiles)


def write_field_with(change):
    """The reference's write with its arguments changed, for one operation that writes wrongly."""
    real = reference.write_field

    def broken(pool, name, first_layer, slots, values):
        if pool.layout.name == "token_major":
            return real(pool, name, first_layer, slots, values)
        return real(pool, *change(name, first_layer, slots, values))

    return broken


@pytest.mark.parametrize(
    ("change", "cell"),
    [
        (
            lambda name, layer, slots, x: (name, layer, slots.flip(0), x),
            r"[kv](_scale)? layer \d slot \d+ head \d dim 0",
        ),
        (lambda name, layer, slots, x: (name, layer, slots, x.flip(2)), r"k layer \d slot \d+ head \d dim 0 byte \d"),
        (lambda name, layer, slots, x: (name, layer, slots[:-1], x[:, :-1]), r"k layer \d slot 19 head 0 dim 0"),
    ],
)
def test_an_operation_that_writes_wrongly_is_named(monkeypatch, change, cell):
    monkeypatch.setattr(reference, "write_field", write_field_with(change))
    with reference_backend(), pytest.raises(AssertionError) as caught:
        check_layout(kvlab.page_major)
    words = str(caught.value)
    assert words.startswith("check_layout(page_major): bfloat16, 2 layers x 3 heads x 48, 4 pages of 5: commit of fp32")
    assert re.search(rf"byte [\d,]+ of 'raw' holds 0x..? and should hold 0x..?.*: {cell}", words), words


def test_forgotten_scales_are_named(monkeypatch):
    real = reference.write_field

    def without_scales(pool, name, *rest):
        if pool.layout.name == "token_major" or not name.endswith("_scale"):
            real(pool, name, *rest)

    monkeypatch.setattr(reference, "write_field", without_scales)
    with reference_backend(), pytest.raises(AssertionError, match=r"mxfp8\(flat.*: commit of fp32 rows.*k_scale layer"):
        check_layout(kvlab.page_major)


def test_an_operation_that_raises_is_named(monkeypatch):
    def refuse(self, layer, *rest, **options):
        raise NotImplementedError("assumes 3-D contiguous + row_dim")

    monkeypatch.setattr(kvlab.KVPool, "set_kv_buffer_prefix_valid", refuse)
    words = "set_kv_buffer_prefix_valid raised NotImplementedError: assumes 3-D"
    with reference_backend(), pytest.raises(AssertionError, match=words):
        check_layout(kvlab.head_major)
