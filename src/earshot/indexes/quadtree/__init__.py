"""What the quadtrees of [CIKM15] and [VLDBJ15] share: cells, nodes, lists of numbers, room."""
