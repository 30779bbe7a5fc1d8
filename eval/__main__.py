# SPDX-License-Identifier: Apache-2.0
"""`python -m eval <what>`: one subcommand for everything that is measured."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from depcache.errors import ConfigError, DepCacheError
from eval import attention, conversation, costs, demo, everything, retrieval, spellings
from eval.chunks import command as chunks
from eval.firsthour import command as firsthour
from eval.fleet import command as fleet
from eval.host import command as host
from eval.output import command_line
from eval.policy import command as policy
from eval.quality import command as quality
from eval.quality import teach
from eval.recognise import command as recognise
from eval.serve import command as serve
from eval.sets import SetError
from eval.soak import command as soak
from eval.tables import command as tables
from eval.tiers import command as tiers

SUBCOMMANDS = {
    "serve": (serve, "time to first token and throughput against other servers"),
    "demo": (demo, "depcache demo, as a user runs it, several times"),
    "host": (host, "processor time of a request whose facts are all cached, stage by stage"),
    "conversation": (conversation, "tokens computed turn by turn behind the same facts"),
    "retrieval": (retrieval, "recall, time and tokens of retrieval on sets with a graph"),
    "firsthour": (firsthour, "the whole way of a new user with a graph nobody tuned to"),
    "policy": (policy, "hit rates of replacement policies and schedulers, simulated"),
    "costs": (costs, "time and memory of matching, eviction, look-ahead and scheduling"),
    "quality": (quality, "are the answers right: attention, layouts, reuse, on a real server"),
    "teach": (teach, "training examples for the small model from MetaQA and 2Wiki"),
    "spellings": (spellings, "facts in other places and spellings: found, and answered rightly?"),
    "recognise": (recognise, "facts in prompts of frameworks and of other kinds: what is found?"),
    "chunks": (chunks, "context that is only partly computed again: answers and tokens"),
    "tables": (tables, "tokens of text-to-SQL prompts, by which tables are reused"),
    "attention": (attention, "milliseconds of the attention plans"),
    "tiers": (tiers, "time to first token by the tier that holds the KV, on a real server"),
    "soak": (soak, "everything at once for as long as one likes: does it hold?"),
    "fleet": (fleet, "several servers behind a router: reuse by routing rule, and one killed"),
    "all": (everything, "serve, quality, policy and attention, one after the other"),
}
"""Name to a module with `add_arguments(parser)` and `run(args) -> exit code`, and its help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of them; the exit code. 2: the call or the data is wrong; 3: something failed."""
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__)
    choices = parser.add_subparsers(dest="what", required=True)
    for name, (module, text) in SUBCOMMANDS.items():
        choice = choices.add_parser(
            name,
            help=text,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(choice)
    words = sys.argv[1:] if arguments is None else arguments
    args = parser.parse_args(words)
    args.command = command_line(words)
    # So that a database that a run started is stopped with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return SUBCOMMANDS[args.what][0].run(args)
    except (SetError, DepCacheError) as error:
        print(f"eval: {error}", file=sys.stderr)
        return 2 if isinstance(error, SetError | ConfigError) else 3


if __name__ == "__main__":
    sys.exit(main())
