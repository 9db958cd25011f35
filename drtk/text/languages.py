"""Codes and English names of languages."""

from __future__ import annotations

# The languages of NLTK's sentence splitter, of Snowball's stemmers, and of most analyzers of Lucene.
LANGUAGES = {
    "ar": "arabic",
    "bg": "bulgarian",
    "bn": "bengali",
    "ca": "catalan",
    "ckb": "sorani",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "eu": "basque",
    "fa": "persian",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "gl": "galician",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "lt": "lithuanian",
    "lv": "latvian",
    "ml": "malayalam",
    "ne": "nepali",
    "nl": "dutch",
    "no": "norwegian",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sl": "slovene",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "te": "telugu",
    "th": "thai",
    "tr": "turkish",
    "uk": "ukrainian",
    "zh": "chinese",
}


def get_language_code(language: str) -> str:
    """Return the code of a language that is given by its English name; any other text in lower case."""
    language = language.lower()
    return next((code for code, name in LANGUAGES.items() if name == language), language)


def get_language_name(language: str) -> str:
    """Return the English name of a language that is given by its code; any other text in lower case."""
    return LANGUAGES.get(language.lower(), language.lower())
