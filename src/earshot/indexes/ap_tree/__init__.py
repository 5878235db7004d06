"""The AP-Tree: keywords and space partitioned in turns, as a cost model chooses."""
