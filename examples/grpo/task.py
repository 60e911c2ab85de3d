"""What the policy learns: to emit one chosen token.

The reward is verifiable (the share of the chosen token in the completion), so a rising reward
proves that the engine samples from the weights that the trainer has just made.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

VOCABULARY_SIZE = 64
PROMPT_LENGTH = 4
COMPLETION_LENGTH = 16
PAD_TOKEN, BEGIN_TOKEN, END_TOKEN, UNKNOWN_TOKEN, CHOSEN_TOKEN = 0, 1, 2, 3, 7

_FIRST_LETTER_TOKEN = 8
_LETTERS = (string.ascii_letters + string.digits)[: VOCABULARY_SIZE - _FIRST_LETTER_TOKEN]
_CHOSEN_TEXT = "*"
_OTHER_TEXT = "."


class LetterTokenizer:
    """One token per letter; the chosen token reads `*`, the other special ones `.`."""

    def encode(self, text: str, **_: object) -> list[int]:
        """Returns the token number of each letter of `text`."""
        return [
            _FIRST_LETTER_TOKEN + _LETTERS.index(letter) if letter in _LETTERS else UNKNOWN_TOKEN
            for letter in text
        ]

    def decode(self, tokens: Sequence[int] | npt.NDArray[Any], **_: object) -> str:
        """Returns one character per token."""
        return "".join(self._character(int(token)) for token in tokens)

    def bos_id(self) -> int:
        """Returns the token that begins a text."""
        return BEGIN_TOKEN

    def eos_id(self) -> int:
        """Returns the token that ends a text."""
        return END_TOKEN

    def pad_id(self) -> int:
        """Returns the token that fills short texts."""
        return PAD_TOKEN

    def _character(self, token: int) -> str:
        if token >= _FIRST_LETTER_TOKEN:
            return _LETTERS[token - _FIRST_LETTER_TOKEN]
        return _CHOSEN_TEXT if token == CHOSEN_TOKEN else _OTHER_TEXT


def make_prompts(num_steps: int, prompts_per_step: int, seed: int) -> list[dict[str, Any]]:
    """Returns one batch of random prompts per step, in the form that Tunix reads."""
    generator = np.random.default_rng(seed)
    letters = np.array(list(_LETTERS))
    return [
        {
            "prompts": np.array(
                ["".join(generator.choice(letters, PROMPT_LENGTH)) for _ in range(prompts_per_step)]
            )
        }
        for _ in range(num_steps)
    ]


def share_of_chosen_token(completion: str) -> float:
    """Returns the reward of one completion, between 0 and 1."""
    return completion.count(_CHOSEN_TEXT) / COMPLETION_LENGTH
