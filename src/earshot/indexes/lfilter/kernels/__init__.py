"""Kernels of LFilter."""
