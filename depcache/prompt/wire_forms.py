# SPDX-License-Identifier: Apache-2.0
"""The forms of the wire: which keys a request has, and what may stand in each.

`depcache.prompt.wire` reads them and says which form is which.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from depcache.errors import PromptError, explain_validation, shorten
from depcache.prompt.layout import Layout
from depcache.prompt.outline import PREFIX, Outline, outline_schema
from depcache.prompt.paths import Path, read_paths
from depcache.prompt.recompute import (
    DEFAULT_SELECT,
    DEFAULT_SHARE,
    MAX_ALPHA,
    MAX_SEED,
    Budget,
    Entry,
    Focus,
    Recompute,
    See,
    Select,
    parts_of,
)
from depcache.prompt.template import get_template

MAX_PATHS_BYTES = 4 * 2**20
"""Longest `depcache_paths`, in bytes of UTF-8."""

# One wrong value is enough to refuse a list: a million errors would cost a million objects.
_Ints = Annotated[list[int], FailFast()]
type TokenIds = Annotated[list[int], FailFast()]
"""The same for a part of a union, which pydantic does not take inline."""

type Parts = Annotated[list[TokenIds | str], FailFast()]
"""Several chunks, ids or texts."""

_PATHS = TypeAdapter(Annotated[list[Annotated[list[str], FailFast()]], FailFast()])


class Wire(BaseModel):
    """The keys of every form."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        # Keys of others may stand in the same object.
        json_schema_extra={"patternProperties": {f"^(?!{PREFIX})": {}}},
    )

    depcache_version: Literal[1, 2] = Field(description="Version of the wire form.")
    depcache_layout: Layout = Field(default="tree", description="Position layout of the request.")

    @property
    def layout(self) -> Layout:
        return self.depcache_layout

    def to_params(self) -> dict[str, Any]:
        """The `custom_params` of a request, every key written out."""
        return self.model_dump()


class FusableWire(Wire):
    """The keys of a fused request, which version 2 has in all its forms."""

    depcache_see: See = Field(
        default="ancestors",
        description="What the computed tokens of the context see: their ancestors, or everything "
        "before them. With fused, a share of the cached tokens is computed again, and the layout "
        "is sequential. The keys below go with fused.",
    )
    depcache_recompute: float = Field(
        default=DEFAULT_SHARE,
        ge=0,
        le=1,
        description="The share of the context that is computed again.",
    )
    depcache_select: Select = Field(
        default=DEFAULT_SELECT,
        description="Who chooses these tokens. query and mixed go by what the question leans on, "
        "for which it is computed once more; stored by what each row leaned on in the past prompt "
        "that left it; given: depcache_selected does.",
    )
    depcache_selected: _Ints = Field(
        default_factory=list,
        description="Ascending indices of context tokens; beside input_ids, with given.",
    )
    depcache_seed: int = Field(
        default=0, ge=0, le=MAX_SEED, description="Seed of the selector random."
    )
    depcache_pin: bool = Field(
        default=False,
        description="Fuse and nothing else: no flat prompt where that is cheaper, and no row "
        "unsettled. Then an answer depends on nothing that came before.",
    )
    depcache_budget: Budget = Field(
        default="global",
        description="Whether the share is of the context as a whole, or of each row.",
    )
    depcache_focus: Focus | None = Field(
        default=None,
        description="settle: leave out what is selected of rows that the question does not focus "
        "on. null: all that is selected is computed again.",
    )
    depcache_alpha: float = Field(
        default=1.0,
        gt=0,
        le=MAX_ALPHA,
        description="How careful the selector stored is: it computes so many times more again.",
    )
    depcache_patches: bool | None = Field(
        default=None,
        description="Keep what is computed again, and read what equal requests have kept. null: as "
        "the server is set.",
    )
    depcache_behind: Annotated[list[TokenIds | str | Parts | None], FailFast()] = Field(
        default_factory=list,
        description="Per root what its KV was computed behind, beside the system, such as the "
        "chunk before it in its document; null for nothing. Token ids beside input_ids, the "
        "text of one element beside an outline; a list of these for several, each computed alone "
        "and placed one after the other. It is no part of the prompt.",
    )

    @model_validator(mode="before")
    @classmethod
    def _place(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("depcache_see") == "fused":
            return {"depcache_layout": "sequential", **data}
        return data

    @model_validator(mode="after")
    def _check(self) -> FusableWire:
        if self.depcache_see == "fused":
            if self.depcache_version == 1:
                raise PromptError("depcache_see is fused: send depcache_version 2")
            if self.depcache_layout != "sequential":
                raise PromptError(
                    f"depcache_layout is {self.depcache_layout!r} in a fused request, whose tokens "
                    "sit at their index: send 'sequential', or leave it out"
                )
            _ = self.recompute
        elif alone := sorted(FUSED_KEYS & self.model_fields_set - {"depcache_see"}):
            raise PromptError(f"{alone[0]} goes with depcache_see: send 'fused', or leave it out")
        return self

    @cached_property
    def recompute(self) -> Recompute | None:
        """What is computed again; None in a request that is not fused. Raises PromptError."""
        if self.depcache_see != "fused":
            return None
        is_given = "depcache_selected" in self.model_fields_set
        return Recompute(
            share=self.depcache_recompute,
            select=self.depcache_select,
            selected=tuple(self.depcache_selected) if is_given else None,
            seed=self.depcache_seed,
            is_pinned=self.depcache_pin,
            behind=self.behind or None,
            patches=self.depcache_patches,
            budget=self.depcache_budget,
            focus=self.depcache_focus,
            alpha=self.depcache_alpha,
        )

    @property
    def behind(self) -> tuple[Entry, ...]:
        return tuple(_to_tuples(entry) for entry in self.depcache_behind)

    def to_params(self) -> dict[str, Any]:
        params = self.model_dump(exclude=FUSED_KEYS)
        return params if self.recompute is None else {**params, **self.recompute.to_params()}


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


JOINS_ARE_EXACT = (
    "rows that see other rows came with depcache_see fused, which shows every computed token all "
    "before it: leave out one of them"
)

FUSED_KEYS = set(FusableWire.model_fields) - set(Wire.model_fields)


class WireIds(FusableWire):
    """The ids form: the structure of the `input_ids` that travel beside it, in pre-order."""

    depcache_system_len: int = Field(ge=0, description="Tokens before the first segment.")
    depcache_segment_lens: _Ints = Field(
        description="Tokens of each segment, each at least 1, in pre-order. What follows the last "
        "segment is the task, at least one token."
    )
    depcache_segment_parents: _Ints = Field(
        description="Parent of each segment: the number of an earlier segment, or -1 for a root. "
        "In version 1 no two segments with one parent start with the same token."
    )
    depcache_segment_joins: Annotated[list[TokenIds], FailFast()] = Field(
        default_factory=list,
        description="In version 2, roots that see other segments, as [root, seen, seen, ...]. "
        "Roots ascend, and so do the segments that each sees: earlier ones, none of which follows "
        "from another. What a seen segment sees is seen too, by the whole tree of the root.",
        json_schema_extra={"items": {"type": "array", "minItems": 2, "items": {"type": "integer"}}},
    )

    @model_validator(mode="after")
    def _check_joins(self) -> WireIds:
        if self.depcache_segment_joins and self.depcache_version == 1:
            raise PromptError("version 1 has no joins: send depcache_version 2")
        if self.depcache_segment_joins and self.depcache_see == "fused":
            raise PromptError(JOINS_ARE_EXACT)
        _ = self.joins
        return self

    @cached_property
    def joins(self) -> dict[int, list[int]]:
        """What each joined root sees, as `Forest.make` takes it; that they fit it says that."""
        joins: dict[int, list[int]] = {}
        last: int | None = None
        for join in self.depcache_segment_joins:
            if len(join) < 2:
                raise PromptError(
                    f"{shorten(join)} is among depcache_segment_joins: send a root and at least "
                    "one segment that it sees"
                )
            root, *seen = join
            if last is not None and root <= last:
                raise PromptError(
                    f"depcache_segment_joins name root {shorten(root)} behind {shorten(last)}: "
                    "name each root once, in ascending order"
                )
            joins[root], last = seen, root
        return joins

    def to_params(self) -> dict[str, Any]:
        params = super().to_params()
        if not self.depcache_segment_joins:
            del params["depcache_segment_joins"]
        return params


class WireText(Wire):
    """The text form: the paths whose flat text stands in the prompt exactly once."""

    depcache_version: Literal[1] = Field(description="Version of the wire form.")
    depcache_template: str = Field("path", description="Name of the template that wrote the text.")
    depcache_paths: str = Field(
        description="JSON text: a list of paths, a path being a list of at least one string.",
        json_schema_extra={
            "contentMediaType": "application/json",
            "contentSchema": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            },
        },
    )

    @property
    def template(self) -> str:
        return self.depcache_template

    @cached_property
    def rows(self) -> list[list[str]]:
        """What the JSON holds; PromptError when that is no list of at least one list of strings."""
        text = self.depcache_paths
        try:
            # A character is at least a byte, so a long text is refused before it is encoded.
            data = text[: MAX_PATHS_BYTES + 1].encode()
        except UnicodeEncodeError:
            raise PromptError(
                "depcache_paths holds half a surrogate pair, which is no text: send valid Unicode"
            ) from None
        if len(data) > MAX_PATHS_BYTES:
            raise PromptError(
                f"depcache_paths is longer than the {MAX_PATHS_BYTES} bytes allowed: "
                "send fewer paths"
            )
        try:
            paths = _PATHS.validate_json(data, strict=True)
        except ValidationError as error:
            raise PromptError(explain_validation(error, "depcache_paths")) from None
        if not paths:
            raise PromptError(
                "depcache_paths is an empty list: leave all depcache_ keys out of a plain prompt"
            )
        return paths

    @cached_property
    def paths(self) -> list[Path]:
        """The paths; PromptError when one of them is none."""
        return read_paths(self.rows)

    @property
    def flat_text(self) -> str:
        """The text that the prompt must contain exactly once."""
        return get_template(self.depcache_template).flatten(self.paths)


class WireOutline(FusableWire):
    """The outline form: the spans of the prompt's own text that are context."""

    depcache_version: Literal[2] = Field(description="Version of the wire form.")
    depcache_outline: dict[str, Any] = Field(
        description="The spans, see `depcache.prompt.outline.Outline`: the context is one stretch "
        "of one text, rows without gaps, each cut into elements.",
        json_schema_extra=outline_schema,
    )
    depcache_template: str | None = Field(
        None,
        description="Name of the template that wrote the rows, where they are paths. Only "
        "/depcache/invalidate reads it: there a row of one element stands for all paths of it.",
    )

    @model_validator(mode="after")
    def _refuse_ids(self) -> WireOutline:
        if self.depcache_select == "given":
            raise PromptError(
                "depcache_select is given, but the prompt came as text, whose tokens nobody has "
                "counted: send input_ids with segments, or another selector"
            )
        parts = [part for entry in self.behind for part in parts_of(entry)]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise PromptError(
                "depcache_behind has token ids, but the prompt came as text: send texts"
            )
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise PromptError(
                "depcache_behind holds half a surrogate pair, which is no text: send valid Unicode"
            ) from None
        return self

    @cached_property
    def outline(self) -> Outline:
        """The spans; PromptError when they are none."""
        return Outline.from_json(self.depcache_outline)

    def to_params(self) -> dict[str, Any]:
        params = super().to_params() | {"depcache_outline": self.depcache_outline}
        if self.depcache_template is None:
            del params["depcache_template"]
        return params
