# SPDX-License-Identifier: Apache-2.0
"""The address of a server, however a person writes it, as a URL."""

from __future__ import annotations

from urllib.parse import urlsplit

from depcache.errors import ConfigError, shorten


def read_address(address: str) -> str:
    """The URL that routes are added to: `host`, `host:port` and `http(s)://host[:port][/v1]`.

    What has no scheme is http. Raises ConfigError for anything else.
    """
    url = address.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or any(sign.isspace() for sign in url):
        # It may hold a password, which stands before the last @.
        shown = shorten(address.rpartition("@")[2])
        raise ConfigError(f"{shown} is no address of a server: write http://host:port or host:port")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
