"""What a delivery means: one matcher per semantics."""
