"""Numba kernels: flat arrays in, flat arrays out; a file for each room or structure above."""
