"""Searching on the page, in a real browser against a real server."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("playwright", reason="needs the package playwright")

from playwright.sync_api import expect

from .conftest import BODY_BYTES, Open
from .site import PER_CLASS, Site


def test_a_picture_finds_what_looks_like_it(visit: Open, site: Site) -> None:
    looking = visit()
    looking.search_with(site.files[5])
    assert looking.hits(20) == site.nearest(site.vectors[5], 20)
    page = looking.page
    assert looking.labels()[0] == site.labels[5]
    expect(page.locator("#summary")).to_have_text("20 most similar images")
    expect(page.locator("#query img")).to_have_attribute("src", re.compile("^blob:"))
    expect(page.locator("#query figcaption")).to_have_text(site.files[5].name)
    assert re.fullmatch(
        r"decode [\d.]+ m?s · embed [\d.]+ m?s · search [\d.]+ m?s · total [\d.]+ m?s",
        page.inner_text("#times").replace("\u00a0", " "),
    )
    looking.pictures_load("#hits")
    share = (
        page.locator("#hits .bar")
        .nth(19)
        .evaluate(
            "bar => bar.firstChild.getBoundingClientRect().width"
            " / bar.getBoundingClientRect().width"
        )
    )
    assert share == pytest.approx(float(looking.hits(20)[19].split()[1]), abs=0.02)


def test_a_hit_searches_by_itself_and_back_returns(visit: Open, site: Site) -> None:
    looking = visit()
    looking.search_with(site.files[5])
    first = looking.hits(20)
    page = looking.page
    number = site.ids.index(first[1].split()[0])
    page.locator("#hits a").nth(1).click()
    expect(page).to_have_url(re.compile(f"id={site.ids[number]}"))
    expect(page.locator("#query figcaption")).to_contain_text(site.ids[number])
    assert looking.hits(20) == site.like(number, 20)
    looking.pictures_load("#query")
    page.reload()
    assert looking.hits(20) == site.like(number, 20)
    page.go_back()
    page.locator(".drop").wait_for()  # the user's own image is lost at a reload
    looking.search_with(site.files[5])
    assert looking.hits(20) == first
    page.locator("#hits a").nth(1).click()
    expect(page.locator("#query figcaption")).to_contain_text(site.ids[number])
    assert looking.hits(20) == site.like(number, 20)
    page.go_back()
    expect(page.locator("#query img")).to_have_attribute("src", re.compile("^blob:"))
    assert looking.hits(20) == first
    page.go_forward()
    expect(page.locator("#query figcaption")).to_contain_text(site.ids[number])
    assert looking.hits(20) == site.like(number, 20)


def test_the_slider_says_how_many(visit: Open, site: Site) -> None:
    looking = visit()
    looking.search_with(site.files[5])
    looking.hits(20)
    slider = looking.page.locator("#k")
    slider.press("ArrowRight")
    assert looking.hits(21) == site.nearest(site.vectors[5], 21)
    slider.press("Home")
    assert looking.hits(1) == site.nearest(site.vectors[5], 1)
    slider.press("End")
    assert looking.hits(60) == site.nearest(site.vectors[5], 60)
    expect(looking.page.locator("#k-value")).to_have_text("60")


def test_a_label_filters_the_hits(visit: Open, site: Site) -> None:
    looking = visit()
    looking.search_with(site.files[5])
    looking.hits(20)
    page = looking.page
    field = page.get_by_role("combobox", name="Label")
    field.focus()
    expect(page.get_by_role("option")).to_have_count(6)
    field.fill("lu")
    expect(page.get_by_role("option")).to_have_text(["blue12", "plum12"])
    field.press("ArrowDown")
    field.press("ArrowDown")
    expect(page.get_by_role("option", name="plum")).to_have_class("active")
    field.press("Enter")
    assert looking.hits(PER_CLASS) == site.nearest(site.vectors[5], PER_CLASS, "plum")
    assert looking.labels() == ["plum"] * PER_CLASS
    page.get_by_role("button", name="All labels").click()
    assert looking.hits(20) == site.nearest(site.vectors[5], 20)
    page.go_back()
    assert looking.hits(PER_CLASS) == site.nearest(site.vectors[5], PER_CLASS, "plum")
    expect(field).to_have_value("plum")


def test_a_picture_is_pasted(visit: Open, site: Site) -> None:
    looking = visit("#/gallery", permissions=["clipboard-read", "clipboard-write"])
    page = looking.page
    page.locator("#items a").first.wait_for()
    page.evaluate(
        """async (bytes) => navigator.clipboard.write([new ClipboardItem({
            "image/png": new Blob([new Uint8Array(bytes)], {type: "image/png"})})])""",
        list(site.files[17].read_bytes()),
    )
    page.keyboard.press("Control+V")
    assert looking.hits(20) == site.nearest(site.vectors[17], 20)
    page.evaluate("navigator.clipboard.writeText('no picture')")
    page.keyboard.press("Control+V")
    expect(page.get_by_role("alert")).to_have_text(
        "There is no image in what you dropped or pasted."
    )
    assert looking.hits(20) == site.nearest(site.vectors[17], 20)  # the hits stay
    page.get_by_role("link", name="Search").click()
    page.locator(".drop").wait_for()
    page.keyboard.press("Control+V")
    expect(page.get_by_role("alert")).to_have_text(
        "There is no image in what you dropped or pasted."
    )


def test_a_picture_is_dropped(visit: Open, site: Site) -> None:
    looking = visit("#/evaluation")
    page = looking.page
    content = page.evaluate_handle(
        """(bytes) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "a.png", {type: "image/png"}));
            return transfer;
        }""",
        list(site.files[17].read_bytes()),
    )
    page.dispatch_event("main", "dragenter", {"dataTransfer": content})
    expect(page.locator("#curtain")).to_be_visible()
    page.dispatch_event("main", "drop", {"dataTransfer": content})
    expect(page.locator("#curtain")).to_be_hidden()
    assert looking.hits(20) == site.nearest(site.vectors[17], 20)


def test_a_large_picture_is_made_smaller(visit: Open, site: Site, tmp_path: Path) -> None:
    pixels = np.asarray(Image.open(site.files[5]).resize((2400, 1800), Image.Resampling.NEAREST))
    Image.fromarray(pixels).save(tmp_path / "large.bmp")
    assert (tmp_path / "large.bmp").stat().st_size > BODY_BYTES
    remember = """
        const real = fetch;
        window.fetch = (path, options) => {
            if (options?.body instanceof Blob) window.sent = options.body;
            return real(path, options);
        };"""
    looking = visit(script=remember)
    looking.search_with(tmp_path / "large.bmp")
    assert looking.hits(20)[0].split()[0] == site.ids[5]
    width, height, size = looking.page.evaluate(
        "createImageBitmap(sent).then((found) => [found.width, found.height, sent.size])"
    )
    assert (width, height) == (1600, 1200)
    assert size <= BODY_BYTES
    looking.search_with(site.files[5])  # small enough, so it is sent as it is
    assert looking.hits(20) == site.nearest(site.vectors[5], 20)
    assert looking.page.evaluate("sent.size") == site.files[5].stat().st_size


def test_the_camera_takes_a_picture_and_stops(visit: Open) -> None:
    remember = """
        const media = navigator.mediaDevices, open = media.getUserMedia.bind(media);
        media.getUserMedia = async (wanted) => window.stream = await open(wanted);"""
    looking = visit(script=remember, permissions=["camera"])
    page = looking.page
    ended = "stream.getTracks().map((track) => track.readyState)"
    page.get_by_role("button", name="Use the camera").click()
    page.get_by_role("button", name="Take the photo").click()
    looking.hits(20)
    expect(page.locator("#query figcaption")).to_have_text("from the camera")
    assert page.evaluate(ended) == ["ended"]
    page.get_by_role("button", name="Camera").click()
    expect(page.get_by_role("button", name="Take the photo")).to_be_enabled()
    assert page.evaluate(ended) == ["live"]
    page.keyboard.press("Escape")
    page.wait_for_function(f"() => {ended}[0] === 'ended'")
    looking.hits(20)


def test_without_a_camera_there_is_no_button(visit: Open) -> None:
    absent = "Object.defineProperty(Navigator.prototype, 'mediaDevices', {value: undefined})"
    page = visit(script=absent).page
    expect(page.get_by_role("button", name="Choose an image")).to_be_visible()
    expect(page.locator("#search [data-do=camera]:not([hidden])")).to_have_count(0)


def test_a_wrong_file_is_told_in_the_servers_words(visit: Open, site: Site) -> None:
    looking = visit()
    looking.expect_complaint("status of 422", "status of 415")
    with looking.page.expect_response("**/search*") as answer:
        looking.search_with({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"})
    told = looking.page.get_by_role("alert")
    expect(told).to_contain_text(answer.value.json()["detail"], ignore_case=True)
    looking.hits(0)
    expect(looking.page.get_by_role("button", name="Try again")).to_have_count(
        0
    )  # it would not help
    looking.search_with(site.files[5])
    assert looking.hits(20) == site.nearest(site.vectors[5], 20)
    expect(told).to_have_count(0)
