"""Kernels of the inverted lists."""
