"""The pivotal-token quadtree of [CIKM15]."""
