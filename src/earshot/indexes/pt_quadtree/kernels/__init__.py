"""Kernels of the pivotal-token quadtree."""
