"""The IQ-Tree, a rival of [VLDBJ15]."""
