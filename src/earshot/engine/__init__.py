"""The engine: events in, updates out."""
