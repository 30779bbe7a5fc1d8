# SPDX-License-Identifier: Apache-2.0
"""`depcache picker`: a service that says which of several servers holds most of a request."""

from __future__ import annotations

import ipaddress
from typing import Annotated

import typer

from depcache.client.address import read_address
from depcache.errors import ConfigError
from depcache.install_hints import install_command

DEFAULT_PORT = 30100


def picker(
    servers: Annotated[
        list[str], typer.Argument(help="Servers, by the URLs that the router knows them by.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = DEFAULT_PORT,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="DEPCACHE_API_KEY", help="The servers' admin key, if they have one."),
    ] = None,
    picker_key: Annotated[
        str | None,
        typer.Option(
            envvar="DEPCACHE_PICKER_KEY",
            help="What those who ask must send as their bearer token. Without it all are answered.",
        ),
    ] = None,
    private_counts: Annotated[
        bool,
        typer.Option(
            "--private-counts",
            envvar="DEPCACHE_PRIVATE_COUNTS",
            help="The servers' setting private_counts: start only with a --picker-key.",
        ),
    ] = False,
    public_salt: Annotated[
        str | None,
        typer.Option(
            envvar="DEPCACHE_PUBLIC_SALT",
            help="The servers' setting public_salt: what it names is counted for every tenant.",
        ),
    ] = None,
    bound: Annotated[
        float,
        typer.Option(min=1.0, help="Most requests of one server, by the mean of all servers."),
    ] = 1.25,
) -> None:
    """Say which of several servers holds most of what a request is about (POST /pick).

    The servers must publish root events: DEPCACHE_ROOT_EVENTS=tcp://0.0.0.0:5557.
    """
    try:
        import uvicorn

        from depcache.picker import Listener, Picker
        from depcache.picker.service import make_app
    except ImportError as error:
        raise ConfigError(
            f"the picker needs {error.name}, which is not installed: {install_command('picker')}"
        ) from None
    if not picker_key:
        if private_counts:
            raise ConfigError(
                "a picker tells what servers hold of any tenant, and private_counts is set: give "
                "it a key (--picker-key, or DEPCACHE_PICKER_KEY)"
            )
        if not _is_loopback(host):
            typer.echo(
                f"warning: the picker listens on {host} and has no key, so whoever reaches it can "
                "ask what is cached of any tenant: set DEPCACHE_PICKER_KEY",
                err=True,
            )
    urls = list(dict.fromkeys(map(read_address, servers)))
    listeners = [Listener(url, api_key) for url in urls]
    chooser = Picker(listeners, bound=bound)
    app = make_app(listeners, chooser, public_salt, key=picker_key or None)
    uvicorn.run(app, host=host, port=port, log_level="warning")


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address to listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"
