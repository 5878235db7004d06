"""Kernels of :mod:`earshot.text`: fold, segment, look up and count, a batch of texts at a time.

Texts are UTF-8 bytes in one buffer. A group of texts at a time is *folded* (normalised, case
folded, ignorable code points removed) into a scratch buffer, *segmented* there into the spans of
tokens, and the tokens are *resolved* to ids. The hash slot of a token is prefetched when its key is
made, so that the memory has arrived by the time its group is resolved.

Each step is one loop over the group rather than one call per text or token: Numba counts references
to every array argument of every call, by atomic instructions, and these took half of the time.

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

from earshot.kernels.jit import kernel

# Classes of code points; the first five are the characters of words.
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
SIGN = 10  # hash and at sign

# How a code point folds.
KEEP = 0
REPLACE = 1
DROP = 2
CONTEXT = 3  # depends on its neighbours: the whole text is folded in Python

# What `analyze_texts` ran out of.
DONE = 0
NEEDS_IDS = 1
NEEDS_VOCABULARY = 2

# A group of texts ends with the text that reaches this size: some 300 tokens, enough for their
# slots to arrive, few enough to stay in the first-level cache.
GROUP_BYTES = 2048
# Eight bytes are read from eight bytes behind the start of a token.
PADDING_BYTES = 16
# Up to here, repeats within a text are found by scanning its ids; beyond, by a hash set.
SCANNED_IDS = 24
# Occurrences of a token in one text are counted up to here, one more than 16 bits can tell.
TOO_MANY = 1 << 16

_SHORT_BYTES = 11
_MULTIPLIER_A = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_B = np.uint64(0xD6E8FEB86659FD93)
_LOW_HALF = np.uint64(0xFFFFFFFF)

# Numba makes floats of mixed signed and unsigned integers, hence these.
_U0 = np.uint64(0)
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
    classes = np.full(128, SEPARATOR, np.uint8)
    classes[ord("a") : ord("z") + 1] = LETTER
    classes[ord("A") : ord("Z") + 1] = LETTER
    classes[ord("0") : ord("9") + 1] = DIGIT
    classes[ord("_")] = UNDERSCORE
    classes[ord("'")] = APOSTROPHE
    classes[[ord("."), ord(",")]] = POINT
    classes[[ord("#"), ord("@")]] = SIGN
    return classes


ASCII_CLASSES = _ascii_classes()
# Class and width of a folded code point in one byte: class + 16 * width.
_ASCII_KINDS = ASCII_CLASSES + np.uint8(16)
# Bits of a token's bytes 0-7 and 8-10, by its length; the first also of any text's first bytes.
_WORD_MASKS = np.array([(1 << 8 * min(n, 8)) - 1 for n in range(_SHORT_BYTES + 1)], np.uint64)
_TAIL_MASKS = np.array([(1 << 8 * max(n - 8, 0)) - 1 for n in range(_SHORT_BYTES + 1)], np.uint64)


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
    """Return the number of zero bits below the lowest one bit; 64 for 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


# ---- UTF-8 ----------------------------------------------------------------------------------


@kernel
def decode(word):
    """Return the code point that begins eight bytes, and its width; -1 and 1 if it is not UTF-8."""
    word = np.int64(word)
    first, second = word & 0xFF, word >> 8 & 0xFF
    if first < 0x80:
        return first, 1
    if second & 0xC0 != 0x80 or first < 0xC2 or first > 0xF4:
        return -1, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | second & 0x3F, 2
    third = word >> 16 & 0xFF
    if third & 0xC0 != 0x80:
        return -1, 1
    if first < 0xF0:
        code = (first & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
        if code < 0x800 or 0xD800 <= code < 0xE000:  # overlong forms and surrogates
            return -1, 1
        return code, 3
    fourth = word >> 24 & 0xFF
    code = (first & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6 | fourth & 0x3F
    if fourth & 0xC0 != 0x80 or code < 0x10000 or code > 0x10FFFF:
        return -1, 1
    return code, 4


@kernel
def load_end(data, start, stop):
    """Return the bytes from ``start`` to ``stop``, fewer than eight, followed by zeros."""
    word = _U0
    for i in range(start, stop):
        word |= np.uint64(data[i]) << np.uint64((i - start) << 3)
    return word


@kernel
def find_invalid_utf8(data, starts, stops, invalid):
    """Set ``invalid`` for every text whose bytes are not UTF-8."""
    for row in range(len(starts)):
        i, stop = starts[row], stops[row]
        while i < stop:
            word = load_word(data, i) if i + 8 <= stop else load_end(data, i, stop)
            if word & _BYTE_HIGH_BITS == _U0:
                i += 8
                continue
            code, width = decode(word)
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
        bits |= load_end(data, i, stop)
    return longest, bits & _BYTE_HIGH_BITS != _U0


# ---- folding --------------------------------------------------------------------------------


@kernel
def survey_folding(data, starts, stops, unicode, needs_context):
    """Mark the texts that need context to fold; return the longest folded text of the others.

    A text can be folded one code point at a time when every code point begins with a starter that
    never composes with what stands before it, or is a mark that never composes and whose combining
    class is not below its predecessor's. (The result then passes the quick check of UAX #15 at
    every boundary, and the normal form is unique.)
    """
    pages, entries, fold_offsets, _, _ = unicode
    longest = 0
    for row in range(len(starts)):
        i, stop = starts[row], stops[row]
        length = 0
        last_combining = 0
        while i < stop:
            word = load_word(data, i) if i + 8 <= stop else load_end(data, i, stop)
            if word & _BYTE_HIGH_BITS == _U0:
                i += 8
                length += 8
                last_combining = 0
                continue
            code, width = decode(word)
            i += width
            if code < 0x80:  # also -1, which folds to a space
                length += 1
                last_combining = 0
                continue
            entry = np.int64(entries[np.int64(pages[code >> 8]) << 8 | code & 255])
            how = entry >> 4 & 3
            combining = entry >> 6 & 255
            if how == CONTEXT or (how == KEEP and 0 < combining < last_combining):
                needs_context[row] = True
                length = 0
                break
            last_combining = combining
            if how == KEEP:
                length += width
            elif how == REPLACE:
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
def fold_texts(data, starts, stops, row, is_folded, unicode, text, kinds, position, ends):
    """Write folded texts and the kinds of their code points from ``position`` on.

    Texts end with a zero byte. Stops when the group is full; with ``is_folded``, after one text,
    which is copied as it is. Returns the next row and the end.
    """
    pages, entries, fold_offsets, fold_bytes, fold_kinds = unicode
    first_row = row
    while row < len(starts) and position < GROUP_BYTES:
        i, stop = starts[row], stops[row]
        while i < stop:
            n_left = stop - i
            word = load_word(data, i) if n_left >= 8 else load_end(data, i, stop)
            if word & _BYTE_HIGH_BITS == _U0:
                word = lower_case(word)
                store_word(text, position, word)
                for k in range(8):
                    kinds[position + k] = _ASCII_KINDS[np.int64(word >> np.uint64(k << 3)) & 0x7F]
                i += 8
                position += min(n_left, 8)
                continue
            code, width = decode(word)
            if code < 0x80:
                if code < 0:
                    code = 32  # bytes that are no text separate words
                elif 65 <= code <= 90:
                    code += 32
                text[position] = code
                kinds[position] = _ASCII_KINDS[code]
                position += 1
                i += 1
                continue
            entry = np.int64(entries[np.int64(pages[code >> 8]) << 8 | code & 255])
            how = entry >> 4 & 3
            if how == KEEP or is_folded:
                store_word(text, position, word)
                kinds[position] = entry & 15 | width << 4
                position += width
            elif how == REPLACE:
                replacement = entry >> 14
                for k in range(fold_offsets[replacement], fold_offsets[replacement + 1]):
                    text[position] = fold_bytes[k]
                    kinds[position] = fold_kinds[k]
                    position += 1
            i += width
        text[position] = 0
        kinds[position] = SEPARATOR | 1 << 4
        position += 1
        ends[row - first_row] = position
        row += 1
        if is_folded:
            break
    return row, position


# ---- segmentation ---------------------------------------------------------------------------


@kernel
def other_bytes(word):
    """Return the high bit of each byte that is not one of ``a-z 0-9 _``."""
    low = word & ~_BYTE_HIGH_BITS
    letters = (low + _EACH_BYTE * _FROM_A) ^ (low + _EACH_BYTE * _ABOVE_Z)
    digits = (low + _EACH_BYTE * _FROM_0) ^ (low + _EACH_BYTE * _ABOVE_9)
    not_underscore = (low ^ (_EACH_BYTE * _UNDERSCORE_BYTE)) + _EACH_BYTE * _FROM_1
    return (~(letters | digits | ~not_underscore) | word) & _BYTE_HIGH_BITS


@kernel
def span(start, stop):
    """Return start and length of a token in one word."""
    return np.uint64(start) << _U32 | np.uint64(stop - start)


@kernel
def segment(text, kinds, stop, spans):
    """Write the span of each token of the folded texts; return their number.

    The rules are those of :mod:`earshot.text.analyzer`. Texts end with a zero byte, so no token
    reaches from one into the next.
    """
    n = 0
    i = 0
    after_word = False
    tag_stop = -1  # where the body of the current hashtag ends: nothing joins across it
    while i < stop:
        held = kinds[i] & 15
        width = kinds[i] >> 4
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
                    before = kinds[i - 1] & 15
                held = kinds[i] & 15
                width = kinds[i] >> 4
                if held <= MARK:
                    if held != MARK:  # a mark belongs to the character it sits on
                        before = held
                    i += width
                elif (
                    (held == APOSTROPHE and before == LETTER) or (held == POINT and before == DIGIT)
                ) and i != tag_stop:
                    if kinds[i + 1] & 15 != before:
                        break
                    i += 1 + (kinds[i + 1] >> 4)
                else:
                    break
            spans[n] = span(begin, i)
            n += 1
            after_word = True
        elif held == NO_SPACE:
            previous = -1
            while held == NO_SPACE:
                begin = i
                held = MARK
                while held == MARK:
                    i += kinds[i] >> 4
                    held = kinds[i] & 15
                spans[n] = span(begin, i)
                n += 1
                if previous >= 0:
                    spans[n] = span(previous, i)
                    n += 1
                previous = begin
            after_word = True
        elif held == SIGN and not after_word:
            body = i + 1
            end = body
            held = kinds[end] & 15
            if held <= NO_SPACE and held != MARK:
                while held <= NO_SPACE:
                    end += kinds[end] >> 4
                    held = kinds[end] & 15
                spans[n] = span(i, end)
                n += 1
                if text[i] == 64:  # @: a mention is one token
                    body = end
                    after_word = True
                else:
                    tag_stop = end
            i = body
        elif held in (SYMBOL, REGIONAL):
            begin = i
            i += width
            if held == REGIONAL and kinds[i] & 15 == REGIONAL:
                i += kinds[i] >> 4
            spans[n] = span(begin, i)
            n += 1
            after_word = False
        else:
            i += width
            after_word = False
    return n


# ---- the hash table -------------------------------------------------------------------------


@kernel
def mix(word, more):
    """Hash two words to 64 well mixed bits."""
    h = (word ^ (more * _MULTIPLIER_B)) * _MULTIPLIER_A
    h = (h ^ (h >> _U32)) * _MULTIPLIER_B
    return h ^ (h >> _U29)


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
        start, length = np.int64(spans[k] >> _U32), np.int64(spans[k] & _LOW_HALF)
        if length <= _SHORT_BYTES:
            # Without further branches: no processor can predict the lengths of words.
            word = load_word(data, start) & _WORD_MASKS[length]
            tag = load_word(data, start + 8) & _TAIL_MASKS[length] | np.uint64(length) << _U24
            token_hash = mix(word, tag)
        else:
            word = token_hash = hash_long(data, start, length)
            tag = np.uint64(min(length, 255)) << _U24
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
def resolve(data, spans, keys, n, grow, vocabulary, n_tokens, found):
    """Write the id of each token; unknown ones are added if ``grow``, else they get 0.

    With ``grow`` there must be room for all of them. Returns the new number of tokens.
    """
    token_bytes, token_offsets, slots, frequencies = vocabulary
    mask = len(slots) - 1
    for k in range(n):
        word, tag = keys[k, 0], keys[k, 1]
        slot = np.int64(keys[k, 2]) & mask
        is_long = tag >> _U24 > _SHORT_BYTES
        while True:
            held = slots[slot, 1]
            if held == _U0:
                break
            if slots[slot, 0] == word and held >> _U32 == tag:
                if not is_long:
                    break
                start, length = np.int64(spans[k] >> _U32), np.int64(spans[k] & _LOW_HALF)
                token = np.int64(held & _LOW_HALF)
                begin, end = token_offsets[token], token_offsets[token + 1]
                if same_bytes(data, start, length, token_bytes, begin, end):
                    break
            slot = (slot + 1) & mask
        if held == _U0 and grow:
            start, length = np.int64(spans[k] >> _U32), np.int64(spans[k] & _LOW_HALF)
            begin = token_offsets[n_tokens]
            for j in range(length):
                token_bytes[begin + j] = data[start + j]
            token_offsets[n_tokens + 1] = begin + length
            frequencies[n_tokens] = 0
            held = tag << _U32 | np.uint64(n_tokens)
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
        if held == _U0:
            continue
        tag = held >> _U32
        token_hash = word if tag >> _U24 > _SHORT_BYTES else mix(word, tag)
        slot = np.int64(token_hash) & mask
        while larger[slot, 1] != _U0:
            slot = (slot + 1) & mask
        larger[slot, 0] = word
        larger[slot, 1] = held


@kernel
def count_documents(ids, frequencies):
    """Count each id once per occurrence; ids are distinct within a document."""
    for i in range(len(ids)):
        frequencies[ids[i]] += 1


# ---- the whole ------------------------------------------------------------------------------


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
def keep_distinct(found, ends, first_row, n_rows, seen_ids, seen_stamps, ids, offsets):
    """Append the distinct ids above 0 of each text, in order of first occurrence.

    ``ends[i]`` is where text ``first_row + i`` ends in ``found``. The set is emptied by a new stamp
    per text: no stamp may be above ``first_row`` yet.
    """
    n = offsets[first_row]
    k = 0
    for row in range(first_row, first_row + n_rows):
        first = n
        end = ends[row - first_row]
        while k < end:
            token = found[k]
            k += 1
            if token <= 0:
                continue
            if n - first < SCANNED_IDS:
                is_repeat = False  # without leaving early the loop is vectorised
                for j in range(first, n):
                    is_repeat |= ids[j] == token
            else:
                if n - first == SCANNED_IDS:  # may happen again until a new token comes: harmless
                    for j in range(first, n):
                        enter(ids[j], row + 1, seen_ids, seen_stamps)
                is_repeat = enter(token, row + 1, seen_ids, seen_stamps)
            if not is_repeat:
                ids[n] = token
                n += 1
        offsets[row + 1] = n


@kernel
def locate(token, n, stamp, ids, seen_positions, seen_stamps):
    """Return where a token of the set stands in ``ids``; a new one is entered, to stand at ``n``.

    The set holds positions in ``ids`` rather than the tokens themselves.
    """
    mask = len(seen_positions) - 1
    k = (np.int64(token) * 0x9E3779B1 >> 8) & mask
    while seen_stamps[k] == stamp:
        if ids[seen_positions[k]] == token:
            return np.int64(seen_positions[k])
        k = (k + 1) & mask
    seen_stamps[k] = stamp
    seen_positions[k] = n
    return n


@kernel
def count_distinct(
    found, amounts, ends, first_row, n_rows, seen_positions, seen_stamps, ids, offsets, occurrences
):
    """Append the distinct ids above 0 of each text, and how often each occurs, up to TOO_MANY.

    ``amounts`` says how many occurrences each of ``found`` stands for; empty, it is one each. The
    rest is as for ``keep_distinct``, and so are the ids and their order.
    """
    is_weighted = len(amounts) > 0
    n = offsets[first_row]
    k = 0
    for row in range(first_row, first_row + n_rows):
        first = n
        text_ids = ids[first:]
        end = ends[row - first_row]
        while k < end:
            token = found[k]
            amount = np.int64(amounts[k]) if is_weighted else 1
            k += 1
            if token <= 0:
                continue
            at = n
            if n - first < SCANNED_IDS:
                for j in range(first, n):
                    if ids[j] == token:
                        at = j
            else:
                if n - first == SCANNED_IDS:  # may happen again until a new token comes: harmless
                    for j in range(first, n):
                        locate(ids[j], j - first, row + 1, text_ids, seen_positions, seen_stamps)
                at = first + locate(
                    token, n - first, row + 1, text_ids, seen_positions, seen_stamps
                )
            if at == n:
                ids[n] = token
                occurrences[n] = min(amount, TOO_MANY)
                n += 1
            else:
                occurrences[at] = min(occurrences[at] + amount, TOO_MANY)
        offsets[row + 1] = n


@kernel
def analyze_texts(
    data,
    starts,
    stops,
    folded,
    unicode,
    grow,
    vocabulary,
    counts,
    scratch,
    row,
    ids,
    offsets,
    occurrences,
):
    """Write the distinct token ids of each text from ``row`` on, in order of first occurrence.

    Args:
        data: Bytes of the texts, UTF-8.
        starts: First byte of each text.
        stops: End of each text.
        folded: Texts that were folded elsewhere: ``rows`` (ascending), ``starts``, ``stops``,
            ``data``; their rows above are not read.
        unicode: Entries of the code points; not read where all are ASCII.
        grow: Whether unknown tokens are added; otherwise they are dropped.
        vocabulary: Buffers of the vocabulary, with room.
        counts: [number of tokens, more tokens and more bytes that there should be room for].
        scratch: Working memory.
        row: Where to begin.
        ids: Output.
        offsets: Output; ``offsets[row]`` is set.
        occurrences: Output, as long as ``ids``; empty where they are not to be counted.

    Returns:
        The next row, and what is needed to go on with it.
    """
    text, kinds, ends, spans, keys, found, seen_ids, seen_stamps = scratch
    folded_rows, folded_starts, folded_stops, folded_data = folded
    next_folded = np.searchsorted(folded_rows, row)
    while row < len(starts):
        last, used = row, 0
        while last < len(starts) and used < GROUP_BYTES:
            if next_folded == len(folded_rows):
                last, used = fold_texts(
                    data, starts, stops, last, False, unicode, text, kinds, used, ends[last - row :]
                )
                continue
            stop = folded_rows[next_folded]
            if last < stop:
                last, used = fold_texts(
                    data,
                    starts[:stop],
                    stops[:stop],
                    last,
                    False,
                    unicode,
                    text,
                    kinds,
                    used,
                    ends[last - row :],
                )
                continue
            _, used = fold_texts(
                folded_data,
                folded_starts,
                folded_stops,
                next_folded,
                True,
                unicode,
                text,
                kinds,
                used,
                ends[last - row :],
            )
            next_folded += 1
            last += 1
        n = segment(text, kinds, used, spans)
        make_keys(text, spans, n, vocabulary.slots, keys)
        if offsets[row] + n > len(ids):
            return row, NEEDS_IDS
        if grow:
            n_tokens = counts[0] + n
            # A pair of characters repeats the bytes of both, a hashtag those of its words.
            n_bytes = vocabulary.token_offsets[counts[0]] + 4 * used
            if (
                2 * n_tokens > len(vocabulary.slots)
                or n_tokens >= len(vocabulary.token_offsets)
                or n_tokens > len(vocabulary.frequencies)
                or n_bytes > len(vocabulary.token_bytes)
            ):
                counts[1] = n
                counts[2] = 4 * used
                return row, NEEDS_VOCABULARY
        counts[0] = resolve(text, spans, keys, n, grow, vocabulary, counts[0], found)
        # From ends in the text to ends among its tokens.
        k = 0
        for i in range(last - row):
            while k < n and np.int64(spans[k] >> _U32) < ends[i]:
                k += 1
            ends[i] = k
        if len(occurrences) == 0:
            keep_distinct(found, ends, row, last - row, seen_ids, seen_stamps, ids, offsets)
        else:
            count_distinct(
                found,
                found[:0],
                ends,
                row,
                last - row,
                seen_ids,
                seen_stamps,
                ids,
                offsets,
                occurrences,
            )
        row = last
    return row, DONE
