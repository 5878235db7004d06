"""A packed R-tree; keywords are checked afterwards."""
