#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The bare HTTP routes: SGLang's own, with `custom_params`, and those under /depcache.
set -euo pipefail
server=${DEPCACHE_SERVER:-http://127.0.0.1:30000}
call() {
  curl --silent --show-error --fail-with-body -H 'Content-Type: application/json' "$server$@" && echo && return
  echo "$server$1 gave no answer: start the server with \`depcache serve depcache-tiny\`" >&2
  exit 1
}
post() { call "$1" -d "$2"; }

# The facts stand in the message as text, and custom_params names the same paths: template `path`
# writes a line break before each path and " -> " between its elements.
chat='{
  "model": "default",
  "max_tokens": 64, "temperature": 0,
  "messages": [{"role": "user", "content":
    "Facts:\nMarie Curie -> born in -> Warsaw\nMarie Curie -> won -> Nobel Prize in Physics\n\nWhere was Marie Curie born?"}],
  "custom_params": {
    "depcache_version": 1,
    "depcache_layout": "tree",
    "depcache_template": "path",
    "depcache_paths": "[[\"Marie Curie\",\"born in\",\"Warsaw\"],[\"Marie Curie\",\"won\",\"Nobel Prize in Physics\"]]"
  }
}'
echo "# the answer, with what was reused in metadata.depcache"
post /v1/chat/completions "$chat"

echo "# how this prompt is cut, without generating"
post /depcache/explain "$chat"

echo "# the ids form: one system token, one root of two tokens with two branches, and a task"
post /generate '{
  "input_ids": [70, 71, 72, 73, 74, 75],
  "sampling_params": {"max_new_tokens": 4, "custom_params": {
    "depcache_version": 1, "depcache_layout": "tree", "depcache_system_len": 1,
    "depcache_segment_lens": [2, 1, 1], "depcache_segment_parents": [-1, 0, 0]}}
}'

echo "# what the server has in place and in its cache"
call /depcache/status
