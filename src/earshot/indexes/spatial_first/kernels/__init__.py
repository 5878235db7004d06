"""Kernels of the packed R-tree."""
