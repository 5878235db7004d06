"""What flows in and out: regions, subscriptions, messages, events, updates, and their arrays."""
