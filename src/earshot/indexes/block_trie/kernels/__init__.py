"""Kernels of the block trie."""
