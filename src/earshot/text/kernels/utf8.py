"""UTF-8, eight bytes at a time: words of memory, code points, what is not UTF-8."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from earshot.kernels.jit import kernel

# Numba makes floats of mixed signed and unsigned integers, hence these.
U0 = np.uint64(0)
U2 = np.uint64(2)
U3 = np.uint64(3)
U24 = np.uint64(24)
U29 = np.uint64(29)
U32 = np.uint64(32)

# Eight bytes at once: adding 0x80 - c to a byte below 0x80 sets its high bit if the byte is >= c.
EACH_BYTE = np.uint64(0x0101010101010101)
BYTE_HIGH_BITS = np.uint64(0x8080808080808080)

# Eight bytes are read from eight bytes behind the start of a token.
PADDING_BYTES = 16


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
def trailing_zeros(typingctx, word):
    """Return the number of zero bits below the lowest one bit; 64 for 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


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
    word = U0
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
            if word & BYTE_HIGH_BITS == U0:
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
    bits = U0
    if len(starts) > 0:
        # One pass over everything between the first and the last text.
        i, stop = starts[0], stops[-1]
        while i + 8 <= stop:
            bits |= load_word(data, i)
            i += 8
        bits |= load_end(data, i, stop)
    return longest, bits & BYTE_HIGH_BITS != U0
