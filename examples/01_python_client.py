# SPDX-License-Identifier: Apache-2.0
"""Ask a DepCache server about relation paths, and see what it reused."""

import os
import sys

from facts import PATHS

import depcache


def main(server: str) -> None:
    """Ask twice, then look at how the server cuts a prompt."""
    with depcache.Client(server) as client:
        question = (
            "Into which sea does the river that flows through the birthplace of Marie Curie flow?"
        )
        reply = client.ask(PATHS, question, max_tokens=64)
        print("answer:", reply.text)
        print("first time:", reply.depcache or "unknown, the server runs without DepCache")

        # Another order, and not all of them: what both requests share is not computed again.
        with client.ask(
            PATHS[:0:-1], "What did Marie Curie win?", max_tokens=64, stream=True
        ) as stream:
            for text in stream:
                print(text, end="", flush=True)
        reply = stream.finish()
        print(f"\nfirst token after {(reply.ttft_s or reply.total_s) * 1000:.0f} ms")
        print("second time:", reply.depcache or "unknown, the server runs without DepCache")

        # How the server cuts a prompt, without generating; only a server with DepCache knows.
        for row in client.explain(depcache.render(PATHS, question))["table"]:
            print(
                row["segment"], row["parent"], row["cached"], "of", row["num_tokens"], row["text"]
            )


try:
    main(os.environ.get("DEPCACHE_SERVER", "http://127.0.0.1:30000"))
except depcache.DepCacheError as error:
    sys.exit(str(error))
