"""Trie-Qd of [VLDBJ15]: an ordered keyword trie with a quadtree for each set of keywords."""
