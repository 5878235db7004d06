"""The MBRTrie: a trie of keywords with the bounding box of what is below each node."""
