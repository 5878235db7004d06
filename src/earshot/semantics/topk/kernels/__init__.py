"""Kernels of top-k over a window."""
