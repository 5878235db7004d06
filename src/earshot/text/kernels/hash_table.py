"""The vocabulary: a hash table of tokens.

Arrays of a vocabulary (``VocabularyArrays``), with room to grow beyond the counted tokens:

==================  ======================  =====================================================
``token_bytes``     uint8 (n_bytes,)        UTF-8 of all tokens, one after the other
``token_offsets``   int64 (n_tokens + 1,)   bytes of token t are [t]:[t+1]; token 0 is empty
``slots``           uint64 (2**k, 2)        open addressing, linear probing; 0, 0 is a free slot
``frequencies``     int64 (n_tokens,)       documents that hold the token
==================  ======================  =====================================================

A slot is 16 bytes, so that a probe touches one cache line. Its second word is
``tag << 32 | token id``, where the tag's top byte is ``min(length, 255)``. Up to 11 bytes a token
is stored whole: bytes 0-7 in the first word, bytes 8-10 in the tag. A longer one has its hash in
the first word and is compared byte by byte in ``token_bytes``. Both ways the answer is exact.
Words are little-endian, as on every processor that Numba compiles for.
"""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import kernel
from earshot.kernels.processor import prefetch
from earshot.text.kernels.utf8 import U0, U24, U29, U32, load_word

_SHORT_BYTES = 11
# Bits of a token's bytes 0-7 and 8-10, by its length; the first also of any text's first bytes.
_WORD_MASKS = np.array([(1 << 8 * min(n, 8)) - 1 for n in range(_SHORT_BYTES + 1)], np.uint64)
_TAIL_MASKS = np.array([(1 << 8 * max(n - 8, 0)) - 1 for n in range(_SHORT_BYTES + 1)], np.uint64)

_LOW_HALF = np.uint64(0xFFFFFFFF)

_MULTIPLIER_A = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_B = np.uint64(0xD6E8FEB86659FD93)


@kernel
def mix(word, more):
    """Hash two words to 64 well mixed bits."""
    h = (word ^ (more * _MULTIPLIER_B)) * _MULTIPLIER_A
    h = (h ^ (h >> U32)) * _MULTIPLIER_B
    return h ^ (h >> U29)


@kernel
def hash_long(data, start, length):
    """Hash a token of more than eight bytes."""
    h = np.uint64(length)
    for i in range(0, length - 8, 8):
        h = mix(load_word(data, start + i), h)
    return mix(load_word(data, start + length - 8), h)


@kernel
def make_keys(data, spans, n, slots, keys):
    """Write first word, tag and hash of each token, and prefetch its slot.

    ``data`` has padding behind the last token.
    """
    mask = len(slots) - 1
    for k in range(n):
        start, length = np.int64(spans[k] >> U32), np.int64(spans[k] & _LOW_HALF)
        if length <= _SHORT_BYTES:
            # Without further branches: no processor can predict the lengths of words.
            word = load_word(data, start) & _WORD_MASKS[length]
            tag = load_word(data, start + 8) & _TAIL_MASKS[length] | np.uint64(length) << U24
            token_hash = mix(word, tag)
        else:
            word = token_hash = hash_long(data, start, length)
            tag = np.uint64(min(length, 255)) << U24
        prefetch(slots, np.int64(token_hash) & mask)
        keys[k, 0] = word
        keys[k, 1] = tag
        keys[k, 2] = token_hash


@kernel
def same_bytes(data, start, length, token_bytes, token_start, token_stop):
    """Whether two tokens of more than eight bytes are equal; reads within them only."""
    if token_stop - token_start != length:
        return False
    for i in range(0, length - 8, 8):
        if load_word(data, start + i) != load_word(token_bytes, token_start + i):
            return False
    return load_word(data, start + length - 8) == load_word(token_bytes, token_stop - 8)


@kernel
def resolve(data, spans, keys, n, grow, vocabulary, n_tokens, found):
    """Write the id of each token; unknown ones are added if ``grow``, else they get 0.

    With ``grow`` there must be room for all of them. Returns the new number of tokens.
    """
    token_bytes, token_offsets, slots, frequencies = vocabulary
    mask = len(slots) - 1
    for k in range(n):
        word, tag = keys[k, 0], keys[k, 1]
        slot = np.int64(keys[k, 2]) & mask
        is_long = tag >> U24 > _SHORT_BYTES
        while True:
            held = slots[slot, 1]
            if held == U0:
                break
            if slots[slot, 0] == word and held >> U32 == tag:
                if not is_long:
                    break
                start, length = np.int64(spans[k] >> U32), np.int64(spans[k] & _LOW_HALF)
                token = np.int64(held & _LOW_HALF)
                begin, end = token_offsets[token], token_offsets[token + 1]
                if same_bytes(data, start, length, token_bytes, begin, end):
                    break
            slot = (slot + 1) & mask
        if held == U0 and grow:
            start, length = np.int64(spans[k] >> U32), np.int64(spans[k] & _LOW_HALF)
            begin = token_offsets[n_tokens]
            for j in range(length):
                token_bytes[begin + j] = data[start + j]
            token_offsets[n_tokens + 1] = begin + length
            frequencies[n_tokens] = 0
            held = tag << U32 | np.uint64(n_tokens)
            slots[slot, 0] = word
            slots[slot, 1] = held
            n_tokens += 1
        found[k] = np.int32(held & _LOW_HALF)
    return n_tokens


@kernel
def find_tokens(data, spans, grow, vocabulary, n_tokens, found):
    """Look up tokens given by their spans in padded bytes; see ``resolve``."""
    keys = np.empty((len(spans), 3), np.uint64)
    make_keys(data, spans, len(spans), vocabulary.slots, keys)
    return resolve(data, spans, keys, len(spans), grow, vocabulary, n_tokens, found)


@kernel
def copy_slots(slots, larger):
    """Enter all tokens of one hash table into an empty larger one."""
    mask = len(larger) - 1
    for i in range(len(slots)):
        word, held = slots[i, 0], slots[i, 1]
        if held == U0:
            continue
        tag = held >> U32
        token_hash = word if tag >> U24 > _SHORT_BYTES else mix(word, tag)
        slot = np.int64(token_hash) & mask
        while larger[slot, 1] != U0:
            slot = (slot + 1) & mask
        larger[slot, 0] = word
        larger[slot, 1] = held


@kernel
def count_documents(ids, frequencies):
    """Count each id once per occurrence; ids are distinct within a document."""
    for i in range(len(ids)):
        frequencies[ids[i]] += 1
