"""Text: one analyzer and the vocabulary that its tokens live in."""

from earshot.text.analyzer import Analyzer, invalid_utf8
from earshot.text.vocabulary import TokenLists, Vocabulary, VocabularyArrays

__all__ = ["Analyzer", "TokenLists", "Vocabulary", "VocabularyArrays", "invalid_utf8"]
