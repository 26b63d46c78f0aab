"""Fixtures of the page's tests: a browser, a gallery and a server."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from .site import Site, Visit, serving, write_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)
BODY_BYTES = 200_000  # most bytes of a request to the server
Open = Callable[..., Visit]


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs the browser chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=20_000)  # long, because the machine may be busy
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return write_site(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="package")
def address(site: Site) -> Iterator[str]:
    with serving(site.folder, "--max-bytes", str(BODY_BYTES)) as address:
        yield address


@pytest.fixture
def visit(browser: "Browser", address: str, site: Site) -> Iterator[Open]:
    """Opens a page in a new browser context. At the end, the browser must have no complaints."""
    visits = []
    with ExitStack() as contexts:

        def open_page(
            place: str = "", at: str = address, script: str = "", **options: Any
        ) -> Visit:
            context = contexts.enter_context(browser.new_context(**options))
            if script:
                context.add_init_script(script)
            visits.append(Visit(context.new_page(), site))
            visits[-1].page.goto(f"{at}/{place}")
            return visits[-1]

        yield open_page
        assert [each.unexpected() for each in visits] == [[]] * len(visits)
