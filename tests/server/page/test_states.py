"""What the page shows and does when something is wrong."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from couce.server.auth import Keys

pytest.importorskip("playwright", reason="needs the package playwright")

from playwright.sync_api import Route, expect

from .conftest import Open
from .site import Site, serving


def test_an_empty_index_says_how_to_fill_it(visit: Open, site: Site, tmp_path: Path) -> None:
    model = str(site.folder / "model.onnx")
    with serving(tmp_path, "--model", model, "--new-index") as empty:
        looking = visit(at=empty)
        page = looking.page
        for place in ("search", "gallery"):
            page.goto(f"{empty}/#/{place}")
            told = page.locator(f"#{place} .empty")
            expect(told).to_contain_text("The index is empty")
            expect(told).to_contain_text("couce index build gallery/")
            expect(told).to_contain_text(f"{empty}/items")
        looking.search_with(site.files[5])
        expect(page.locator("#results .empty")).to_be_visible()
        expect(page.locator("#about")).to_contain_text("0 images")
        headers = {"Content-Type": "image/png"}
        added = page.request.post(
            f"{empty}/items", data=site.files[5].read_bytes(), headers=headers
        )
        assert added.status == 201
        page.get_by_role("button", name="Look again").click()  # the image is kept
        looking.hits(1)
        expect(page.locator("#about")).to_contain_text("1 image,")


def busy(times: int) -> Callable[[Route], None]:
    left = [None] * times

    def answer(route: Route) -> None:
        if not left:
            route.continue_()
            return
        left.pop()
        body = {"code": "overloaded", "detail": "the server is busy", "status": 429}
        route.fulfill(status=429, headers={"Retry-After": "1"}, body=json.dumps(body))

    return answer


def test_a_busy_server_is_asked_again(visit: Open, site: Site) -> None:
    looking = visit()
    looking.expect_complaint("status of 429")
    page = looking.page
    page.route("**/search*", busy(2))
    looking.search_with(site.files[5])
    expect(page.locator(".notice")).to_have_text(
        "The server is busy. Trying again in 1 s (1 of 4)."
    )
    expect(page.locator(".notice")).to_contain_text("(2 of 4)")
    assert looking.hits(20) == site.nearest(site.vectors[5], 20)
    expect(page.locator(".notice")).to_have_count(0)


def test_a_server_that_stays_busy_is_left_alone(visit: Open, site: Site) -> None:
    looking = visit()
    looking.expect_complaint("status of 429")
    page = looking.page
    page.route("**/search*", busy(5))
    page.clock.install()
    looking.search_with(site.files[5])
    for tried in range(1, 5):
        expect(page.locator(".notice")).to_contain_text(f"({tried} of 4)")
        page.clock.run_for(1000)
    expect(page.get_by_role("alert")).to_contain_text("The server is busy.")
    page.get_by_role("button", name="Try again").click()
    assert looking.hits(20) == site.nearest(site.vectors[5], 20)


def test_a_server_that_is_away_is_waited_for(visit: Open, site: Site) -> None:
    looking = visit()
    looking.expect_complaint("ERR_INTERNET_DISCONNECTED")
    page = looking.page
    page.locator("#samples a").first.wait_for()
    page.context.set_offline(True)
    told = page.locator(".notice")
    expect(told).to_have_text("The server cannot be reached. Trying again until it answers.")
    looking.search_with(site.files[5])
    expect(page.locator("#results")).to_have_attribute("aria-busy", "true")
    page.context.set_offline(False)
    assert looking.hits(20) == site.nearest(site.vectors[5], 20)
    expect(told).to_have_count(0)
    looking.pictures_load("#hits")


def test_a_server_that_stops_and_starts_again(visit: Open, site: Site, tmp_path: Path) -> None:
    options = ("--model", str(site.folder / "model.onnx"), "--index", str(site.folder / "index"))
    with serving(tmp_path, *options) as first:
        looking = visit("#/gallery", at=first)
        looking.expect_complaint("ERR_CONNECTION_REFUSED")
        page = looking.page
        page.locator("#items a").first.wait_for()
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".notice")).to_contain_text("The server cannot be reached.")
    port = first.rpartition(":")[2]
    with serving(tmp_path, "--port", port, *options):
        expect(page.locator("#range")).to_have_text("49 to 72 of 72")
        expect(page.locator(".notice")).to_have_count(0)
        looking.pictures_load("#items")


def test_a_key_is_asked_for_and_kept(visit: Open, site: Site, tmp_path: Path) -> None:
    token = Keys.in_folder(tmp_path / "state").make("someone", "read", None)
    options = ("--model", str(site.folder / "model.onnx"), "--index", str(site.folder / "index"))
    with serving(tmp_path, *options, "--state", "state") as locked:
        looking = visit("#/gallery", at=locked)
        looking.expect_complaint("status of 401")
        page = looking.page
        dialog = page.get_by_role("dialog", name="This server needs a key")
        expect(page.get_by_role("textbox", name="Key")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#gallery [role=alert]")).to_contain_text("key")
        page.locator("#gallery").get_by_role("button", name="Try again").click()
        page.get_by_role("textbox", name="Key").fill("no key at all")
        page.keyboard.press("Enter")
        expect(page.locator("#key-said")).to_contain_text("without spaces")
        page.get_by_role("textbox", name="Key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-said")).to_have_text("The server does not know this key.")
        page.get_by_role("textbox", name="Key").fill(token)
        page.get_by_role("button", name="Use this key").click()
        expect(dialog).to_be_hidden()
        expect(page.locator("#items a")).to_have_count(48)
        looking.pictures_load("#items")
        expect(page.locator("#items img").first).to_have_attribute("src", re.compile("^blob:"))
        page.reload()
        expect(page.locator("#items a")).to_have_count(48)
        looking.search_with(site.files[5])
        assert looking.hits(20) == site.nearest(site.vectors[5], 20)
        looking.pictures_load("#hits")
        page.get_by_role("button", name="Forget the key").click()
        expect(dialog).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0


def test_who_gives_no_key_is_not_asked_again_by_a_slower_request(
    visit: Open, site: Site, tmp_path: Path
) -> None:
    Keys.in_folder(tmp_path / "state").make("someone", "read", None)
    options = ("--model", str(site.folder / "model.onnx"), "--index", str(site.folder / "index"))
    with serving(tmp_path, *options, "--state", "state") as locked:
        looking = visit("#/gallery", at=locked)
        looking.expect_complaint("status of 401")
        page = looking.page
        expect(page.get_by_role("textbox", name="Key")).to_be_focused()
        slow: list[Route] = []
        page.route("**/info", lambda route: slow.append(route))
        page.reload()
        expect(page.get_by_role("textbox", name="Key")).to_be_focused()
        page.keyboard.press("Escape")
        expect(page.locator("#gallery [role=alert]")).to_contain_text("key")
        (request,) = slow
        with page.expect_response("**/info") as answer:
            request.continue_()
        assert answer.value.status == 401
        expect(page.locator("#about")).to_contain_text("needs a key")
        expect(page.get_by_role("dialog")).to_be_hidden()


def test_the_policy_holds_and_a_breach_would_be_seen(visit: Open) -> None:
    looking = visit()
    assert looking.unexpected() == []
    looking.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<p id=odd style=\"color: red\">x</p>')"
    )
    assert looking.page.locator("#odd").evaluate("odd => odd.style.length") == 0
    assert "Content Security Policy" in looking.unexpected()[0]
    looking.expect_complaint("Content Security Policy")
