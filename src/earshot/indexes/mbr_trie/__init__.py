"""The MBRTrie of [CIKM15]."""
