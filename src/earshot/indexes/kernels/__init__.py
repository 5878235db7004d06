"""Kernels that several structures share."""
