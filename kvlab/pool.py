"""KVPool: a layout with memory behind it, and the three primitives on it under the names that engines use."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from . import checks, move, regions
from .backends import default_device, operations
from .formats import MXFP8, format_name, payload_dtype
from .layout import Layout


class KVPool:
    """K and V of every layer, in any layout and format.

    Parameters
    ----------
    layout : Layout
        From :func:`kvlab.token_major`, :func:`kvlab.page_major`, :func:`kvlab.head_major` or a builder of your own.
    device : torch.device or str, optional
        The GPU where kernels compile for one, else the CPU.

    Attributes
    ----------
    layout : Layout
    buffers : dict of str to Tensor
        The raw bytes, ``(nbytes,)`` uint8, zero-filled: a scale that was never written is 2^-127, never NaN.

    Examples
    --------
    >>> import torch, kvlab
    >>> g = kvlab.Geometry(layers=2, heads=2, head_dim=64, page_size=4, pages=16)
    >>> pool = kvlab.KVPool(kvlab.page_major(g, torch.bfloat16))
    >>> k = v = torch.ones(3, 2, 64, dtype=torch.bfloat16, device=pool.device)
    >>> pool.commit(torch.tensor([5, 6, 9], device=pool.device), k, v, layer=0)
    >>> bool((pool.gather(torch.tensor([6], device=pool.device), layer=0)[0] == 1).all())
    True
    """

    def __init__(self, layout: Layout, device=None):
        device = torch.device(device) if device is not None else default_device()
        self._set(layout, {name: zeroed(size, device) for name, size in layout.buffers.items()})

    def _set(self, layout: Layout, buffers: dict[str, torch.Tensor]) -> None:
        self.layout = layout
        self.buffers = buffers
        self.device = next(iter(buffers.values())).device
        self.dtype = payload_dtype(layout.format)
        self._cells: dict = {}

    @classmethod
    def adopt(cls, k_tensors, v_tensors, k_scales=None, v_scales=None, head_major: bool = False, page_size: int = 1):
        """Wrap the K/V tensors of a live engine, zero-copy; see :func:`kvlab.adopt.adopt_tensors`."""
        from .adopt import adopt_tensors

        return cls.over(*adopt_tensors(k_tensors, v_tensors, k_scales, v_scales, head_major, page_size))

    @classmethod
    def over(cls, layout: Layout, buffers: dict[str, torch.Tensor]):
        """A pool on buffers that exist already: 1-D uint8 tensors of the sizes that ``layout`` names, not checked."""
        pool = cls.__new__(cls)
        pool._set(layout, buffers)
        return pool

    def cells(self, field: str):
        """What a kernel needs to address ``field``; see :class:`kvlab.kernels.addressing.Cells`."""
        if field not in self._cells:
            from .kernels.addressing import cells_of

            self._cells[field] = cells_of(self.layout.fields[field], self.buffers)
        return self._cells[field]

    # ------------------------------------------------------------------------------------------------ primitives

    def commit(
        self, loc, k, v, *, layer=None, commit_lens=None, row_mask=None, k_scale=None, v_scale=None, check: bool = True
    ) -> None:
        """Write rows of K and V into slots: one launch for K and V and all layers.

        Parameters
        ----------
        loc : int32 or int64 tensor, ``(N,)`` or ``(B, W)``
            Slot of each row, any strides. Rows of slot 0 (the padding sink) and of negative slots are skipped.
        k, v : tensors, ``(N, heads, head_dim)`` and ``(N, heads, v_head_dim)``, N = B*W for 2-D loc
            ``(layers, N, heads, …)`` where ``layer`` is None. bf16, fp16, fp32, e4m3 or e5m2, any strides; never
            modified. Rows of another dtype than the pool's are rounded to nearest even.
        layer : int, object with ``.layer_id``, or None
            None: all layers.
        commit_lens : int tensor ``(B,)``, optional
            Prefix-valid: of block b only the first ``commit_lens[b]`` rows are written, 0 … W.
        row_mask : bool tensor of loc's shape or ``(N,)``, optional
            Rows that are False are skipped.
        k_scale, v_scale : optional
            Plain FP8 pools: float or 0-d tensor; rows are divided by it in fp32, saturated, then rounded. Rows that
            are FP8 already are moved as they are. MXFP8 pools: UE8M0 scales of E4M3 rows, uint8 or float8_e8m0fnu
            ``(N, heads, dim/32)``; without them bf16, fp16 or fp32 rows are quantised in the commit.
        check : bool
            False skips the checks that read values (they sync a GPU); out-of-range slots are then skipped by the
            kernel, and two rows for one slot race.

        Raises
        ------
        IndexError
            A written row's slot is at or beyond ``slots``; a layer that the pool lacks.
        ValueError
            Shapes or devices that do not fit, commit_lens outside 0 … W, one slot for two written rows.
        TypeError
            Dtypes that are not supported. In every case nothing was written.
        """
        g = self.layout.geometry
        first, layers = checks.layer_range(layer, g.layers)
        given = loc
        loc = checks.slots_2d("loc", loc, self.device)
        k, v = checks.source_rows(g, self.device, layer, layers, loc.numel(), k, v)
        if commit_lens is not None:
            checks.commit_lens_ok(commit_lens, loc, given.dim(), check)
        if row_mask is not None:
            row_mask = checks.row_mask_2d(row_mask, loc, tuple(given.shape))
        k_scale, v_scale = checks.commit_scales(
            self.layout.format, g, self.device, layer, layers, k, v, loc.numel(), k_scale, v_scale, check
        )
        if check:
            checks.chosen_ok(loc, commit_lens, row_mask, g.slots)
        operations(self.device).commit_rows(self, first, loc, k, v, commit_lens, row_mask, k_scale, v_scale)

    def gather(self, loc, *, layer=None, dequantize: bool = True, k_scale=None, v_scale=None):
        """Read rows back as dense tensors: one launch for K and V and all layers.

        Parameters
        ----------
        loc : int32 or int64 tensor, ``(N,)`` or ``(B, W)``
            Negative slots (padding) read as zeros; slot 0 is read like any other.
        layer : int, object with ``.layer_id``, or None for all
        dequantize : bool
            MXFP8 pools: True multiplies each block by its scale; False gives the stored E4M3 payload
            (:meth:`gather_scales` has the scales).
        k_scale, v_scale : float or 0-d tensor, optional
            Plain FP8 pools: multiplied back in fp32.

        Returns
        -------
        k, v : ``(N, heads, dim)``, or ``(layers, N, heads, dim)`` where ``layer`` is None
            Of the pool's dtype, or float32 where a scale was applied.

        Raises
        ------
        IndexError
            A slot at or beyond ``slots``.
        """
        fmt = self.layout.format
        scaled = dequantize and isinstance(fmt, MXFP8)
        if isinstance(fmt, MXFP8) and (k_scale is not None or v_scale is not None):
            raise ValueError("k_scale and v_scale: an MXFP8 pool reads its own scales; leave them out")
        factors = [
            checks.plain_scale(fmt, name, scale, None, self.device) if dequantize else None
            for name, scale in (("k_scale", k_scale), ("v_scale", v_scale))
        ]
        return self._gather(("k", "v"), loc, layer, *factors, scaled)

    def gather_scales(self, loc, *, layer=None):
        """The UE8M0 scales of rows, uint8 ``(N, heads, dim/32)`` for K and V, whatever their placement in the pool.

        With ``gather(loc, dequantize=False)`` this is what a commit of E4M3 rows takes. ValueError where the format has
        no scales; else as :meth:`gather`.
        """
        if "k_scale" not in self.layout.fields:
            raise ValueError(f"gather_scales: a {format_name(self.layout.format)} pool has no scales")
        return self._gather(("k_scale", "v_scale"), loc, layer, None, None, False)

    def _gather(self, fields, loc, layer, k_scale, v_scale, dequantize: bool):
        g = self.layout.geometry
        first, layers = checks.layer_range(layer, g.layers)
        loc = checks.slots_2d("loc", loc, self.device)
        checks.slots_in_range("loc", loc, loc >= 0, g.slots)
        k, v = operations(self.device).gather_rows(self, fields, first, layers, loc, k_scale, v_scale, dequantize)
        return (k, v) if layer is None else (k[0], v[0])

    # ------------------------------------------------------------------------------------- engine-compatible names

    def set_kv_buffer(self, layer, loc, k, v, k_scale=None, v_scale=None, dcp_kv_mask=None) -> None:
        """Commit every row of one layer, as sglang's ``KVCache.set_kv_buffer``; see :meth:`commit`."""
        self.commit(loc, k, v, layer=layer, row_mask=dcp_kv_mask, k_scale=k_scale, v_scale=v_scale)

    def set_kv_buffer_prefix_valid(self, layer, loc_2d, commit_lens, k, v, k_scale=None, v_scale=None) -> None:
        """Commit the first ``commit_lens[b]`` rows of each request's block, as sglang's method of that name.

        There it raises NotImplementedError for page-major and MXFP8 pools, and for K and V of different width; here
        every layout and format takes the same path. ``loc_2d`` is ``(B, W)``; see :meth:`commit`.
        """
        self.commit(loc_2d, k, v, layer=layer, commit_lens=commit_lens, k_scale=k_scale, v_scale=v_scale)

    def get_key_buffer(self, layer) -> torch.Tensor:
        """K of one layer, a zero-copy view: ``(slots, heads, head_dim)`` where the layout is token-major,
        ``(pages, page_size, heads, head_dim)`` page-major, ``(pages, heads, page_size, head_dim)`` head-major."""
        return self.view("k", layer)

    def get_value_buffer(self, layer) -> torch.Tensor:
        """V of one layer, a zero-copy view; shapes as :meth:`get_key_buffer`, with v_head_dim."""
        return self.view("v", layer)

    def get_kv_buffer(self, layer) -> tuple[torch.Tensor, torch.Tensor]:
        """``(get_key_buffer(layer), get_value_buffer(layer))``."""
        return self.get_key_buffer(layer), self.get_value_buffer(layer)

    def get_kv_scale_buffer(self, layer) -> tuple[torch.Tensor, torch.Tensor]:
        """UE8M0 scales of K and V of one layer, zero-copy uint8 views.

        Flat: as :meth:`get_key_buffer` with blocks for head_dim. Interleaved: ``(pages, heads, 32, 4, 4)`` for pages of
        one tile, ``(pages, heads, chunks, tiles, 32, 4, 4)`` for larger ones. Raises ValueError where there are none.
        """
        if "k_scale" not in self.layout.fields:
            raise ValueError(f"get_kv_scale_buffer: a {format_name(self.layout.format)} pool has no scales")
        return self.view("k_scale", layer), self.view("v_scale", layer)

    def move_kv_cache(self, tgt_loc, src_loc) -> None:
        """Move rows of all layers inside the pool, scales too, as if all were read first; see :func:`kvlab.copy`."""
        move.move(self, tgt_loc, src_loc)

    def get_cpu_copy(self, indices) -> move.HostCopy:
        """Rows of all layers on the host, payload and scales, in the order of ``indices`` ``(N,)``.

        The copy is compact, pinned and asynchronous where the pool is on a GPU (``copy.wait()``), and knows its own
        geometry and format. IndexError for a slot outside the pool.
        """
        return move.get_cpu_copy(self, indices)

    def load_cpu_copy(self, copy: move.HostCopy, indices) -> None:
        """Write the rows of a host copy into slots ``indices`` ``(N,)``; slot 0 and negative ones are skipped.

        ValueError, naming the difference, for a copy of another geometry, format or scale placement; else the errors of
        :func:`kvlab.copy`. Nothing was written then.
        """
        move.load_cpu_copy(self, copy, indices)

    def get_contiguous_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """``(ptrs, lens, item_lens)`` of the regions that hold K and V, for a byte transfer of whole pages.

        An item is what one page occupies in its region; page p starts at ``ptr + p * item_len``. Parts whose
        pages lie in one item share a region: page-major is one, scales inside; token- and head-major have one per
        layer and field. ValueError for pages that no region describes (views of a larger tensor).
        """
        return regions.buf_infos(self, scales=False)

    def get_kv_scale_buf_infos(self) -> tuple[list[int], list[int], list[int]]:
        """The same for scales: empty where the format has none, or where they travel inside the page's run."""
        return regions.buf_infos(self, scales=True)

    def get_kv_size_bytes(self) -> tuple[int, int]:
        """Bytes of K and of V, each with its scales; padding is left out, a tile's unused columns too."""
        sizes = dict.fromkeys(("k", "v"), 0)
        for name, field in self.layout.fields.items():
            sizes[name[0]] += prod(field.extents.values()) * field.item
        return sizes["k"], sizes["v"]

    def view(self, field: str, layer) -> torch.Tensor:
        """One field of one layer as a zero-copy strided view, its axes as the layout nests them."""
        f = self.layout.fields[field]
        layer, _ = checks.layer_range(layer if layer is not None else -1, self.layout.geometry.layers)
        dtype = torch.uint8 if field.endswith("_scale") else self.dtype
        axes = [a for a in f.axes if a.coordinate != "layer"]
        shape, stride = [a.size for a in axes], [a.stride // f.item for a in axes]
        offset = (f.offset + layer * f.layer_stride) // f.item
        buffer = self.buffers[f.buffer_of(layer)].view(dtype)
        return buffer.as_strided(shape, stride, buffer.storage_offset() + offset)

    def __repr__(self) -> str:
        return f"KVPool on {self.device}\n{self.layout}"


def zeroed(nbytes: int, device: torch.device) -> torch.Tensor:
    """Zeroed bytes. On a CPU numpy's: the system gives their memory when they are first written, torch's at once."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(nbytes, dtype=np.uint8))
    return torch.zeros(nbytes, dtype=torch.uint8, device=device)
