# SPDX-License-Identifier: Apache-2.0
"""A real browser without a window: Debian's packages `chromium` and `chromium-driver`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_DRIVERS = ("chromedriver", "chromium.chromedriver")


def _find(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(shutil.which, names)), None)


def require_browser() -> None:
    """Skip the test where there is no browser; on CI that is a failure."""
    if _find(_BROWSERS) and _find(_DRIVERS):
        return
    reason = "needs a browser: apt-get install chromium chromium-driver"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def open_browser(width: int = 1280, height: int = 900, scale: float = 1) -> Iterator[Any]:
    """A Selenium driver of a fresh browser, which ends with the block."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = _find(_BROWSERS) or ""
    for flag in (
        "--headless=new",
        "--no-sandbox",  # CI is root in a container
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--hide-scrollbars",
        f"--force-device-scale-factor={scale}",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=_find(_DRIVERS))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        set_size(driver, width, height, scale)
        yield driver
    finally:
        driver.quit()


def set_size(driver: Any, width: int, height: int, scale: float = 1) -> None:
    """The page's own size in CSS pixels; a window cannot be as narrow as a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def set_scheme(driver: Any, scheme: str) -> None:
    """What the user prefers: `light` or `dark`."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
