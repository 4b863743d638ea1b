"""Checks for code that others write against kvlab: :func:`check_layout` for a layout of your own."""

from .conformance import Report, check_layout

__all__ = ["Report", "check_layout"]
