"""Text: one analyzer and the vocabulary that its tokens live in."""

from earshot.text.analyzer import Analyzer, invalid_utf8, merge_counts
from earshot.text.vocabulary import TokenCounts, TokenLists, Vocabulary, VocabularyArrays

__all__ = [
    "Analyzer",
    "TokenCounts",
    "TokenLists",
    "Vocabulary",
    "VocabularyArrays",
    "invalid_utf8",
    "merge_counts",
]
