"""Tests of kvlab, one file for each of its files."""
