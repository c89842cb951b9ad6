"""The page in a real browser."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mujoco")

from robotwin_adapters.open_dataset import open_dataset
from robotwin_adapters.tabletop.collect import collect_all
from robotwin_adapters.tabletop.record import RecordingConfig
from tests.support.chromium import chromium
from tests.support.service import running
from worldmodel.serving.play.run import play_app

FOLDER = Path(__file__).parents[4] / "worldmodel" / "serving" / "play"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(play_app("desk", out=str(tmp_path_factory.mktemp("drives")))) as url:
        yield url


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Any]:
    with chromium() as opened:
        opened.get(address)
        wait(lambda: opened.execute_script("return play.made >= 8"))
        yield opened


def wait(is_there: Callable[[], Any], seconds: float = 120) -> Any:
    until = time.monotonic() + seconds
    while not (found := is_there()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)
    return found


def hold(browser: Any, key: str, frames: int) -> None:
    from selenium.webdriver import ActionChains

    before = browser.execute_script("return play.made")
    ActionChains(browser).key_down(key).perform()
    wait(lambda: browser.execute_script("return play.made") >= before + frames)
    ActionChains(browser).key_up(key).perform()


def scene(browser: Any, act: Callable[[], Any]) -> None:
    """Do what sets a scene, and wait until the scene is in the page and has been driven."""
    before = browser.execute_script("return play.scenes")
    act()
    wait(lambda: browser.execute_script("return play.scenes > arguments[0]", before))
    wait(lambda: browser.execute_script("return play.reading.frames >= 4 || play.paused"))


def hand(browser: Any, number: int = 0) -> list[float]:
    return browser.execute_script(f"return play.hands[play.order[{number}]]")


def test_the_page_asks_nobody_but_its_own_server() -> None:
    for ending in ("html", "css", "js"):
        text = (FOLDER / f"page.{ending}").read_text()
        assert text.isascii()
        for scheme in ("http:", "https:", "//cdn", "@import"):
            assert scheme not in text.replace('"https:"', "")


def test_the_autopilot_drives_until_a_key_is_pressed(browser: Any) -> None:
    assert browser.execute_script("return play.follow")
    assert browser.find_element("id", "pill").text.startswith("Autopilot.")
    places = np.array([hand(browser, number) for number in (0, 1)])
    # How far it gets in how many frames depends on when the places above were read.
    wait(lambda: np.abs([hand(browser, number) for number in (0, 1)] - places).max() > 0.1)
    hold(browser, "a", 4)
    wait(lambda: not browser.find_element("id", "pill").is_displayed())
    assert not browser.execute_script("return play.follow")


def test_a_tap_between_two_blocks_is_not_lost(browser: Any) -> None:
    scene(browser, lambda: browser.execute_script("reset(1)"))
    before = browser.execute_script("return play.command")
    browser.execute_script(
        """for (const kind of ["keydown", "keyup"])
        document.body.dispatchEvent(new KeyboardEvent(kind, {code: "KeyS", bubbles: true}));"""
    )
    wait(lambda: browser.execute_script("return play.command") != before)
    assert browser.execute_script("return play.command") != before


def test_keys_move_the_hands_the_right_way(browser: Any) -> None:
    scene(browser, lambda: browser.execute_script("reset(1)"))
    start = hand(browser, 0)
    hold(browser, "s", 12)
    assert hand(browser, 0)[1] > start[1] + 0.03  # down
    start = hand(browser, 0)
    hold(browser, "d", 12)
    assert hand(browser, 0)[0] > start[0] + 0.03  # right
    start = hand(browser, 1)
    hold(browser, "k", 12)
    assert hand(browser, 1)[1] > start[1] + 0.03
    assert browser.find_element("id", "pads").text.startswith("LEFT IN THE PICTURE the robot's")


def test_a_switch_holds_what_it_names(browser: Any) -> None:
    scene(browser, lambda: browser.execute_script("reset(1)"))
    names = [button.text for button in browser.find_elements("css selector", "#concepts button")]
    assert names == ["left arm", "left gripper", "right arm", "right gripper"]
    side = browser.execute_script("return play.order[0]")
    switch = browser.find_element("css selector", f'[data-concept="{side}_arm"]')
    switch.click()
    assert switch.get_attribute("aria-pressed") == "true"
    hold(browser, "s", 8)  # what was asked for before the switch has come by then
    held = browser.execute_script("return play.command")
    hold(browser, "s", 8)
    assert browser.execute_script("return play.command") == held
    switch.click()
    hold(browser, "s", 8)
    assert browser.execute_script("return play.command") != held


def test_a_drag_pulls_the_nearest_hand(browser: Any) -> None:
    from selenium.webdriver import ActionChains

    start = hand(browser, 0)
    canvas = browser.find_element("id", "dream")
    width, height = canvas.size["width"], canvas.size["height"]
    inside = [min(max(share, 0.1), 0.7) - 0.5 for share in start]
    place = (inside[0] * width, inside[1] * height)
    before = browser.execute_script("return play.made")
    actions = ActionChains(browser).move_to_element_with_offset(canvas, *map(int, place)).click_and_hold()
    actions.move_by_offset(int(0.25 * width), 0).perform()
    wait(lambda: browser.execute_script("return play.made") >= before + 12)
    ActionChains(browser).release().perform()
    assert hand(browser, 0)[0] > start[0] + 0.03


def test_pause_back_and_reset(browser: Any) -> None:
    wait(lambda: browser.execute_script("return play.reading && play.reading.frames > 4"))
    browser.find_element("id", "pause").click()
    wait(lambda: not browser.execute_script("return play.waiting || play.queue.length"))
    held = browser.execute_script("return play.reading.frames")
    time.sleep(1.0)
    assert browser.execute_script("return play.reading.frames") == held
    scene(browser, browser.find_element("id", "back").click)
    assert browser.execute_script("return play.reading.frames") == held - 4
    seed = browser.execute_script("return play.seed")
    scene(browser, browser.find_element("id", "next").click)
    assert browser.execute_script("return play.seed") == seed + 1
    assert not browser.execute_script("return play.paused")


def test_another_robot_of_the_model_can_be_driven(browser: Any) -> None:
    from selenium.webdriver.support.ui import Select

    robots = browser.execute_script("return play.info.robots")
    for name in (robots[1], robots[0]):
        scene(browser, lambda name=name: Select(browser.find_element("id", "robot")).select_by_value(name))
        assert browser.execute_script("return play.info.robot") == name


def test_what_a_person_asks_for_goes_before_the_next_block(browser: Any, address: str) -> None:
    # A drive saved right behind a reset holds one frame: the page says so instead of waiting for its turn.
    browser.execute_script("""$("note").textContent = ""; reset(3); save();""")
    wait(lambda: browser.find_element("id", "note").text == "nothing was driven yet")
    assert browser.find_element("id", "save").is_enabled()


def test_a_drive_can_be_saved_and_the_video_downloaded(browser: Any, address: str) -> None:
    import urllib.request

    from selenium.webdriver.support.ui import Select

    scene(browser, lambda: browser.execute_script("reset(3)"))
    Select(browser.find_element("id", "format")).select_by_value("mp4")
    browser.find_element("id", "save").click()
    link = wait(lambda: browser.find_elements("css selector", "#note a"))[0].get_attribute("href")
    with urllib.request.urlopen(link, timeout=60) as video:
        assert video.read()[4:8] == b"ftyp"
    with pytest.raises(OSError, match="404"):
        urllib.request.urlopen(f"{address}/saved/..%2Fpyproject.toml", timeout=10)


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_nothing_hangs_over_the_edge_and_everything_has_a_name(browser: Any, width: int, height: int) -> None:
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    unnamed = browser.execute_script(
        """return [...document.querySelectorAll("button, input, select, canvas")].filter(item =>
        !(item.textContent.trim() || item.getAttribute("aria-label") ||
          (item.labels && item.labels.length))).map(item => item.id)"""
    )
    assert unnamed == []
    for theme in ("dark", "light"):
        browser.execute_script(f"theme('{theme}')")
        assert browser.execute_script("return document.documentElement.dataset.theme") == theme


def test_the_browser_complains_of_nothing_and_asks_no_other_server(browser: Any, address: str) -> None:
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    asked = [
        json.loads(entry["message"])["message"]["params"]["request"]["url"]
        for entry in browser.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"]
    ]
    assert asked
    assert all(url.startswith((address, "data:", "blob:")) for url in asked), asked


def test_a_recorded_episode_is_loaded_and_taken_over_in_the_middle(browser: Any, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import Select

    collect_all(
        tmp_path / "heron", [RecordingConfig("place_a2b_left", "heron")], episodes=1, seed=0, workers=1
    )
    with running(play_app("desk", dataset=str(tmp_path / "heron"), out=str(tmp_path / "drives"))) as address:
        browser.get(address)
        wait(lambda: browser.execute_script("return window.play && play.made >= 4"))
        assert browser.execute_script("return play.info.robot") == "heron"
        browser.execute_script("""$("frame").value = 24; $("frame").dispatchEvent(new Event("input"))""")
        scene(browser, browser.find_element("id", "load").click)
        assert browser.find_element("id", "beside-name").text == "Recording"
        wait(lambda: browser.find_element("id", "pill").text.startswith("Recorded commands."))
        wait(lambda: browser.execute_script("return play.reading.frames >= 8"))
        hold(browser, "d", 8)
        assert not browser.execute_script("return play.follow")
        assert not browser.find_element("id", "beside-figure").is_displayed()
        browser.execute_script("""$("sliders-box").open = true;
            $("slider2").value = play.info.actions[2].high; $("slider2").dispatchEvent(new Event("input"))""")
        before = browser.execute_script("return play.command[2]")
        wait(lambda: browser.execute_script("return play.command[2]") > before + 0.005)
        Select(browser.find_element("id", "format")).select_by_value("lerobot")
        browser.find_element("id", "save").click()
        wait(lambda: "drive-000-lerobot" in browser.find_element("id", "note").text)
        saved = open_dataset(tmp_path / "drives" / "drive-000-lerobot")[0]
        assert saved.num_frames >= 17
        assert saved.embodiment == "heron"
        browser.get("about:blank")
