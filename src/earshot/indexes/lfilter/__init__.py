"""LFilter of [CIKM15]."""
