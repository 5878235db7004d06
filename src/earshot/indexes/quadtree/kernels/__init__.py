"""Kernels that all quadtrees share."""
