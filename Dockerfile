# syntax=docker/dockerfile:1
# SPDX-License-Identifier: Apache-2.0
# SGLang's own image with the plugin installed into it.
#
#   docker build -t depcache .
#   docker run --gpus all --ipc host -p 30000:30000 depcache --model-path <model> --host 0.0.0.0

# Of the releases that the plugin supports the one that has run on a GPU (docs/operate/upgrade.md).
FROM lmsysorg/sglang:v0.5.17

LABEL org.opencontainers.image.title="depcache" \
      org.opencontainers.image.description="SGLang with reuse of the KV of graph facts" \
      org.opencontainers.image.licenses="Apache-2.0"

WORKDIR /opt/depcache
COPY pyproject.toml constraints-0.5.17.txt LICENSE NOTICE ./
COPY depcache depcache
COPY flashinfer_masks flashinfer_masks
COPY sglang_patches sglang_patches
COPY models/tiny models/tiny

# The base dependencies, the extra `graph` and depcache-tiny at the tested versions. SGLang and torch are the image's own: what the plugin requires is
# not installed, and the check below stops the build if anything moved them. The image's Python is the system's, hence the permission.
RUN export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
 && python3 -m pip freeze --exclude-editable | grep -iE '^(torch|flashinfer-python|sglang-kernel)==' > /tmp/before \
 && python3 -m pip install -c constraints-0.5.17.txt '.[graph]' ./models/tiny \
 && python3 -m pip install --no-deps ./sglang_patches \
 && python3 -m pip freeze --exclude-editable | grep -iE '^(torch|flashinfer-python|sglang-kernel)==' | diff /tmp/before - \
 && python3 -c "from importlib.metadata import version as v; assert v('sglang') == '0.5.17', v('sglang')" \
 && rm -rf /tmp/before build ./*.egg-info */build */*.egg-info models/tiny/build models/tiny/*.egg-info

# Models, compiled kernels and the disk tier live below the home folder: mount a volume at /home/depcache/.cache.
RUN useradd --create-home --uid 10001 depcache \
 && install -d -o depcache -g depcache /home/depcache/.cache
ENV HOME=/home/depcache \
    HF_HOME=/home/depcache/.cache/huggingface
USER depcache
WORKDIR /home/depcache

EXPOSE 30000
# Loading a large model takes minutes; only after the start period does a failure count.
HEALTHCHECK --interval=15s --timeout=5s --start-period=15m --retries=3 \
    CMD ["python3", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:30000/health', timeout=4)"]

ENTRYPOINT ["depcache", "serve"]
CMD ["--help"]
