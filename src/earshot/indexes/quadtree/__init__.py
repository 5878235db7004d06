"""What quadtrees share: cells, nodes, lists of numbers, room."""
