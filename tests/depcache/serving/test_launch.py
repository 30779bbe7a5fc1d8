# SPDX-License-Identifier: Apache-2.0
"""What `depcache serve` executes: the user's flags untouched, defaults only where none is given."""

import shlex
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from depcache.errors import ConfigError, ServerError
from depcache.serving import launch
from depcache.serving.launch import Launch, find_gpu, given_flags, make_launch, require_free_port


def options(launch):
    """The arguments after the module, as {flag: value or None}."""
    assert launch.argv[:3] == [sys.executable, "-m", "sglang.launch_server"]
    return given_flags(launch.argv[3:])


def test_the_small_model_is_served_by_its_name(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "depcache_tiny", None)
    with pytest.raises(ConfigError, match=r"depcache-tiny is not installed: pip install \./models"):
        make_launch([], model="depcache-tiny")
    monkeypatch.setitem(sys.modules, "depcache_tiny", SimpleNamespace(path=lambda: tmp_path))
    found = options(make_launch([], model="depcache-tiny"))
    assert Path(found["--model-path"]) == tmp_path
    assert found["--served-model-name"] == "depcache-tiny"
    named = options(make_launch(["--served-model-name", "x"], model="depcache-tiny"))
    assert named["--served-model-name"] == "x"
    assert "--served-model-name" not in options(make_launch([], model="m"))


def test_a_model_alone_gets_every_default_of_a_cpu():
    assert options(make_launch([], model="m")) == {
        "--model-path": "m",
        "--radix-cache-backend": "depcache",
        "--radix-eviction-policy": "lacr_adaptive",
        "--page-size": "1",
        "--enable-cache-report": None,
        "--attention-backend": "torch_native",
        "--device": "cpu",
        "--sampling-backend": "pytorch",
        "--disable-overlap-schedule": None,
        "--grammar-backend": "outlines",
        "--dtype": "float32",
        "--mem-fraction-static": "0.3",
    }


def test_other_programs_memory_stops_no_server_whose_tokens_are_counted_out():
    found = options(make_launch(["--max-total-tokens", "8192"], model="m"))
    assert found["--mem-fraction-static"] == "0.9"


def test_with_a_gpu_nothing_is_said_about_the_device():
    found = options(make_launch([], model="m", has_gpu=True))
    assert "--device" not in found
    assert "--dtype" not in found


def test_with_a_gpu_attention_is_flashinfers_and_only_stock_sglang_captures_prefills(monkeypatch):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: name)
    found, stock = (
        options(make_launch([], model="m", has_gpu=True, stock=on)) for on in (False, True)
    )
    assert found["--attention-backend"] == stock["--attention-backend"] == "flashinfer"
    assert "--disable-prefill-cuda-graph" in found
    assert "--disable-prefill-cuda-graph" not in stock


def test_a_gpu_that_flashinfer_is_not_for_gets_torch(monkeypatch):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    found = options(make_launch([], model="m", has_gpu=True))
    assert found["--attention-backend"] == "torch_native"


def test_asking_for_the_cpu_beside_a_gpu_gives_the_defaults_of_a_cpu():
    found = options(make_launch(["--device", "cpu"], model="m", has_gpu=True))
    assert found["--dtype"] == "float32"


def test_the_stock_baseline_differs_in_the_cache_alone():
    ours, stock = (make_launch(["--port", "1"], model="m", stock=on) for on in (False, True))
    start = ours.argv.index("--radix-cache-backend")
    assert ours.argv[start + 2] == "--radix-eviction-policy"
    assert stock.argv == ours.argv[:start] + ours.argv[start + 4 :]


def test_flags_of_the_user_come_last_unchanged_and_in_order():
    args = ["--page-size=1", "--dtype", "bfloat16", "-tp", "2", "--json-model-override-args", "{}"]
    launch = make_launch(args, model="m")
    assert launch.argv[-len(args) :] == args
    assert launch.argv.count("--dtype") == 1
    assert "--page-size" not in launch.argv


def test_underscores_and_other_spellings_of_a_flag_count_as_given():
    assert given_flags(["--page_size", "1", "--model", "m", "--flag"]) == {
        "--page-size": "1",
        "--model-path": "m",
        "--flag": None,
    }


def test_the_model_may_be_named_by_its_flag():
    assert options(make_launch(["--model-path", "m"]))["--model-path"] == "m"


def test_what_sglangs_config_file_sets_is_left_to_it(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("model-path: m\nattention_backend: flashinfer\n")
    launch = make_launch(["--config", str(file)])
    assert "--attention-backend" not in launch.argv
    assert "--page-size" in launch.argv


def test_settings_travel_as_variables():
    launch = make_launch([], model="m", settings={"attention_plan": "cascade"})
    assert launch.env["DEPCACHE_ATTENTION_PLAN"] == "cascade"


def test_the_server_shares_the_memory_of_its_threads_unless_the_user_says_how(monkeypatch):
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert make_launch([], model="m").env == {"MALLOC_ARENA_MAX": "2"}
    assert make_launch([], model="m", stock=True).env == {}
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")
    assert make_launch([], model="m").env == {}


@pytest.mark.parametrize(
    ("args", "model", "stock", "words"),
    [
        ([], None, False, "no model"),
        (["--model", "a"], "b", False, "named twice"),
        (["--radix-cache-backend", "depcache"], "m", True, "contradict"),
        (["--radix-cache-backend", "lmcache"], "m", False, "--stock"),
        (["--config", "/nowhere.yaml"], "m", False, "cannot read"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(args, model, stock, words):
    with pytest.raises(ConfigError, match=words):
        make_launch(args, model=model, stock=stock)


def test_a_config_file_that_is_no_mapping_is_refused(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("- a\n")
    with pytest.raises(ConfigError, match="name: value"):
        make_launch(["--config", str(file)], model="m")


def test_the_shell_line_reads_back_as_the_same_command():
    launch = Launch(["py", "-m", "x", "a b", "{'c': 1}"], {"D": "e f"})
    assert shlex.split(launch.to_shell()) == ["D=e f", *launch.argv]


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_hidden_gpu_is_no_gpu(monkeypatch, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert not find_gpu()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_port_that_is_taken_is_said_before_anything_is_loaded(tmp_path, host):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        config = tmp_path / "config.yaml"
        config.write_text(f"port: {port}\nhost: {host}\n")
        for args in (
            ["--host", host, "--port", port],
            [f"--host={host}", f"--port={port}"],
            ["--config", str(config)],
        ):
            with pytest.raises(ServerError, match=f"port {port} of {host}.*another with --port"):
                require_free_port(args)
    require_free_port(["--host", host, "--port", port])  # let go of a moment ago


def test_a_host_that_is_none_of_this_machine_is_said():
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(ServerError, match=host):
            require_free_port(["--host", host, "--port", "0"])
    require_free_port(["--port", "many"])  # SGLang's own parser says it
