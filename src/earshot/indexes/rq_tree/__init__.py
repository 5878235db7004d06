"""The RQ-Tree: rarest keywords, with a quadtree for each."""
