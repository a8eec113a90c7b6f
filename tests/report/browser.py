"""Headless Chromium for tests of pages: Debian's packages ``chromium`` and ``chromium-driver``."""

import shutil
from contextlib import contextmanager

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1480,920",
)  # fmt: skip
READY = "return document.documentElement.dataset.ready === 'true'"

needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs Chromium: apt-get install chromium chromium-driver",
)


@contextmanager
def open_browser():
    """A browser without a profile, which notes what the console is told."""
    # Only who has Chromium needs it.
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    browser.set_page_load_timeout(60)
    browser.set_script_timeout(60)
    try:
        yield browser
    finally:
        browser.quit()


class Page:
    """One report in a browser."""

    def __init__(self, browser, path):
        from selenium.webdriver.support.wait import WebDriverWait

        self.browser = browser
        self._wait = WebDriverWait(browser, 30, poll_frequency=0.05)
        browser.get("about:blank")
        browser.get(path.as_uri())
        self.wait_for(READY)

    def script(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def wait_for(self, condition):
        """Until the script returns something true, which is returned."""
        return self._wait.until(lambda browser: browser.execute_script(condition))

    def go(self, address):
        self.script("location.hash = arguments[0]", address)
        self.wait_for(f"return document.querySelector('[aria-current=page]').hash === '#{address.split('/')[0]}'")

    def count(self, selector):
        return self.script("return document.querySelectorAll(arguments[0]).length", selector)

    def text(self, selector="main"):
        return self.script("return document.querySelector(arguments[0]).innerText", selector)

    def press(self, *keys, on=None):
        """Type keys: into what has the focus, or into the first element that fits."""
        from selenium.webdriver.common.by import By

        browser = self.browser
        element = browser.switch_to.active_element if on is None else browser.find_element(By.CSS_SELECTOR, on)
        element.send_keys(*keys)

    def click(self, selector):
        from selenium.webdriver.common.by import By

        self.browser.find_element(By.CSS_SELECTOR, selector).click()

    def tell(self, selector, event):
        """Let the mouse do something at the first element that fits."""
        act = "document.querySelector(arguments[0]).dispatchEvent(new MouseEvent(arguments[1], {bubbles: true}))"
        self.script(act, selector, event)

    def complaints(self):
        return [each["message"] for each in self.browser.get_log("browser")]
