"""Kernels of :mod:`earshot.text`."""
