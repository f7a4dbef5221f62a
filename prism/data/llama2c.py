"""The tokenizer of llama2.c (`tokenizer.bin`): byte-pair merges in the order of their scores, single bytes for the rest."""

from __future__ import annotations

import codecs
import hashlib
import json
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from prism.data.text import TextError
from prism.data.writing import Writing

START, END, BYTES = 1, 2, 3
"""The tokens around a text, and the first of the 256 that stand for single bytes, whatever their pieces say: exports differ."""
CUT = b"\xff"
"""A byte that no text holds."""


class Llama2c(Writing):
    def __init__(self, pieces: list[bytes], scores: list[float]) -> None:
        self._pieces, self._scores = pieces, scores
        self._ids = {piece: number for number, piece in enumerate(pieces) if number >= BYTES + 256}

    @staticmethod
    def load(path: Path) -> Llama2c:
        """An int32, the longest piece; then of every token a float32 score, an int32 length and so many bytes."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise TextError(f"{path} cannot be read ({error.strerror}); check the path.") from error
        pieces, scores, place = [], [], 4
        while place < len(content):
            score, length = struct.unpack_from("<fi", content, place) if place + 8 <= len(content) else (0.0, -1)
            place += 8 + length
            if length < 0 or place > len(content):
                raise TextError(f"{path} is no tokenizer of llama2.c, or cut short; copy it again from its source.")
            pieces.append(content[place - length : place])
            scores.append(score)
        if len(pieces) < BYTES + 256:
            raise TextError(f"{path} holds {len(pieces)} tokens, fewer than there are bytes; copy it again.")
        return Llama2c(pieces, scores)

    def fingerprint(self) -> str:
        """The sha256 of what decides how ids become text."""
        return hashlib.sha256(json.dumps([piece.hex() for piece in self._pieces]).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._pieces)

    def read(self, text: str) -> list[int]:
        return [START, *self.prompt(text)]

    def prompt(self, text: str) -> list[int]:
        """As llama2.c's encode: a space in front, characters or else their bytes, then the best-scored merge as long as any."""
        ids: list[int] = []
        for character in f" {text}" if text else "":
            known = self._ids.get(character.encode())
            ids += [BYTES + byte for byte in character.encode()] if known is None else [known]
        while len(ids) > 1:
            merged = [self._ids.get(self._pieces[a] + self._pieces[b]) for a, b in pairwise(ids)]
            best = max(range(len(merged)), key=lambda i: -1e30 if (m := merged[i]) is None else self._scores[m])
            if (token := merged[best]) is None:
                break
            ids[best : best + 2] = [token]
        return ids

    def pieces(self, tokens: list[int]) -> list[str]:
        """A character of several bytes belongs to the last of their tokens; the start token begins a line where one is open."""
        decoder, found = codecs.getincrementaldecoder("utf-8")("replace"), []
        for place, token in enumerate(tokens):
            begins = place > 0 and tokens[place - 1] == START
            data = self._bytes(token, begins=begins, opens=place > 0)
            found.append(decoder.decode(data, final=place == len(tokens) - 1))
        return found

    def documents(self, rows: Integer[np.ndarray, "n l"]) -> Iterator[str]:
        """The texts of many rows that begin and end within them: what stands between two start or end tokens."""
        pieces = [self._bytes(token, begins=False, opens=False) for token in range(len(self))]
        pieces[START] = pieces[END] = CUT
        for row in rows:
            whole = b"".join(map(pieces.__getitem__, row.tolist())).split(CUT)[1:-1]
            yield from (text.decode("utf-8", "ignore").strip() for text in whole if text)

    def _bytes(self, token: int, *, begins: bool, opens: bool) -> bytes:
        if token in (START, END):
            return b"\n" if token == START and opens else b""
        if BYTES <= token < BYTES + 256:
            return bytes([token - BYTES])
        piece = self._pieces[token] if token < len(self) else b"<mask>"
        return piece.removeprefix(b" ") if begins else piece
