"""A real browser for tests of pages: Debian's chromium, or a skip that says how to get it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

_HINT = "install it with: apt-get install chromium chromium-driver, and pip install selenium"


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    webdriver = pytest.importorskip("selenium.webdriver", reason=f"selenium is missing; {_HINT}")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip(f"chromium or chromedriver is missing; {_HINT}")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")  # chromium refuses to run as root with its sandbox
    for argument in arguments:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=chromedriver)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()
