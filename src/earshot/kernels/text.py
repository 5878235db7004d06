"""Kernels of :mod:`earshot.text`: fold, segment, look up and count, a batch of texts at a time.

Texts are UTF-8 bytes in one buffer. Each text is *folded* (normalised, case folded, ignorable code
points removed) into a scratch buffer, *segmented* there into token records, and the records of a
group of texts are *resolved* to token ids together. The hash slot of a token is prefetched when its
record is made, so that by the time its group is resolved the memory has arrived.

Arrays of a vocabulary (``VocabularyArrays``), with room to grow beyond the counted tokens:

==================  ======================  =====================================================
``token_bytes``     uint8 (n_bytes,)        UTF-8 of all tokens, one after the other
``token_offsets``   int64 (n_tokens + 1,)   bytes of token t are [t]:[t+1]; token 0 is empty
``slots``           uint64 (2**k, 2)        open addressing, linear probing; 0, 0 is a free slot
``frequencies``     int64 (n_tokens,)       documents that hold the token
==================  ======================  =====================================================

A slot is 16 bytes, so that a probe touches one cache line. Its second word is
``tag << 32 | token id``, where the tag's top byte is ``min(length, 255)``. Up to 11 bytes a token is
stored whole: bytes 0-7 in the first word, bytes 8-10 in the tag. A longer one has its hash in the
first word and is compared byte by byte in ``token_bytes``. Both ways the answer is exact.

Arrays of Unicode (``UnicodeArrays``): the entry of a code point is
``entries[pages[code point >> 8] * 256 + (code point & 255)]``, a uint32 of

===========  ==========================================================================
bits 0-3     class of the code point, one of the constants below
bits 4-5     how it folds: KEEP, REPLACE, DROP or CONTEXT
bits 6-13    canonical combining class of its last folded code point
bits 14-31   which replacement, for REPLACE: ``fold_bytes[fold_offsets[k]:fold_offsets[k+1]]``
===========  ==========================================================================
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from earshot.kernels.jit import inline, kernel

# Classes of code points. The first five are the characters of words, in the order of `is_word`.
LETTER = 0
DIGIT = 1
UNDERSCORE = 2
MARK = 3
NO_SPACE = 4  # letters of scripts written without spaces
SEPARATOR = 5
SYMBOL = 6
REGIONAL = 7  # regional indicators: two of them are one flag
APOSTROPHE = 8
POINT = 9  # and the comma: they stay between digits
SIGN = 10  # # and @
NOT_ASCII = 15  # first byte of a longer sequence; the entry of its code point says more

# How a code point folds.
KEEP = 0
REPLACE = 1
DROP = 2
CONTEXT = 3  # depends on its neighbours: the whole text is folded in Python

# What `analyze_texts` ran out of.
DONE = 0
NEEDS_IDS = 1
NEEDS_VOCABULARY = 2

# A group of texts is resolved when it has this many tokens: enough for the prefetched slots to
# arrive, few enough to stay in the first-level cache.
GROUP_TOKENS = 256
GROUP_BYTES = 16_384
# Loads of eight bytes may begin up to eight bytes into a token of one byte.
PADDING_BYTES = 16
# Up to here, repeats within a text are found by scanning its ids; beyond, by a hash set.
SCANNED_IDS = 24

_SHORT_BYTES = 11
_MULTIPLIER_A = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_B = np.uint64(0xD6E8FEB86659FD93)
_ID_BITS = np.uint64(0xFFFFFFFF)

# Numba makes floats of mixed signed and unsigned integers, hence these.
_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U2 = np.uint64(2)
_U3 = np.uint64(3)
_U24 = np.uint64(24)
_U29 = np.uint64(29)
_U32 = np.uint64(32)

# Eight bytes at once: adding 0x80 - c to a byte below 0x80 sets its high bit if the byte is >= c.
_EACH_BYTE = np.uint64(0x0101010101010101)
_BYTE_HIGH_BITS = np.uint64(0x8080808080808080)
_FIRST_HIGH_BIT = np.uint64(0x80)
_FROM_A = np.uint64(0x80 - ord("a"))
_ABOVE_Z = np.uint64(0x80 - ord("z") - 1)
_FROM_UPPER_A = np.uint64(0x80 - ord("A"))
_ABOVE_UPPER_Z = np.uint64(0x80 - ord("Z") - 1)
_FROM_0 = np.uint64(0x80 - ord("0"))
_ABOVE_9 = np.uint64(0x80 - ord("9") - 1)
_UNDERSCORE_BYTE = np.uint64(ord("_"))
_FROM_1 = np.uint64(0x7F)


def _ascii_classes():
    classes = np.full(256, SEPARATOR, np.uint8)
    classes[ord("a") : ord("z") + 1] = LETTER
    classes[ord("A") : ord("Z") + 1] = LETTER
    classes[ord("0") : ord("9") + 1] = DIGIT
    classes[ord("_")] = UNDERSCORE
    classes[ord("'")] = APOSTROPHE
    classes[[ord("."), ord(",")]] = POINT
    classes[[ord("#"), ord("@")]] = SIGN
    classes[128:] = NOT_ASCII
    return classes


ASCII_CLASSES = _ascii_classes()
# Bits of a token's bytes 0-7 and 8-10, by its length.
WORD_MASKS = np.array([(1 << 8 * min(n, 8)) - 1 for n in range(_SHORT_BYTES + 1)], np.uint64)
TAIL_MASKS = np.array([(1 << 8 * max(n - 8, 0)) - 1 for n in range(_SHORT_BYTES + 1)], np.uint64)


# ---- memory ---------------------------------------------------------------------------------


@intrinsic
def load_word(typingctx, array, position):
    """Eight bytes of a byte array from any position, as a little-endian integer; unchecked."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        return builder.load(address, align=1)

    return types.uint64(array, types.intp), codegen


@intrinsic
def store_word(typingctx, array, position, word):
    """Write eight bytes to any position of a byte array; unchecked."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer())
        builder.store(args[2], address, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


@intrinsic
def prefetch_slot(typingctx, slots, row):
    """Ask for the cache line of ``slots[row]``; 16-byte rows, unchecked."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        address = builder.gep(data, [builder.mul(args[1], ir.Constant(ir.IntType(64), 2))])
        address = builder.bitcast(address, ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], function_type)
        # To be read, to be kept in all caches, data.
        builder.call(function, [address, ir.Constant(i32, 0), ir.Constant(i32, 3), i32(1)])
        return context.get_dummy_value()

    return types.void(slots, types.intp), codegen


@intrinsic
def trailing_zeros(typingctx, word):
    """Number of zero bits below the lowest one bit; 64 for 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


# ---- UTF-8 ----------------------------------------------------------------------------------


@kernel
def decode(data, i, stop):
    """Return the code point at ``i`` and its width; -1 and 1 where the bytes are not UTF-8."""
    first = np.int64(data[i])
    if first < 0x80:
        return first, 1
    if first < 0xC2 or first > 0xF4:
        return -1, 1
    width = 2 + (first >= 0xE0) + (first >= 0xF0)
    if i + width > stop:
        return -1, 1
    code = first & (0x7F >> width)
    for k in range(1, width):
        byte = np.int64(data[i + k])
        if byte & 0xC0 != 0x80:
            return -1, 1
        code = code << 6 | byte & 0x3F
    # Overlong forms, surrogates, and beyond the last code point.
    if width == 3 and (code < 0x800 or 0xD800 <= code < 0xE000):
        return -1, 1
    if width == 4 and (code < 0x10000 or code > 0x10FFFF):
        return -1, 1
    return code, width


@kernel
def decode_valid(data, i):
    """Return the code point at ``i`` and its width, where the bytes are known to be UTF-8."""
    first = np.int64(data[i])
    if first < 0xE0:
        return (first & 0x1F) << 6 | np.int64(data[i + 1]) & 0x3F, 2
    if first < 0xF0:
        code = (first & 0x0F) << 12 | (np.int64(data[i + 1]) & 0x3F) << 6
        return code | np.int64(data[i + 2]) & 0x3F, 3
    code = (first & 0x07) << 18 | (np.int64(data[i + 1]) & 0x3F) << 12
    return code | (np.int64(data[i + 2]) & 0x3F) << 6 | np.int64(data[i + 3]) & 0x3F, 4


@kernel
def find_invalid_utf8(data, starts, stops, invalid):
    """Set ``invalid`` for every text whose bytes are not UTF-8."""
    for row in range(len(starts)):
        i, stop = starts[row], stops[row]
        while i < stop:
            if i + 8 <= stop and load_word(data, i) & _BYTE_HIGH_BITS == _U0:
                i += 8
                continue
            code, width = decode(data, i, stop)
            if code < 0:
                invalid[row] = True
                break
            i += width


@kernel
def survey(data, starts, stops):
    """Return the longest text in bytes, and whether any text has a byte beyond ASCII."""
    longest = 0
    for row in range(len(starts)):
        longest = max(longest, stops[row] - starts[row])
    bits = _U0
    if len(starts) > 0:
        # One pass over everything between the first and the last text.
        i, stop = starts[0], stops[-1]
        while i + 8 <= stop:
            bits |= load_word(data, i)
            i += 8
        while i < stop:
            bits |= np.uint64(data[i])
            i += 1
    return longest, bits & _BYTE_HIGH_BITS != _U0


# ---- folding --------------------------------------------------------------------------------


@kernel
def entry_of(pages, entries, code):
    """Return the entry of a code point."""
    page = np.int64(pages[code >> 8])
    return np.int64(entries[page << 8 | code & 255])


@kernel
def survey_folding(data, starts, stops, unicode, needs_context):
    """Mark the texts that need context to fold; return the longest folded text of the others.

    A text can be folded one code point at a time when every code point begins with a starter that
    never composes with what stands before it, or is a mark that never composes and whose combining
    class is not below its predecessor's. (The result then passes the quick check of UAX #15 at
    every boundary, and the normal form is unique.)
    """
    pages, entries, fold_offsets, _ = unicode
    longest = 0
    for row in range(len(starts)):
        i, stop = starts[row], stops[row]
        length = 0
        last_combining = 0
        while i < stop:
            if i + 8 <= stop and load_word(data, i) & _BYTE_HIGH_BITS == _U0:
                i += 8
                length += 8
                last_combining = 0
                continue
            if data[i] < 0x80:
                i += 1
                length += 1
                last_combining = 0
                continue
            code, width = decode(data, i, stop)
            i += width
            if code < 0:
                length += 1
                last_combining = 0
                continue
            entry = entry_of(pages, entries, code)
            kind = entry >> 4 & 3
            combining = entry >> 6 & 255
            if kind == CONTEXT or (kind == KEEP and 0 < combining < last_combining):
                needs_context[row] = True
                length = 0
                break
            last_combining = combining
            if kind == KEEP:
                length += width
            elif kind == REPLACE:
                k = entry >> 14
                length += fold_offsets[k + 1] - fold_offsets[k]
        longest = max(longest, length)
    return longest


@kernel
def lower_case(word):
    """Return eight ASCII characters in lower case."""
    upper = (word + _EACH_BYTE * _FROM_UPPER_A) ^ (word + _EACH_BYTE * _ABOVE_UPPER_Z)
    return word | (upper & _BYTE_HIGH_BITS) >> _U2


@kernel
def fold_text(data, start, stop, unicode, scratch, position):
    """Write a text that needs no context, folded, to ``scratch``; return the end."""
    pages, entries, fold_offsets, fold_bytes = unicode
    i = start
    while i < stop:
        if i + 8 <= stop:
            word = load_word(data, i)
            if word & _BYTE_HIGH_BITS == _U0:
                store_word(scratch, position, lower_case(word))
                position += 8
                i += 8
                continue
        byte = data[i]
        if byte < 0x80:
            scratch[position] = byte + 32 if 65 <= byte <= 90 else byte
            position += 1
            i += 1
            continue
        code, width = decode(data, i, stop)
        if code < 0:
            scratch[position] = 32  # bytes that are no text separate words
            position += 1
            i += 1
            continue
        entry = entry_of(pages, entries, code)
        kind = entry >> 4 & 3
        if kind == KEEP:
            for k in range(width):
                scratch[position + k] = data[i + k]
            position += width
        elif kind == REPLACE:
            replacement = entry >> 14
            for k in range(fold_offsets[replacement], fold_offsets[replacement + 1]):
                scratch[position] = fold_bytes[k]
                position += 1
        i += width
    return position


# ---- the hash table -------------------------------------------------------------------------


@kernel
def mix(word, more):
    """Hash two words to 64 well mixed bits."""
    h = (word ^ (more * _MULTIPLIER_B)) * _MULTIPLIER_A
    h = (h ^ (h >> _U32)) * _MULTIPLIER_B
    return h ^ (h >> _U29)


@kernel
def token_key(data, start, length):
    """Return first word, tag and hash of a token; ``data`` has padding behind the token."""
    if length <= _SHORT_BYTES:
        # Without further branches: lengths are what no processor can predict.
        word = load_word(data, start) & WORD_MASKS[length]
        tag = load_word(data, start + 8) & TAIL_MASKS[length] | np.uint64(length) << _U24
        return word, tag, mix(word, tag)
    h = np.uint64(length)
    for i in range(0, length - 8, 8):
        h = mix(load_word(data, start + i), h)
    h = mix(load_word(data, start + length - 8), h)
    return h, np.uint64(min(length, 255)) << _U24, h


@kernel
def make_keys(data, spans, first, last, slots, keys):
    """Write first word, tag and hash of each token, and prefetch its slot."""
    mask = len(slots) - 1
    for k in range(first, last):
        start, length = np.int64(spans[k] >> _U32), np.int64(spans[k] & _ID_BITS)
        word, tag, token_hash = token_key(data, start, length)
        prefetch_slot(slots, np.int64(token_hash) & mask)
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
def find_slot(slots, token_offsets, token_bytes, data, start, length, word, tag, token_hash):
    """Return the slot that holds the token, or the free slot where it would go."""
    mask = len(slots) - 1
    slot = np.int64(token_hash) & mask
    while True:
        held = slots[slot, 1]
        if held == _U0:
            return slot
        if slots[slot, 0] == word and held >> _U32 == tag:
            if length <= _SHORT_BYTES:
                return slot
            token = np.int64(held & _ID_BITS)
            begin, end = token_offsets[token], token_offsets[token + 1]
            if same_bytes(data, start, length, token_bytes, begin, end):
                return slot
        slot = (slot + 1) & mask


@kernel
def append_token(vocabulary, n_tokens, slot, data, start, length, word, tag):
    """Store a new token under id ``n_tokens``; there must be room."""
    token_bytes, token_offsets, slots, frequencies = vocabulary
    begin = token_offsets[n_tokens]
    for k in range(length):
        token_bytes[begin + k] = data[start + k]
    token_offsets[n_tokens + 1] = begin + length
    frequencies[n_tokens] = 0
    slots[slot, 0] = word
    slots[slot, 1] = tag << _U32 | np.uint64(n_tokens)


@kernel
def copy_slots(slots, larger):
    """Enter all tokens of one hash table into an empty larger one."""
    mask = len(larger) - 1
    for i in range(len(slots)):
        word, held = slots[i, 0], slots[i, 1]
        if held == _U0:
            continue
        tag = held >> _U32
        token_hash = word if tag >> _U24 > np.uint64(_SHORT_BYTES) else mix(word, tag)
        slot = np.int64(token_hash) & mask
        while larger[slot, 1] != _U0:
            slot = (slot + 1) & mask
        larger[slot, 0] = word
        larger[slot, 1] = held


@kernel
def find_tokens(data, offsets, grow, vocabulary, n_tokens, ids):
    """Look up tokens given as bytes (padded); add unknown ones if ``grow``, else set them to -1.

    With ``grow`` there must be room for all of them. Returns the new number of tokens.
    """
    token_bytes, token_offsets, slots, _ = vocabulary
    for i in range(len(ids)):
        start = offsets[i]
        length = offsets[i + 1] - start
        if length == 0:
            ids[i] = 0
            continue
        word, tag, token_hash = token_key(data, start, length)
        slot = find_slot(
            slots, token_offsets, token_bytes, data, start, length, word, tag, token_hash
        )
        held = slots[slot, 1]
        if held != _U0:
            ids[i] = np.int64(held & _ID_BITS)
        elif grow:
            append_token(vocabulary, n_tokens, slot, data, start, length, word, tag)
            ids[i] = n_tokens
            n_tokens += 1
        else:
            ids[i] = -1
    return n_tokens


@kernel
def count_documents(ids, frequencies):
    """Count each id once per occurrence; ids are distinct within a document."""
    for i in range(len(ids)):
        frequencies[ids[i]] += 1


# ---- segmentation ---------------------------------------------------------------------------


@kernel
def class_beyond_ascii(text, i, pages, entries):
    """Return class and width of the folded code point at ``i``, which is not ASCII."""
    code, width = decode_valid(text, i)
    return entry_of(pages, entries, code) & 15, width


@inline
def class_at(text, i, pages, entries):
    """Return class and width of the folded code point at ``i``."""
    held, width = np.int64(ASCII_CLASSES[text[i]]), 1
    if held == NOT_ASCII:
        held, width = class_beyond_ascii(text, i, pages, entries)
    return held, width


@kernel
def other_bytes(word):
    """Return the high bit of each byte that is not one of ``a-z 0-9 _``."""
    low = word & ~_BYTE_HIGH_BITS
    letters = (low + _EACH_BYTE * _FROM_A) ^ (low + _EACH_BYTE * _ABOVE_Z)
    digits = (low + _EACH_BYTE * _FROM_0) ^ (low + _EACH_BYTE * _ABOVE_9)
    not_underscore = (low ^ (_EACH_BYTE * _UNDERSCORE_BYTE)) + _EACH_BYTE * _FROM_1
    return (~(letters | digits | ~not_underscore) | word) & _BYTE_HIGH_BITS


@inline
def span(start, stop):
    """Return start and length of a token in one word."""
    return np.uint64(start) << _U32 | np.uint64(stop - start)


@kernel
def segment(text, start, stop, pages, entries, spans, n_spans):
    """Append the span of each token of a folded text; ``text[stop]`` must be 0.

    The rules are those of :mod:`earshot.text.analyzer`.
    """
    i = start
    after_word = False
    tag_stop = -1  # where the body of the current hashtag ends: nothing joins across it
    while i < stop:
        held, width = class_at(text, i, pages, entries)
        if held < MARK:
            begin = i
            before = held
            i += width
            while True:
                others = other_bytes(load_word(text, i))
                if others & _FIRST_HIGH_BIT == _U0:
                    while others == _U0:
                        i += 8
                        others = other_bytes(load_word(text, i))
                    i += np.int64(trailing_zeros(others) >> _U3)
                    before = np.int64(ASCII_CLASSES[text[i - 1]])
                held, width = class_at(text, i, pages, entries)
                if held <= MARK:
                    if held != MARK:  # a mark belongs to the character it sits on
                        before = held
                    i += width
                elif (
                    (held == APOSTROPHE and before == LETTER)
                    or (held == POINT and before == DIGIT)
                ) and i != tag_stop:
                    after, after_width = class_at(text, i + 1, pages, entries)
                    if after != before:
                        break
                    i += 1 + after_width
                else:
                    break
            spans[n_spans] = span(begin, i)
            n_spans += 1
            after_word = True
        elif held == NO_SPACE:
            previous = -1
            while held == NO_SPACE:
                begin = i
                while True:
                    i += width
                    held, width = class_at(text, i, pages, entries)
                    if held != MARK:
                        break
                spans[n_spans] = span(begin, i)
                n_spans += 1
                if previous >= 0:
                    spans[n_spans] = span(previous, i)
                    n_spans += 1
                previous = begin
            after_word = True
        elif held == SIGN and not after_word:
            body = i + 1
            end = body
            held, width = class_at(text, end, pages, entries)
            if held <= NO_SPACE and held != MARK:
                while held <= NO_SPACE:
                    end += width
                    held, width = class_at(text, end, pages, entries)
                spans[n_spans] = span(i, end)
                n_spans += 1
                if text[i] == 64:  # @: a mention is one token
                    body = end
                    after_word = True
                else:
                    tag_stop = end
            i = body
        else:
            if held == SYMBOL or held == REGIONAL:
                begin = i
                i += width
                if held == REGIONAL:
                    held, width = class_at(text, i, pages, entries)
                    if held == REGIONAL:
                        i += width
                spans[n_spans] = span(begin, i)
                n_spans += 1
            else:
                i += width
            after_word = False
    return n_spans


# ---- resolving ------------------------------------------------------------------------------


@kernel
def is_repeat(token, ids, first, end, stamp, seen_ids, seen_stamps):
    """Whether ``token`` is among ``ids[first:end]``, the ids of this text so far.

    Beyond ``SCANNED_IDS`` ids a hash set takes over, emptied by a new ``stamp``; the token is then
    also entered.
    """
    if end - first < SCANNED_IDS:
        found = False  # without leaving early the loop is vectorised
        for k in range(first, end):
            found |= ids[k] == token
        return found
    if end - first == SCANNED_IDS:  # entering them again with a repeated token does no harm
        for k in range(first, end):
            enter(ids[k], stamp, seen_ids, seen_stamps)
    return enter(token, stamp, seen_ids, seen_stamps)


@kernel
def enter(token, stamp, seen_ids, seen_stamps):
    """Enter a token in the set; return whether it was there."""
    mask = len(seen_ids) - 1
    k = (np.int64(token) * 0x9E3779B1 >> 8) & mask
    while seen_stamps[k] == stamp:
        if seen_ids[k] == token:
            return True
        k = (k + 1) & mask
    seen_stamps[k] = stamp
    seen_ids[k] = token
    return False


@kernel
def analyze_texts(
    data,
    starts,
    stops,
    folded,
    unicode,
    longest,
    grow,
    vocabulary,
    counts,
    spans,
    keys,
    span_ends,
    scratch,
    seen_ids,
    seen_stamps,
    row,
    ids,
    offsets,
):
    """Write the distinct token ids of each text from ``row`` on, in order of first occurrence.

    Args:
        data: Bytes of the texts, UTF-8.
        starts: First byte of each text.
        stops: End of each text.
        folded: Texts that were folded elsewhere: ``rows`` (ascending), ``offsets``, ``data``.
        unicode: Entries of the code points; not read where all are ASCII.
        longest: Bytes of the longest text once folded.
        grow: Whether unknown tokens are added; otherwise they are dropped.
        vocabulary: Buffers of the vocabulary, with room.
        counts: [number of tokens], updated when growing.
        spans: Room for ``GROUP_TOKENS + longest + 1`` tokens: start in the scratch buffer << 32,
            and length in bytes.
        keys: The same, three words each: first word, tag, hash.
        span_ends: Room for the end of each text's spans, ``GROUP_TOKENS`` texts.
        scratch: ``GROUP_BYTES + longest + PADDING_BYTES`` bytes.
        seen_ids: Power of two, at least twice the distinct tokens of a text.
        seen_stamps: The same; no value above ``row`` yet.
        row: Where to begin.
        ids: Output.
        offsets: Output; ``offsets[row]`` is set.

    Returns:
        The next row, and what is needed to go on with it.
    """
    token_bytes, token_offsets, slots, frequencies = vocabulary
    pages, entries = unicode.pages, unicode.entries
    folded_rows, folded_offsets, folded_data = folded
    n_rows = len(starts)
    n_ids = offsets[row]
    n_tokens = counts[0]
    next_folded = 0
    while next_folded < len(folded_rows) and folded_rows[next_folded] < row:
        next_folded += 1
    while row < n_rows:
        # Fold and segment a group of texts.
        last = row
        used = 0
        n_spans = 0
        while last < n_rows and n_spans < GROUP_TOKENS and used < GROUP_BYTES:
            if last - row == GROUP_TOKENS:  # empty texts make no records
                break
            start, stop = starts[last], stops[last]
            if next_folded < len(folded_rows) and folded_rows[next_folded] == last:
                end = used
                for k in range(folded_offsets[next_folded], folded_offsets[next_folded + 1]):
                    scratch[end] = folded_data[k]
                    end += 1
                next_folded += 1
            else:
                end = fold_text(data, start, stop, unicode, scratch, used)
            scratch[end] = 0
            first_span = n_spans
            n_spans = segment(scratch, used, end, pages, entries, spans, n_spans)
            make_keys(scratch, spans, first_span, n_spans, slots, keys)
            span_ends[last - row] = n_spans
            used = end + 1
            last += 1
        if n_ids + n_spans > len(ids):
            counts[0] = n_tokens
            return row, NEEDS_IDS
        if grow and (
            2 * (n_tokens + n_spans) > len(slots)
            or n_tokens + n_spans >= len(token_offsets)
            or n_tokens + n_spans > len(frequencies)
            # A pair of characters repeats the bytes of both, a hashtag those of its words.
            or token_offsets[n_tokens] + 4 * used > len(token_bytes)
        ):
            counts[0] = n_tokens
            return row, NEEDS_VOCABULARY
        # Resolve it.
        k = 0
        for text in range(row, last):
            first_id = n_ids
            while k < span_ends[text - row]:
                start, length = np.int64(spans[k] >> _U32), np.int64(spans[k] & _ID_BITS)
                word, tag, token_hash = keys[k, 0], keys[k, 1], keys[k, 2]
                slot = find_slot(
                    slots, token_offsets, token_bytes, scratch, start, length, word, tag, token_hash
                )
                k += 1
                token = np.int64(slots[slot, 1] & _ID_BITS)
                if token == 0:
                    if not grow:
                        continue
                    token = n_tokens
                    append_token(vocabulary, token, slot, scratch, start, length, word, tag)
                    n_tokens += 1
                if not is_repeat(token, ids, first_id, n_ids, text + 1, seen_ids, seen_stamps):
                    ids[n_ids] = token
                    n_ids += 1
            offsets[text + 1] = n_ids
        row = last
    counts[0] = n_tokens
    return row, DONE


@kernel
def map_tokens(offsets, ids, stem_ids, token_ids, seen_ids, seen_stamps):
    """Replace surface forms by the tokens of their stems, without repeats within a text.

    Forms without a stem and stems without a token are -1 and are dropped. Returns offsets and ids;
    ``seen_stamps`` must be 0.
    """
    new_offsets = np.empty_like(offsets)
    new_ids = np.empty_like(ids)
    n = 0
    new_offsets[0] = 0
    for text in range(len(offsets) - 1):
        first = n
        for k in range(offsets[text], offsets[text + 1]):
            stem = stem_ids[ids[k]]
            token = -1 if stem < 0 else token_ids[stem]
            if token >= 0 and not is_repeat(
                token, new_ids, first, n, text + 1, seen_ids, seen_stamps
            ):
                new_ids[n] = token
                n += 1
        new_offsets[text + 1] = n
    return new_offsets, new_ids[:n]
