"""Cutting subscriptions into shards, and routing messages to the shards that can match them.

A *plan* says which shard a subscription belongs to; it is *cut* from *samples*, which tell how much
work each subscription is. *Units* tell what the shards hold, and a *router* sends messages by them.
"""
