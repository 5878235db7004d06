"""The R^t family of [KDD13] and [TKDE15], and its rival, the IR-tree."""
