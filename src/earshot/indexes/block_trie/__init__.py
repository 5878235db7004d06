"""The default boolean structure: a trie of rarest-first tokens over lists of box keys."""
