# SPDX-License-Identifier: Apache-2.0
"""What is compared: how the facts are written, which model reads them, and what is reused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, Literal

from depcache.client.client import Client
from depcache.demo.sample import final_answer
from depcache.prompt.layout import LAYOUTS, Layout
from depcache.prompt.paths import Path
from depcache.prompt.render import render
from depcache.training.examples import Example
from depcache.training.samples import Encoder
from eval.quality.prompts import Asked
from eval.servers import serve
from models.tiny.stages import BASE, SELF_ATTENTION, TINY

MAX_TOKENS = 96
POOL_TOKENS = 400_000
NUM_AT_ONCE = 16

SELF_FLAT = "SelfAttn, flat"
SAME_WEIGHTS = "SelfAttn, flat, weights of DepAttn"
"""The fine-tuned model reads flat text too: one model in both ways, whatever each was trained."""

FINE_TUNED = "DepAttn"
WARM = "DepAttn, warm"

READERS = (BASE, SELF_ATTENTION, TINY)
"""The models: one that never saw a tree, one tuned for flat text, one for dependency attention."""


@dataclass(frozen=True, slots=True)
class System:
    """One row of the table for every set.

    reader     one of READERS
    prompt     no facts; the text of all paths; the tokens of the trees with ordinary
               attention; the trees with dependency attention
    is_warm    asked again after the same facts were cached at other places
    reencodes  False: what is reused elsewhere keeps its old rotation ("w/o GKVR")
    """

    name: str
    reader: str
    prompt: Literal["none", "flat", "deduplicated", "dependency"]
    layout: Layout | Literal[""] = ""
    is_warm: bool = False
    reencodes: bool = True


def make_systems() -> list[System]:
    """All of them, those of one server behind each other."""
    systems = [
        System("SelfAttn, flat, not fine-tuned", BASE, "flat"),
        *(System("DepAttn, not fine-tuned", BASE, "dependency", at) for at in LAYOUTS),
        System("no retrieval, SelfAttn", SELF_ATTENTION, "none"),
        System(SELF_FLAT, SELF_ATTENTION, "flat"),
        System("SelfAttn, deduplicated", SELF_ATTENTION, "deduplicated"),
        System("no retrieval, DepAttn", TINY, "none"),
        System(SAME_WEIGHTS, TINY, "flat"),
        *(System(FINE_TUNED, TINY, "dependency", at) for at in LAYOUTS),
        *(System(WARM, TINY, "dependency", at, True) for at in LAYOUTS),
    ]
    # In `tree` nothing is ever reused at another position, so there is nothing to leave out.
    systems += [
        System("DepAttn, warm, w/o GKVR", TINY, "dependency", at, True, False)
        for at in LAYOUTS
        if at != "tree"
    ]
    return systems


class Asker:
    """Asks one running server, several questions at once, greedily."""

    def __init__(self, client: Client, tokenizer: Any) -> None:
        self._client = client
        self._encoder = Encoder(tokenizer, "deduplicated")

    def ask_all(self, system: System, questions: Sequence[Asked], name: str) -> Iterator[str]:
        """The answers, in order: what stands behind `Answer:`.

        name  of the set, so that no two sets share a cache
        """
        salt = f"{name} {system.name} {system.layout}"
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            if system.is_warm:
                # From the last to the first, paths too: so that places differ.
                list(
                    pool.map(
                        lambda asked: self._ask(system, asked, asked.paths[::-1], salt, 1),
                        reversed(questions),
                    )
                )
            # A cold question has a cache of its own, but for `deduplicated`: its request has no
            # salt, and what it finds are prefixes at their own places.
            salts = [
                salt if system.is_warm else f"{salt} {number}" for number in range(len(questions))
            ]
            yield from pool.map(
                lambda asked, own: self._ask(system, asked, asked.paths, own, MAX_TOKENS),
                questions,
                salts,
            )

    def _ask(
        self, system: System, asked: Asked, paths: Sequence[Path], salt: str, max_tokens: int
    ) -> str:
        if system.prompt == "deduplicated":
            prompt = self._encoder.prompt(Example(asked.text, tuple(paths), "-"), "tree")
            reply = self._client.generate(prompt.tokens.tolist(), max_tokens=max_tokens)
            return final_answer(reply.text)
        rendered = render(
            () if system.prompt == "none" else paths, asked.text, layout=system.layout or "tree"
        )
        extra = rendered.extra_body if system.prompt == "dependency" else {}
        reply = self._client.chat(
            rendered.messages, max_tokens=max_tokens, cache_salt=salt, **extra
        )
        return final_answer(reply.text)


@contextmanager
def open_server(model: File, log_file: File, *, reencodes: bool) -> Iterator[Asker]:
    """A server of this model for as long as the block."""
    from transformers import AutoTokenizer

    settings = {"reencode_positions": str(reencodes).lower()}
    with (
        serve(str(model), log_file, pool_tokens=POOL_TOKENS, settings=settings) as url,
        Client(url) as client,
    ):
        yield Asker(client, AutoTokenizer.from_pretrained(model))
