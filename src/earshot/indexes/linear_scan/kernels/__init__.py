"""Kernels of the scan."""
