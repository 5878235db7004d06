"""Seeded generators and readers of real data, for tests, benchmarks and the demo."""
