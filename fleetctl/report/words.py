"""Words of a report, one table a language (`words_en.py`, `words_zh.py`); both have the same keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from fleetctl.report.words_en import WORDS as EN
from fleetctl.report.words_zh import PHRASES as PHRASES_ZH
from fleetctl.report.words_zh import WORDS as ZH

TABLES: Mapping[str, Mapping[str, str]] = {"en": EN, "zh": ZH}
_GROUP = re.compile(r"\\(\d)")
_PHRASES = {"en": (), "zh": tuple((re.compile(pattern), text) for pattern, text in PHRASES_ZH)}


class Words:
    """`words(KEY, n=4)`: the sentence. A key that does not exist is a programming error (KeyError)."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._table = TABLES[language]

    def __call__(self, key: str, /, **values: object) -> str:
        return self._table[key].format(**values) if values else self._table[key]

    def get(self, key: str, default: str) -> str:
        """For names that others choose, such as flags: what there is a word for."""
        return self._table.get(key, default)

    def said(self, text: str) -> str:
        """What the program's own English words (verify, bench) are here; what there is no phrase for stays as it is."""
        for pattern, form in _PHRASES[self.language]:
            if match := pattern.fullmatch(text):
                # Phrases within a phrase are said in the same language.
                return _GROUP.sub(lambda one, found=match: self.said(found[int(one[1])] or ""), form)  # type: ignore[misc]
        return text

    def parts(self, text: str, separator: str) -> str:
        return separator.join(map(partial(self.said), text.split(separator)))
