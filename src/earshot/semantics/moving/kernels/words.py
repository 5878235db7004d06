"""Which words a subscription asks for, and which a live message has."""

from __future__ import annotations

import numpy as np

from earshot.kernels.jit import inlined_kernel, lean_kernel
from earshot.kernels.verify import tokens_match
from earshot.semantics.moving.kernels.arrays import N_PROBES

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(58)
_ONE = np.uint64(1)
_WIDE_SHIFT = np.uint64(54)
_FEW = 12


@inlined_kernel
def word_bit(token):
    """Return the bit that stands for a word among 64; the token of all messages has none."""
    if token == 0:
        return np.uint64(0)
    return _ONE << (np.uint64(token) * _MIX >> _SHIFT)


@lean_kernel
def bits_of(tokens, start, stop):
    """Return the bits of all required tokens."""
    bits = np.uint64(0)
    for i in range(start, stop):
        if tokens[i] >= 0:
            bits |= word_bit(tokens[i])
    return bits


@inlined_kernel
def has_token(messages, row, token):
    """Whether a message has a token: those of one are sorted."""
    low = messages.token_starts[row]
    high = low + messages.n_tokens[row]
    while high - low > _FEW:
        middle = (low + high) >> 1
        if messages.tokens[middle] <= token:
            low = middle
        else:
            high = middle
    for i in range(low, high):
        if messages.tokens[i] == token:
            return True
    return False


@lean_kernel
def row_has_words(subscribers, slot, messages, row):
    """Whether the words of a message meet one of the alternatives of a subscription."""
    words = messages.words[row]
    if subscribers.words[slot] & ~words:
        return False
    for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
        if subscribers.clause_words[clause] & ~words:
            continue
        is_met = True
        for i in range(subscribers.token_offsets[clause], subscribers.token_offsets[clause + 1]):
            token = subscribers.token_ids[i]
            if token >= 0:
                if not has_token(messages, row, token):
                    is_met = False
                    break
            elif has_token(messages, row, ~token):
                is_met = False
                break
        if is_met:
            return True
    return False


@lean_kernel
def clause_is_met(subscribers, clause, marks):
    """Whether the message whose tokens are marked meets an alternative."""
    start, stop = subscribers.token_offsets[clause], subscribers.token_offsets[clause + 1]
    return tokens_match(subscribers.token_ids, start, stop, marks)


@inlined_kernel
def word_place(token):
    """Return the place that stands for a word among 1,024."""
    return np.int64(np.uint64(token) * _MIX >> _WIDE_SHIFT)


@lean_kernel
def _is_required(subscribers, clause, token):
    for i in range(subscribers.token_offsets[clause], subscribers.token_offsets[clause + 1]):
        if subscribers.token_ids[i] == token:
            return True
    return False


@lean_kernel
def _find_probes(subscribers, slot):
    """Fill in the places of words that every alternative requires, of the first few such."""
    n = 0
    first, stop = subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]
    for i in range(subscribers.token_offsets[first], subscribers.token_offsets[first + 1]):
        token = subscribers.token_ids[i]
        if token <= 0 or n == N_PROBES:
            continue
        is_common = True
        for clause in range(first + 1, stop):
            is_common &= _is_required(subscribers, clause, token)
        if is_common:
            subscribers.probes[slot, n] = word_place(token)
            n += 1
    for k in range(n, N_PROBES):
        subscribers.probes[slot, k] = -1


@lean_kernel
def count_clauses(subscribers, first, stop):
    """Fill the bits of the words of slots and of their alternatives."""
    for slot in range(first, stop):
        _find_probes(subscribers, slot)
        common = ~np.uint64(0)
        for clause in range(subscribers.clause_offsets[slot], subscribers.clause_offsets[slot + 1]):
            subscribers.clause_slots[clause] = slot
            bits = bits_of(
                subscribers.token_ids,
                subscribers.token_offsets[clause],
                subscribers.token_offsets[clause + 1],
            )
            subscribers.clause_words[clause] = bits
            common &= bits
        subscribers.words[slot] = common
