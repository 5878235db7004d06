"""Kernels of the block lists."""
