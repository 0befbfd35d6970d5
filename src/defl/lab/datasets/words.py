"""Texts as words: a fixed tokenisation of tweets, and the vocabulary that numbers words.

Names of users and links become one word each, as the authors of Sentiment140 did (Go, Bhayani,
Huang, 2009, section 2.3), so models see neither.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PADDING = 0
UNKNOWN = 1
FIRST_WORD = 2

_LINK = re.compile(r"(?:http|www\.)\S+|URL\b")
_USER = re.compile(r"@\w+|\bUSER\b")
_REPEATED = re.compile(r"(\w)\1\1+")  # "huuungry" and "huuuuungry" are one word (ibid.)
_SHOUTED = re.compile(r"([!?])[!?]+")
_WORD = re.compile(r"[a-z0-9\x80-\xff]+(?:'[a-z0-9\x80-\xff]+)*|[!?]")  # of latin-1


def normal(text: str) -> str:
    """Lower-case words separated by one blank; of all punctuation, only ! and ? are kept."""
    plain = _USER.sub(" user ", _LINK.sub(" url ", html.unescape(text))).lower()
    return " ".join(_WORD.findall(_SHOUTED.sub(r"\1", _REPEATED.sub(r"\1\1", plain))))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words in a fixed order; 0 pads and 1 stands for every word that is not among them."""

    words: tuple[str, ...]

    def encoded(self, texts: Sequence[str], length: int) -> NDArray[np.int32]:
        """Numbers of each text's first `length` words, padded at the end."""
        number = {word: i for i, word in enumerate(self.words, start=FIRST_WORD)}
        rows = np.full((len(texts), length), PADDING, np.int32)
        for row, text in zip(rows, texts, strict=True):
            numbers = [number.get(word, UNKNOWN) for word in text.split()[:length]]
            row[: len(numbers)] = numbers
        return rows
