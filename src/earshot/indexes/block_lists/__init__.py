"""The default ranked structure: lists of the tokens that a score needs, over box keys."""
