# SPDX-License-Identifier: Apache-2.0
"""One normal form for names and for the text that mentions them, and what a name is read as.

    Nobel_Prize_in_Physics   NobelPrizeInPhysics   http://x.org/y#Nobel%20Prize-in_Physics
    all of them              nobel prize in physics

The normal form has no case, accents or width (NFKD); underscores, dashes and every run of white
space are one blank. A name has several readings: as it is, as the last part of an address, and
with its CamelCase taken apart. A text has two: as it is, and with CamelCase taken apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

# Typographic signs that a keyboard does not have.
_PLAIN = {"‘": "'", "’": "'", "“": '"', "”": '"'}
_BLANKS = frozenset("_-‐‑‒–—―−")
_CAMEL = re.compile(r"(?<=[^\W\d_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_URI = re.compile(r"<?([A-Za-z][\w+.-]*)://[^\s<>]*>?")
_CURIE = re.compile(r"[a-z][\w.-]{0,15}:[^\s:/]+")
_QUALIFIER = re.compile(r"(.*\S)[\s_]*\([^()]*\)")


@dataclass(frozen=True, slots=True)
class Folded:
    """A text in its normal form; its character i comes from the original's `origins[i]`."""

    text: str
    origins: Sequence[int]


def fold(text: str) -> str:
    """The form in which names are compared; may be empty."""
    return fold_text(text).text


def fold_text(text: str, *, split_camel: bool = False) -> Folded:
    """The normal form, and where its characters come from.

    split_camel  a blank goes where a word of CamelCase begins
    """
    starts = {match.start() for match in _CAMEL.finditer(text)} if split_camel else set()
    if not starts and text.isascii() and not re.search(r"[^ -~]|  |[_-]", text):
        stripped = text.lstrip(" ")
        lead = len(text) - len(stripped)
        return Folded(stripped.rstrip(" ").lower(), range(lead, len(text)))
    letters: list[str] = []
    origins: list[int] = []
    for origin, letter in enumerate(text):
        is_blank = letter.isspace() or letter in _BLANKS
        if (is_blank or origin in starts) and letters and letters[-1] != " ":
            letters.append(" ")
            origins.append(origin)
        if is_blank:
            continue
        for part in unicodedata.normalize("NFKD", letter).casefold():
            if not unicodedata.combining(part):
                letters.append(_PLAIN.get(part, part))
                origins.append(origin)
    if letters and letters[-1] == " ":
        letters.pop()
        origins.pop()
    return Folded("".join(letters), origins)


def local_name(name: str) -> str:
    """The last part of an address, without percent escapes; any other name as it is.

    `http://x.org/y#MarieCurie` is `MarieCurie`, `dbr:Marie_Curie` is `Marie_Curie`.
    """
    if match := _URI.fullmatch(name):
        parts = re.split(r"[/#]", name[match.end(1) + 3 :].strip("<>").rstrip("/#"))
        return unquote(parts[-1]) or name
    if _CURIE.fullmatch(name):
        return unquote(name.partition(":")[2])
    return name


def is_address(name: str) -> bool:
    """Whether a name is a URI."""
    return _URI.fullmatch(name) is not None


def readings(name: str) -> Iterator[str]:
    """Every normal form that a name may be written in; the first is that of all of it."""
    yield fold(name)
    local = local_name(name)
    if "%" in local:
        local = unquote(local)
    if local != name:
        yield fold(local)
    if _CAMEL.search(local):
        yield fold_text(local, split_camel=True).text


def without_qualifier(name: str) -> str | None:
    """`The Golden Calf` of `The Golden Calf (1930 film)`; None where nothing stands behind."""
    match = _QUALIFIER.fullmatch(local_name(name))
    return match[1] if match else None


@lru_cache(maxsize=50_000)
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name in their normal form, CamelCase and addresses taken apart."""
    return tuple(re.findall(r"\w+", fold_text(local_name(name), split_camel=True).text))
