"""Kernels of the R-trees."""
