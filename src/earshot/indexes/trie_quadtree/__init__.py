"""Trie-Qd: an ordered keyword trie with a quadtree for each set of keywords."""
