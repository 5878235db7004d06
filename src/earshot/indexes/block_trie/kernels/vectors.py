"""Vector instructions that no loop compiles to, for the processor that is compiled for.

What LLVM can say of any processor is said once. Where it has no good words, there are up to three
ways: AVX-512's own instructions, AVX2's permutations, and plain code (NEON, for one). Which one it
is, the target decides while a kernel is compiled; the name of a compiled kernel tells the target
(:mod:`earshot.kernels.compiled`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from earshot.kernels.box_keys import BLOCK

GROUP = 64
"""Messages that share a walk: the bits of a word."""

SIGNATURE_BITS = 512
"""Bits of the signature of a message in a batch: the lanes of one register."""

HIGH_TOKEN_BIT = 9
"""Where the bits of a token begin that the second signature of a message goes by."""

_HIGH_BITS = 0x8000_8000_8000_8000
_LANE_ONES = 0x0001_0001_0001_0001
_BIT, _BYTE, _SHORT, _WORD, _LONG = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
_HALF = BLOCK // 2
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")


def vector_level(processor: tuple[str, str, str]) -> str:
    """Return which vector instructions may be named: those of avx512, of avx2, or generic ones.

    Args:
        processor: Triple, name and features, as Numba knows its target.
    """
    triple, name, told = processor
    if not triple.startswith(("x86_64", "amd64")):
        return "generic"
    features = {each[1:]: each[0] == "+" for each in told.split(",") if each}
    has = {"avx512": name == "x86-64-v4", "avx2": name in ("x86-64-v3", "x86-64-v4")}
    if all(features.get(each, has["avx512"]) for each in _AVX512):
        return "avx512"
    return "avx2" if features.get("avx2", has["avx2"]) else "generic"


def level_here() -> str:
    """Return which vector instructions kernels use in this process."""
    return _level(cpu_target.target_context)


def _level(context: Any) -> str:
    return vector_level(context.codegen().magic_tuple())


def _splat(builder: Any, vector: Any, value: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, _WORD(0))
    lanes = ir.Constant(ir.VectorType(_WORD, vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, undefined, lanes)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, position: Any) -> Any:
    view = context.make_array(kind)(context, builder, array)
    return builder.gep(view.data, [position])


def _load(builder: Any, pointer: Any, element: Any, n: int) -> Any:
    vector = builder.load(builder.bitcast(pointer, ir.PointerType(ir.VectorType(element, n))))
    vector.align = element.width // 8
    return vector


def _store(builder: Any, vector: Any, pointer: Any) -> None:
    stored = builder.store(vector, builder.bitcast(pointer, ir.PointerType(vector.type)))
    stored.align = vector.type.element.width // 8


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, [each.type for each in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, arguments)


def _all(vector: Any, value: int) -> Any:
    return ir.Constant(vector, [value] * vector.count)


# ---- box keys ------------------------------------------------------------------------------------


def _touching(builder: Any, limits: Any, keys: Any) -> tuple[Any, Any]:
    """Return bits of the lanes that touch, and of those that surely do (see ``strict_limit``)."""
    high = _all(limits.type, _HIGH_BITS)
    rest = builder.sub(limits, keys)
    bits = ir.IntType(limits.type.count)
    hits = builder.icmp_unsigned("==", builder.and_(rest, high), high)
    strict = builder.sub(rest, _all(limits.type, _LANE_ONES))
    sure = builder.icmp_unsigned("==", builder.and_(strict, high), high)
    return builder.bitcast(hits, bits), builder.bitcast(sure, bits)


@intrinsic
def touching_masks(typing_context: Any, keys: Any, position: Any, limit: Any) -> Any:
    """Return bits of the 16 keys that touch a limit, and above them of those that surely do."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
        found = _load(builder, pointer, _LONG, BLOCK)
        hits, sure = _touching(builder, _splat(builder, found.type, args[2]), found)
        above = builder.shl(builder.zext(sure, _WORD), _WORD(BLOCK))
        return builder.or_(builder.zext(hits, _WORD), above)

    return types.uint32(keys, types.int64, types.uint64), generate


@intrinsic
def touched_limits(typing_context: Any, limits: Any, key: Any) -> Any:
    """Return bits of the 64 limits that a key touches, and of those that it surely does."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[0], args[0], _LONG(0))
        found = _load(builder, pointer, _LONG, GROUP)
        hits, sure = _touching(builder, found, _splat(builder, found.type, args[1]))
        return context.make_tuple(builder, sig.return_type, (hits, sure))

    return types.UniTuple(types.uint64, 2)(limits, types.uint64), generate


# ---- packing -------------------------------------------------------------------------------------


def _pack(context: Any, builder: Any, lanes: Any, mask: Any, pointer: Any) -> Any:
    """Write the lanes of set bits one after the other; return how many they are."""
    level = _level(context)
    if level == "avx512":
        chosen = builder.bitcast(builder.trunc(mask, _SHORT), ir.VectorType(_BIT, BLOCK))
        name = "llvm.experimental.vector.compress.v16i32"
        undefined = ir.Constant(lanes.type, ir.Undefined)
        _store(builder, _call(builder, name, lanes.type, lanes, chosen, undefined), pointer)
        return builder.zext(builder.ctpop(mask), _LONG)
    if level == "avx2":
        return _pack_halves(builder, lanes, mask, pointer)
    # Each lane is written, and stays if the next one goes behind it.
    n: Any = _LONG(0)
    for lane in range(BLOCK):
        builder.store(builder.extract_element(lanes, _WORD(lane)), builder.gep(pointer, [n]))
        bit = builder.and_(builder.lshr(mask, _WORD(lane)), _WORD(1))
        n = builder.add(n, builder.zext(bit, _LONG))
    return n


def _pack_halves(builder: Any, lanes: Any, mask: Any, pointer: Any) -> Any:
    """Pack eight lanes at a time by a table of permutations.

    LLVM's own expansion for AVX2 goes through memory lane by lane and takes half as long again.
    """
    half = ir.VectorType(_WORD, _HALF)
    name = "earshot_packing_permutations"
    table = builder.module.globals.get(name)
    if table is None:
        rows = []
        for bits in range(1 << _HALF):
            chosen = [lane for lane in range(_HALF) if bits >> lane & 1]
            rows.append(ir.Constant(half, chosen + [0] * (_HALF - len(chosen))))
        table = ir.GlobalVariable(builder.module, ir.ArrayType(half, len(rows)), name)
        table.linkage, table.global_constant = "internal", True
        table.initializer = ir.Constant(table.type.pointee, rows)
    n: Any = _LONG(0)
    for first in (0, _HALF):
        picked = ir.Constant(half, list(range(first, first + _HALF)))
        some = builder.shuffle_vector(lanes, lanes, picked)
        bits = builder.and_(builder.lshr(mask, _WORD(first)), _WORD((1 << _HALF) - 1))
        order = builder.load(builder.gep(table, [_LONG(0), builder.zext(bits, _LONG)]))
        packed = _call(builder, "llvm.x86.avx2.permd", half, some, order)
        _store(builder, packed, builder.gep(pointer, [n]))
        n = builder.add(n, builder.zext(builder.ctpop(bits), _LONG))
    return n


@intrinsic
def pack_rows(
    typing_context: Any, rows: Any, position: Any, mask: Any, out: Any, n_out: Any
) -> Any:
    """Append those of 16 rows whose bits are set; return the new number.

    There must be 16 rows to read, and room for 16 to write.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source = _pointer(context, builder, sig.args[0], args[0], args[1])
        target = _pointer(context, builder, sig.args[3], args[3], args[4])
        lanes = _load(builder, source, _WORD, BLOCK)
        return builder.add(args[4], _pack(context, builder, lanes, args[2], target))

    return types.int64(rows, types.int64, types.uint32, out, types.int64), generate


@intrinsic
def pack_numbers(typing_context: Any, first: Any, mask: Any, out: Any, n_out: Any) -> Any:
    """Append those of ``first`` … ``first + 15`` whose bits are set; otherwise as ``pack_rows``."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        target = _pointer(context, builder, sig.args[2], args[2], args[3])
        vector = ir.VectorType(_WORD, BLOCK)
        start = _splat(builder, vector, builder.trunc(args[0], _WORD))
        lanes = builder.add(start, ir.Constant(vector, list(range(BLOCK))))
        return builder.add(args[3], _pack(context, builder, lanes, args[1], target))

    return types.int64(types.int64, types.uint32, out, types.int64), generate


@intrinsic
def copy_block(typing_context: Any, source: Any, start: Any, target: Any, at: Any) -> Any:
    """Copy 16 elements."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
        lanes = _load(builder, pointer, _WORD, BLOCK)
        _store(builder, lanes, _pointer(context, builder, sig.args[2], args[2], args[3]))
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


# ---- tokens --------------------------------------------------------------------------------------


def _signed_bits(
    context: Any, builder: Any, entries: Any, named: Any, signature: Any, low_bit: int
) -> Any:
    """Return a bit per lane: that of its token in a signature, which goes by nine of its bits."""
    vector = entries.type
    shifted = builder.lshr(named, _all(vector, low_bit)) if low_bit else named
    numbers = builder.and_(builder.lshr(shifted, _all(vector, 5)), _all(vector, BLOCK - 1))
    words = _pick_words(context, builder, signature, numbers)
    bits = builder.lshr(words, builder.and_(shifted, _all(vector, 31)))
    return builder.trunc(bits, ir.VectorType(_BIT, BLOCK))


def _token_lanes(context: Any, builder: Any, kind: Any, array: Any, position: Any) -> Any:
    """Return 16 entries, the tokens that they name, and which of them name none."""
    entries = _load(builder, _pointer(context, builder, kind, array, position), _WORD, BLOCK)
    is_left = builder.icmp_signed("<", entries, _all(entries.type, 0))
    named = builder.select(is_left, builder.sub(_all(entries.type, -2), entries), entries)
    return entries, named, builder.icmp_signed("==", entries, _all(entries.type, -1))


@intrinsic
def signed_mask(typing_context: Any, tokens: Any, position: Any, signatures: Any, row: Any) -> Any:
    """Return bits of the 16 entries whose next token may be in a message, by its signature.

    ``tokens`` are as ``entry_tokens`` of the trie: -1 names none, so its bit is always set.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        entries, named, is_none = _token_lanes(context, builder, sig.args[0], args[0], args[1])
        at = builder.mul(args[3], _LONG(SIGNATURE_BITS // 32))
        signature = _pointer(context, builder, sig.args[2], args[2], at)
        bits = _signed_bits(context, builder, entries, named, signature, 0)
        hits = builder.or_(bits, is_none)
        return builder.zext(builder.bitcast(hits, _SHORT), _WORD)

    return types.uint32(tokens, types.int64, signatures, types.int64), generate


@intrinsic
def twice_signed_mask(
    typing_context: Any, tokens: Any, position: Any, signatures: Any, high_signatures: Any, row: Any
) -> Any:
    """As ``signed_mask``, by a message's signature and by that of its tokens' high bits."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        entries, named, is_none = _token_lanes(context, builder, sig.args[0], args[0], args[1])
        at = builder.mul(args[4], _LONG(SIGNATURE_BITS // 32))
        low = _pointer(context, builder, sig.args[2], args[2], at)
        high = _pointer(context, builder, sig.args[3], args[3], at)
        bits = _signed_bits(context, builder, entries, named, low, 0)
        bits = builder.and_(
            bits, _signed_bits(context, builder, entries, named, high, HIGH_TOKEN_BIT)
        )
        hits = builder.or_(bits, is_none)
        return builder.zext(builder.bitcast(hits, _SHORT), _WORD)

    return types.uint32(tokens, types.int64, signatures, high_signatures, types.int64), generate


def _pick_words(context: Any, builder: Any, signature: Any, numbers: Any) -> Any:
    """Return the words of a signature of 16 words by their numbers."""
    vector, level = numbers.type, _level(context)
    if level == "generic":
        return _gather_plainly(builder, signature, numbers)
    whole = _load(builder, signature, _WORD, BLOCK)
    if level == "avx512":
        return _call(builder, "llvm.x86.avx512.permvar.si.512", vector, whole, numbers)
    half, lower = ir.VectorType(_WORD, _HALF), list(range(_HALF))
    parts = []
    for first in (0, _HALF):
        lanes = ir.Constant(half, [first + lane for lane in lower])
        some = builder.shuffle_vector(numbers, numbers, lanes)
        found = []
        for start in (0, _HALF):
            words = ir.Constant(half, [start + lane for lane in lower])
            part = builder.shuffle_vector(whole, whole, words)
            found.append(_call(builder, "llvm.x86.avx2.permd", half, part, some))
        is_low = builder.icmp_unsigned("<", some, _all(half, _HALF))
        parts.append(builder.select(is_low, found[0], found[1]))
    return builder.shuffle_vector(*parts, ir.Constant(vector, list(range(BLOCK))))


@intrinsic
def coded_mask(typing_context: Any, codes: Any, position: Any, bits: Any) -> Any:
    """Return bits of the 16 codes whose bits are set among ``bits``, 32 to a word."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[0], args[0], args[1])
        vector = ir.VectorType(_WORD, BLOCK)
        lanes = builder.zext(_load(builder, pointer, _SHORT, BLOCK), vector)
        table = _pointer(context, builder, sig.args[2], args[2], _LONG(0))
        words = _gather(context, builder, table, builder.lshr(lanes, _all(vector, 5)))
        shifted = builder.lshr(words, builder.and_(lanes, _all(vector, 31)))
        hits = builder.trunc(shifted, ir.VectorType(_BIT, BLOCK))
        return builder.zext(builder.bitcast(hits, _SHORT), _WORD)

    return types.uint32(codes, types.int64, bits), generate


def _gather(context: Any, builder: Any, table: Any, numbers: Any) -> Any:
    """Return the words of a table by their numbers."""
    vector, level = numbers.type, _level(context)
    if level == "generic":
        return _gather_plainly(builder, table, numbers)
    base = builder.bitcast(table, _BYTE.as_pointer())
    if level == "avx512":
        every = ir.Constant(ir.VectorType(_BIT, BLOCK), [1] * BLOCK)
        name = "llvm.x86.avx512.mask.gather.dpi.512"
        return _call(builder, name, vector, _all(vector, 0), base, numbers, every, _WORD(4))
    half = ir.VectorType(_WORD, _HALF)
    parts = []
    for first in (0, _HALF):
        lanes = ir.Constant(half, list(range(first, first + _HALF)))
        some = builder.shuffle_vector(numbers, numbers, lanes)
        name = "llvm.x86.avx2.gather.d.d.256"
        every = _all(half, -1)
        parts.append(_call(builder, name, half, _all(half, 0), base, some, every, _BYTE(4)))
    return builder.shuffle_vector(*parts, ir.Constant(vector, list(range(BLOCK))))


def _gather_plainly(builder: Any, table: Any, numbers: Any) -> Any:
    words = ir.Constant(numbers.type, ir.Undefined)
    for lane in range(BLOCK):
        number = builder.extract_element(numbers, _WORD(lane))
        word = builder.load(builder.gep(table, [builder.zext(number, _LONG)]))
        words = builder.insert_element(words, word, _WORD(lane))
    return words


# ---- sets of messages ----------------------------------------------------------------------------


@intrinsic
def tally(typing_context: Any, members: Any, counts: Any) -> Any:
    """Add 1 to the byte of each member of a set of 64."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, sig.args[1], args[1], _LONG(0))
        before = _load(builder, pointer, _BYTE, GROUP)
        ones = builder.zext(builder.bitcast(args[0], ir.VectorType(_BIT, GROUP)), before.type)
        _store(builder, builder.add(before, ones), pointer)
        return context.get_dummy_value()

    return types.void(types.uint64, counts), generate


@intrinsic
def n_members(typing_context: Any, members: Any) -> Any:
    """Return how many bits of a word are set."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


@intrinsic
def first_member(typing_context: Any, members: Any) -> Any:
    """Return the number of the lowest bit that is set; there must be one."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], _BIT(1))

    return types.int64(types.uint64), generate
