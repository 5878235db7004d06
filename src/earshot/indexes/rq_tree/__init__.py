"""The RQ-Tree, a rival of [VLDBJ15]."""
