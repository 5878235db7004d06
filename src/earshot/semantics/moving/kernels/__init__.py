"""Kernels of moving subscribers."""
