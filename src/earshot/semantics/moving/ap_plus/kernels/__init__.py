"""Kernels of the AP+-Tree."""
