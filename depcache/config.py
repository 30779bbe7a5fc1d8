# SPDX-License-Identifier: Apache-2.0
"""The settings of the plugin: one model, from a YAML file and the environment.

Precedence: `DEPCACHE_*` variables, then the file that `DEPCACHE_CONFIG` names, then the
defaults below. `depcache serve` turns its own flags into variables.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from depcache.errors import ConfigError
from depcache.text_file import read_yaml

CONFIG_VARIABLE = "DEPCACHE_CONFIG"

EVERY_OTHER = "*"
"""In `tenant_shares` the name of every tenant that has none of its own."""


class Config(BaseSettings):
    """All settings, with their defaults. An unknown key in the file is an error."""

    model_config = SettingsConfigDict(env_prefix="DEPCACHE_", extra="forbid")

    attention_plan: Literal["auto", "custom_mask", "segments", "cascade", "blocks"] = Field(
        "auto", description="how dependency attention is computed; auto is the fastest measured"
    )
    cpu_attention: Literal["new_rows", "stock"] = Field(
        "new_rows",
        description="on a CPU: plain prefills compute their new rows only, or as stock SGLang does",
    )
    history_weight: float = Field(
        0.2, ge=0, le=1, description="eviction policy lacr: the share of history, the paper's a"
    )
    lookahead: int | None = Field(
        None,
        ge=0,
        description="eviction policy lacr: waiting requests that are looked at; unset: all",
    )
    queue_order: Literal["sglang", "lsp", "xor"] = Field(
        "sglang",
        description="order of the waiting queue: as --schedule-policy says, longest shared "
        "prefix, or fewest different tables",
    )
    max_passed: int = Field(
        64, ge=0, description="queue_order: how often a request may be passed over"
    )
    cache_tails: bool = Field(
        True,
        description="what follows the facts (question, answer, later turns) is cached behind them; "
        "layout tree only",
    )
    reencode_positions: bool = Field(
        True,
        description="KV that is reused at another position gets that position's rotation; False "
        "is for an experiment that shows what it is worth",
    )
    settle_timeout_s: float = Field(
        2.0,
        gt=0,
        description="how long a fused request waits for its missing rows before it is answered as "
        "flat prompt; one that is pinned waits for ever",
    )
    patches: bool = Field(
        False,
        description="what fused requests compute again is kept on the device, for requests that "
        "begin alike and select alike; a request may say otherwise",
    )
    fused_shadow_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="share of the greedy fused answers that are judged by their flat prompt; 0 is "
        "off",
    )
    fused_min_agreement: float = Field(
        0.9,
        ge=0,
        le=1,
        description="fused answers: share of their tokens that must be the flat prompt's choice; "
        "below it more is recomputed, and at last all",
    )
    fused_evidence: str | None = Field(
        None,
        description="report of `python -m eval chunks --json FILE` with this model; with it only "
        "what it shows to bring back fused_min_recovery is fused, all else is answered flat",
    )
    fused_min_recovery: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of the loss of full reuse that fusing must bring back by the evidence; "
        "0.8 where only fused_evidence is given",
    )
    cpu_threads: int = Field(
        0, ge=0, description="threads of the model process on a CPU; 0 uses every core"
    )

    recognise: str = Field(
        "off",
        description="facts in plain prompts that the server finds by itself: off, auto for all "
        "recognisers, or names of some with commas between; answers are approximate then",
    )

    recompute: float | None = Field(
        None,
        ge=0,
        le=1,
        description="share of what recognise finds that is computed again with full view, the "
        "first tokens of each row: for models that were not trained for facts that do not see each "
        "other; unset is none",
    )

    tables: str | None = Field(
        None,
        description="catalog of tables, a file of `depcache tables load`, that are found in plain "
        "prompts by match_tables or where a request asks for it",
    )
    match_tables: bool = Field(
        False,
        description="plain prompts are searched for the tables of the catalog; answers are "
        "approximate then",
    )

    root_events: str = Field(
        "",
        description="ZeroMQ address, such as tcp://127.0.0.1:5557, at which the server says which "
        "entities it holds, for a picker of servers; empty is off",
    )

    tenant_shares: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict,
        description="share of each tier that others cannot take from a tenant, by cache_salt, as "
        'JSON in the environment: {"acme": 0.3, "": 0.2, "*": 0.05}; "" is without one, * every '
        "other",
    )

    public_salt: str | None = Field(
        None,
        description="cache_salt of a tenant whose KV every other may read; none writes it but "
        'that tenant\'s own requests; "" are requests without a salt',
    )
    private_counts: bool = Field(
        False,
        description="routes that count what all tenants have cached need the admin key",
    )

    host_gb: float = Field(
        0, ge=0, description="main memory for KV that left the device, in GB (10^9 bytes); 0 is off"
    )
    host_ratio: float = Field(
        0, ge=0, description="the same as a multiple of the device's KV pool, if host_gb is 0"
    )
    disk_gb: float = Field(
        0,
        ge=0,
        description="disk for KV and the list of it, in GB (10^9 bytes), for each server on the "
        "folder; 0 is off; needs a host tier",
    )
    disk_folder: str = Field(
        "~/.cache/depcache", description="where the KV on disk is; found again after a restart"
    )
    disk_backend: str = Field(
        "file",
        description="SGLang's HiCacheStorage: file, dynamic or mooncake; simm or mori with "
        "experimental",
    )
    disk_config: dict[str, Any] = Field(
        default_factory=dict, description="settings of that storage, as JSON in the environment"
    )
    load_policy: Literal["faster", "always"] = Field(
        "faster",
        description="KV in host memory and on disk is loaded where that was measured to be faster "
        "than computing it, or always",
    )
    write_policy: Literal["write_back", "write_through_selective", "write_through"] = Field(
        "write_through_selective",
        description="what is written to disk: KV that leaves the device; also KV that was used "
        "twice; or all",
    )

    experimental: bool = Field(
        False,
        description="permits what has never been run with DepCache: the disk backends simm "
        "and mori, and tensor parallelism and LoRA on a GPU",
    )

    @field_validator("tenant_shares")
    @classmethod
    def _check_shares(cls, shares: dict[str, float]) -> dict[str, float]:
        promised = sum(share for name, share in shares.items() if name != EVERY_OTHER)
        if promised > 1:
            raise ValueError(f"the shares of named tenants add up to {promised:g}: use at most 1")
        return shares

    @classmethod
    def settings_customise_sources(cls, settings_cls: Any, **sources: Any) -> tuple[Any, ...]:
        # Arguments come from the file, so the environment goes first.
        return (sources["env_settings"], sources["init_settings"])


def load_config() -> Config:
    """Read the settings anew. Raises ConfigError naming the setting and the value."""
    path = os.environ.get(CONFIG_VARIABLE)
    values = read_yaml(path, CONFIG_VARIABLE) if path else {}
    try:
        config = Config(**values)
    except SettingsError as error:
        raise ConfigError(f"{error}: write it as JSON") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        known = ", ".join(Config.model_fields)
        raise ConfigError(
            f"setting {name!r} = {first.get('input')!r} is wrong: {first['msg']}; "
            f"the settings are {known}"
        ) from error
    if config.recompute is not None and config.recognise in ("off", ""):
        raise ConfigError(
            f"setting recompute = {config.recompute:g} is a share of what recognise finds, and "
            "recognise is off: set recognise too, or let requests say what they recompute"
        )
    return config
