"""Kernels of the IQ-Tree and the RQ-Tree."""
