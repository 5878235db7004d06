"""The AP-Tree of [VLDBJ15]: keywords and space partitioned in turns, as a cost model chooses."""
