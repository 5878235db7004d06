"""No structure: every clause is examined."""
