"""Numba kernels that several rooms use: flat arrays in, flat arrays out."""
