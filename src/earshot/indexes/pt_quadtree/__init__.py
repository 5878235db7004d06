"""The PT-Quadtree: a quadtree over pivotal tokens."""
