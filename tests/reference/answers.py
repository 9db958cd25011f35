"""Reference implementation of answer matching, written independently from the description of the method.

Texts are tokenized character by character, without regular expressions.
"""

import unicodedata


def tokens(text: str) -> list[str]:
    """Return runs of letters, digits and marks, and other characters, except separators and control characters."""
    results: list[str] = []
    word = ""
    for character in unicodedata.normalize("NFD", text):
        group = unicodedata.category(character)[0]
        if group in "LNM":
            word += character
            continue
        if word:
            results.append(word.lower())
        word = ""
        if group not in "ZC":
            results.append(character.lower())
    if word:
        results.append(word.lower())
    return results


def contains_tokens(answer: str, text: str) -> bool:
    """Return whether the text contains the tokens of the answer as a sequence; always true for an empty answer."""
    answer_tokens, text_tokens = tokens(answer), tokens(text)
    size = len(answer_tokens)
    return any(text_tokens[start : start + size] == answer_tokens for start in range(len(text_tokens) + 1))
