"""The IQ-Tree: quadtree cells by a cost model, with lists of rarest keywords."""
