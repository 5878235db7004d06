"""From canonical Arrow batches to the flat arrays that indexes work on.

Every way into the engine comes through here: files, tables and single objects alike, so the same
row is accepted or refused, and means the same, everywhere. Columns are encoded as a whole; only
rows with expressions or geometries are visited one by one. Refused rows are returned with what was
wrong and where; the others are encoded as if those had not been there.
"""

from earshot.encoding.columns import NEVER_US, NO_TIME_US, row_numbers
from earshot.encoding.forms import REGIONS, Form
from earshot.encoding.messages import EncodedMessages, encode_messages, take_encoded
from earshot.encoding.singles import (
    encode_message,
    encode_position,
    encode_region,
    encode_subscription,
    is_usual_id,
)
from earshot.encoding.subscriptions import (
    EncodedMoves,
    EncodedSubscriptions,
    encode_moves,
    encode_subscriptions,
)

__all__ = [
    "NEVER_US",
    "NO_TIME_US",
    "REGIONS",
    "EncodedMessages",
    "EncodedMoves",
    "EncodedSubscriptions",
    "Form",
    "encode_message",
    "encode_messages",
    "encode_moves",
    "encode_position",
    "encode_region",
    "encode_subscription",
    "encode_subscriptions",
    "is_usual_id",
    "row_numbers",
    "take_encoded",
]
