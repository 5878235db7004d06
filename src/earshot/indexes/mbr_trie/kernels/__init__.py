"""Kernels of the MBRTrie."""
