"""LFilter: the MBRTrie and the PT-Quadtree over one numbering, chosen from by cost."""
