# SPDX-License-Identifier: Apache-2.0
"""`depcache picker`: a service that says which of several servers holds most of a request."""

from __future__ import annotations

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
    urls = list(dict.fromkeys(map(read_address, servers)))
    listeners = [Listener(url, api_key) for url in urls]
    app = make_app(listeners, Picker(listeners, bound=bound), public_salt)
    uvicorn.run(app, host=host, port=port, log_level="warning")
