"""The views Gallery and Evaluation, and all views on phones, by keyboard and in both schemes."""

import re
import zipfile
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from couce.metrics import query_gallery_metrics, retrieval_metrics

pytest.importorskip("playwright", reason="needs the package playwright")

from playwright.sync_api import Page, Route, expect

from .conftest import Open
from .site import COLOURS, HOSTILE, LONG, PER_CLASS, Site, write_picture

# Milliseconds. An evaluation has the lowest priority, so it may be slow on a busy machine.
PATIENCE = 120_000


def test_the_gallery_is_leafed_through(visit: Open, site: Site) -> None:
    looking = visit("#/gallery")
    page = looking.page
    tiles = page.locator("#items a")
    found = []
    expect(page.locator("#range")).to_have_text("1 to 48 of 72")
    expect(tiles).to_have_count(48)
    looking.pictures_load("#items")
    found += tiles.evaluate_all("tiles => tiles.map((tile) => tile.hash)")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("#range")).to_have_text("49 to 72 of 72")
    expect(page.locator("#older")).to_have_attribute("aria-disabled", "true")
    found += tiles.evaluate_all("tiles => tiles.map((tile) => tile.hash)")
    assert found == [f"#/search?id={id}" for id in sorted(site.ids)]
    page.go_back()
    expect(page.locator("#range")).to_have_text("1 to 48 of 72")
    field = page.get_by_role("combobox", name="Label")
    field.fill("blue")
    page.get_by_role("option", name="blue").click()
    expect(page.locator("#range")).to_have_text(f"1 to {PER_CLASS} of {PER_CLASS}")
    assert tiles.locator("bdi").all_text_contents() == ["blue"] * PER_CLASS
    number = site.ids.index(tiles.first.evaluate("tile => tile.hash.split('id=')[1]"))
    tiles.first.click()
    assert looking.hits(20) == site.like(number, 20)
    page.go_back()
    expect(field).to_have_value("blue")
    expect(page.locator("#range")).to_have_text(f"1 to {PER_CLASS} of {PER_CLASS}")


def drawn(page: Page) -> dict[str, str]:
    expect(page.locator(".metrics")).to_be_visible(timeout=PATIENCE)
    names, values = page.locator(".metrics th"), page.locator(".metrics .value")
    return dict(zip(names.all_text_contents(), values.all_text_contents(), strict=True))


def percent(metrics: dict[str, float]) -> dict[str, str]:
    return {name: f"{100 * value:.1f} %" for name, value in metrics.items()}


def test_an_evaluation_runs_to_its_end(
    visit: Open, address: str, site: Site, tmp_path: Path
) -> None:
    page = visit("#/evaluation").page
    expected = retrieval_metrics(site.vectors, site.labels, (1, 2, 4, 8))
    assert 0.5 < expected["MAP@R"] < 1  # a constant 0 or 1 would be wrong
    page.get_by_role("button", name="Evaluate this index").click()
    expect(page.locator(".card h2")).to_have_text("This index")
    found = drawn(page)
    id = page.url.rpartition("job=")[2]
    assert found == percent(page.request.get(f"{address}/evaluate/{id}").json()["metrics"])
    # NMI is left out, because its k-means starts at other points.
    assert {**found, "NMI": ""} == {**percent(expected), "NMI": ""}
    expect(page.locator(".card")).to_contain_text("72 images · 6 labels")
    share = (
        page.locator(".metrics .bar")
        .nth(5)
        .evaluate(
            "bar => bar.firstChild.getBoundingClientRect().width"
            " / bar.getBoundingClientRect().width"
        )
    )
    assert share == pytest.approx(expected["MAP@R"], abs=0.01)

    rows = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    classes = [f"c{n % 4}" for n in range(40)]
    np.savez(tmp_path / "rows.npz", embeddings=rows, labels=np.array(classes))
    page.set_input_files("#evaluation-file", tmp_path / "rows.npz")
    expect(page.locator(".card h2")).to_have_text("Embeddings of an npz")
    assert drawn(page) == percent(retrieval_metrics(rows, classes, (1, 2, 4, 8)))

    own = ["amber"] * 9 + ["blue"] * 9
    pictures = [
        write_picture(tmp_path / label / f"{seed}.png", COLOURS[label], 5000 + seed)
        for seed, label in enumerate(own)
    ]
    with zipfile.ZipFile(tmp_path / "queries.zip", "w") as archive:
        for picture in pictures:
            archive.write(picture, picture.relative_to(tmp_path))
    page.set_input_files("#evaluation-file", tmp_path / "queries.zip")
    expect(page.locator(".card h2")).to_have_text("Images of a zip")
    queries = site.embedder.embed(pictures)
    expected = query_gallery_metrics(queries, own, site.vectors, site.labels, (1, 2, 4, 8))
    found = drawn(page)
    assert {name: found[name] for name in expected} == percent(expected)

    jobs = page.locator("#jobs a")
    expect(jobs.locator("span:first-child")).to_have_text(
        ["Images of a zip", "Embeddings of an npz", "This index"]
    )
    jobs.last.click()
    expect(page.locator(".card h2")).to_have_text("This index")
    page.go_back()
    expect(page.locator(".card h2")).to_have_text("Images of a zip")


def test_an_evaluation_fails_or_is_cancelled(visit: Open, tmp_path: Path) -> None:
    page = visit("#/evaluation").page
    (tmp_path / "notes.txt").write_text("neither")
    page.set_input_files("#evaluation-file", tmp_path / "notes.txt")
    expect(page.get_by_role("alert")).to_have_text(
        "Notes.txt is neither a zip nor an npz. Choose another file."
    )
    (tmp_path / "broken.zip").write_text("no zip")
    page.set_input_files("#evaluation-file", tmp_path / "broken.zip")
    expect(page.locator(".card[data-state=failed] .detail")).to_contain_text(
        "not a zip file", timeout=PATIENCE
    )
    page.get_by_role("button", name="Evaluate this index").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".card[data-state=cancelled]")).to_be_visible(timeout=PATIENCE)
    expect(page.locator("#jobs a").first).to_contain_text("cancelled")


def test_the_evaluation_that_is_shown_is_the_one_that_is_cancelled(visit: Open) -> None:
    """Two evaluations that wait look the same."""
    page = visit().page
    cancelled: list[str] = []
    jobs = {
        id: {"id": id, "of": of, "state": "queued", "progress": 0, "stage": "waiting", "made": 0}
        | dict.fromkeys(("metrics", "detail", "items", "classes", "started", "ended"))
        | {"left_out": 0}
        for id, of in (("a" * 16, "index"), ("b" * 16, "embeddings"))
    }

    def answer(route: Route) -> None:
        id = route.request.url.rpartition("/")[2]
        if route.request.method == "DELETE":
            cancelled.append(id)
        found = jobs[id] if id in jobs else {"jobs": list(jobs.values())}
        route.fulfill(json=found)

    page.route(re.compile("/evaluate"), answer)
    page.evaluate("location.hash = '#/evaluation'")
    for id, title in (("a" * 16, "This index"), ("b" * 16, "Embeddings of an npz")):
        page.locator(f"#jobs a[href*='{id}']").click()
        expect(page.locator(".card h2")).to_have_text(title)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    assert cancelled == ["b" * 16]


def test_hostile_names_are_text(visit: Open, address: str, site: Site, tmp_path: Path) -> None:
    looking = visit()
    page = looking.page
    number = site.labels.index(HOSTILE)
    looking.search_with(site.files[number])
    looking.hits(20)
    tile = page.locator("#hits a").first
    assert looking.labels()[0] == HOSTILE
    assert (tile.get_attribute("title") or "").startswith(HOSTILE)
    field = page.get_by_role("combobox", name="Label")
    for label in (HOSTILE, LONG):
        field.click()
        page.get_by_role("option").filter(has_text=label).click()
        assert looking.hits(PER_CLASS) == site.nearest(site.vectors[number], PER_CLASS, label)
        assert looking.labels() == [label] * PER_CLASS
        expect(page.locator("#summary bdi")).to_have_text(label)
    cut = page.locator("#hits bdi").first.evaluate("one => one.scrollWidth > one.clientWidth")
    assert cut  # the long label ends in dots

    odd = "a/b?c#d%41&<i>\"' \u05e6\u05d9 🐦"
    picture = write_picture(tmp_path / "odd.png", (10, 10, 10), 999)
    added = page.request.post(
        f"{address}/items",
        params={"id": odd},
        data=picture.read_bytes(),
        headers={"Content-Type": "image/png"},
    )
    assert added.status == 201
    try:
        page.goto(f"{address}/#/search")
        looking.search_with(picture)
        tile = page.locator("#hits a").first
        expect(tile.locator("bdi")).to_have_text(odd)
        tile.click()
        expect(page.locator("#query figcaption")).to_have_text(odd)
        looking.pictures_load("#query")
        looking.hits(20)
    finally:
        page.request.delete(f"{address}/items/{quote(odd, safe='')}")


def test_phones_have_no_sideways_scroll(visit: Open, site: Site) -> None:
    looking = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page = looking.page

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        wide = "[...document.querySelectorAll('main *, header *, footer *')].filter((each) =>"
        wide += (
            " each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.outerHTML)"
        )
        assert page.evaluate(wide) == []

    page.locator("#samples a").first.wait_for()
    fits()
    looking.search_with(site.files[site.labels.index(LONG)])
    looking.hits(20)
    fits()
    page.locator("#hits a").first.tap()
    expect(page.locator("#query figcaption")).to_contain_text(LONG)
    page.get_by_role("combobox", name="Label").tap()
    expect(page.get_by_role("option")).to_have_count(6)
    fits()
    page.get_by_role("option").last.tap()
    looking.hits(PER_CLASS - 1)
    fits()
    page.get_by_role("link", name="Gallery").tap()
    expect(page.locator("#items a")).to_have_count(48)
    fits()
    page.get_by_role("link", name="Evaluation").tap()
    page.get_by_role("button", name="Evaluate this index").tap()
    drawn(page)
    fits()


def test_all_of_it_works_by_keyboard(visit: Open, site: Site) -> None:
    looking = visit()
    page = looking.page
    page.on("filechooser", lambda chooser: chooser.set_files(site.files[5]))
    press = page.keyboard.press
    page.locator("#samples a").first.wait_for()
    press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    press("Enter")
    expect(page.locator("#main")).to_be_focused()
    press("Tab")
    focused = page.locator(":focus-visible")
    expect(focused).to_have_text("Choose an image")
    assert focused.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    press("Enter")
    first = looking.hits(20)
    for _ in range(30):
        press("Tab")
        if focused.evaluate("one => one.matches('#hits a')"):
            break
    press("ArrowRight")
    press("ArrowDown")
    press("ArrowUp")
    number = site.ids.index(first[1].split()[0])
    assert focused.evaluate("one => one.hash").endswith(site.ids[number])
    press("Enter")
    expect(page.locator("#query figcaption")).to_contain_text(site.ids[number])
    assert looking.hits(20) == site.like(number, 20)
    expect(page.locator("#hits a").first).to_be_focused()


def contrast(page: Page, front: str, back: str) -> float:
    """The contrast ratio of two colours of the page, by WCAG 2.1."""
    values = page.evaluate(
        """(names) => names.map((name) => {
            const one = document.createElement("p");
            one.style.color = `var(${name})`;
            document.body.append(one);
            return getComputedStyle(one).color.match(/[\\d.]+/g).map(Number);
        })""",
        [front, back],
    )
    weights = np.array([0.2126, 0.7152, 0.0722])
    linear = np.array(values)[:, :3] / 255
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    dark, light = sorted(linear @ weights)
    return float((light + 0.05) / (dark + 0.05))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(visit: Open, scheme: str) -> None:
    page = visit(color_scheme=scheme, reduced_motion="reduce").page
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", ground))) / 3
    assert (brightness > 128) == (scheme == "light")
    grounds = ("--ground", "--surface", "--sunken")
    pairs = [(front, back) for front in ("--ink", "--soft", "--accent") for back in grounds]
    pairs += [
        ("--on-accent", "--accent"),
        ("--accent", "--accent-soft"),
        ("--ink", "--accent-soft"),
    ]
    pairs += [("--bad", "--bad-soft"), ("--warn", "--warn-soft"), ("--bad", "--surface")]
    assert {pair: contrast(page, *pair) for pair in pairs if contrast(page, *pair) < 4.5} == {}
    page.locator("#samples a").first.wait_for()
    moving = "one => getComputedStyle(one).transitionDuration"
    assert page.locator("#samples a").first.evaluate(moving) == "0s"
