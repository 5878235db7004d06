"""The AP+-Tree: subscriptions and live messages in one tree of keywords and space."""
