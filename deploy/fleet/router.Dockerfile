# syntax=docker/dockerfile:1
# SPDX-License-Identifier: Apache-2.0
# SMG, the router of the SGLang project, at the release that docs/operate/several-servers.md was measured with.
FROM python:3.12.12-slim
RUN pip install --no-cache-dir smg==1.13.0
USER 10001
EXPOSE 30000 29000
ENTRYPOINT ["smg"]
CMD ["launch", "--help"]
