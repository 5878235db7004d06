"""Cutting subscriptions into shards, and routing messages to them."""
