# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: live figures, trees with words, by keys alone, on a phone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from depcache.prompt.render import render
from tests.helpers.browser import open_browser, require_browser, set_scheme, set_size
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.conftest import ADMIN_KEY, Served
from tests.sglang_patches.http.test_routes import chat

pytestmark = pytest.mark.sglang

ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
EVIL = '<img src=x onerror="document.title=1">'
# What has the focus, and the row in it.
OUTLINES = """
  const focused = document.activeElement;
  return [focused, focused.firstElementChild ?? focused].map(
    (element) => getComputedStyle(element).outlineStyle);
"""
_fresh = count()


@pytest.fixture(scope="module")
def driver(served: Served) -> Iterator[Any]:
    require_browser()
    with open_browser() as driver:
        driver.set_script_timeout(SLOWEST_S)
        yield driver


@pytest.fixture
def page(served: Served, driver: Any) -> Iterator[Page]:
    """The page, anew, with the key given and watching."""
    served.client.post("/depcache/ui/forget", headers=ADMIN)
    made = Page(served, driver)
    set_size(driver, 1280, 900)
    made.open()
    made.give_key(ADMIN_KEY)
    made.wait(lambda: made.text("#watch-state") == "Watching")
    yield made
    errors = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    # What the server refused is in the log as well.
    assert [line for line in errors if "status of 40" not in line] == []


class Page:
    """What a person sees and does."""

    def __init__(self, served: Served, driver: Any) -> None:
        self.served, self.driver = served, driver

    def open(self) -> None:
        url = str(self.served.client.base_url)
        self.driver.get(f"{url}/depcache/ui")
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.get(f"{url}/depcache/ui")

    def give_key(self, key: str) -> None:
        self.wait(lambda: self.one("#key-form").is_displayed())
        self.one("#key").send_keys(key + "\n")

    def wait(self, is_so: Callable[[], Any]) -> Any:
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.ui import WebDriverWait

        ignored = [StaleElementReferenceException]
        wait = WebDriverWait(self.driver, SLOWEST_S, 0.1, ignored_exceptions=ignored)
        return wait.until(lambda _: is_so())

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def press(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains, Keys

        for key in keys:
            ActionChains(self.driver).send_keys(getattr(Keys, key, key)).perform()

    def focused(self) -> Any:
        return self.driver.switch_to.active_element

    def ask(self, paths: list[list[str]], **keywords: Any) -> dict[str, Any]:
        """A prompt as a client sends it; its report. Waits until the page has it."""
        num = self.num_prompts()
        reply = self.served.post("/v1/chat/completions", chat(paths, **keywords)).json()
        self.wait(lambda: self.num_prompts() > num)
        return reply["metadata"]["depcache"]

    def num_prompts(self) -> int:
        return len(self.all("#prompt-list [role=option]"))

    def rows(self, box: str = "#prompt-detail") -> list[tuple[str, str]]:
        """(words, badges) of every row of a tree."""
        return [
            (
                row.find_element("css selector", ".words").text,
                row.find_element("css selector", ".badges").text,
            )
            for row in self.all(f"{box} .row")
        ]


def person() -> str:
    return f"Reader {next(_fresh)}"


def about(name: str) -> list[list[str]]:
    return [[name, "founded", "Tesla"], [name, "lives in", "Paris"], ["Oslo", "capital of", name]]


def test_without_the_key_no_prompt_is_shown(served: Served, driver: Any) -> None:
    page = Page(served, driver)
    page.open()
    page.wait(lambda: page.text("#watch-state") == "Needs a key")
    assert "This server has a key" in page.text("#key-form")
    page.give_key("wrong")
    page.wait(lambda: "does not take this key" in page.text("#key-error"))
    assert page.num_prompts() == 0
    page.give_key(ADMIN_KEY)
    page.wait(lambda: page.text("#watch-state") == "Watching")
    assert not page.one("#key-form").is_displayed()
    kept = driver.execute_script("return [Object.values(sessionStorage), localStorage.length]")
    assert kept == [[ADMIN_KEY], 0]
    assert driver.get_cookies() == []
    driver.get_log("browser")


def test_the_figures_are_those_of_the_server(page: Page) -> None:
    paths = about(person())
    reports = [page.ask(paths), page.ask(paths[::-1]), page.ask(paths)]
    page.wait(lambda: page.text("#ttft-note") == "median of the last 3 prompts")
    assert page.text("#ttft").endswith((" ms", " s"))
    tokens = page.served.client.get("/depcache/stats").json()["tokens"]
    page.wait(lambda: f"{tokens['shared']:,}" in page.text("#sources .shared dd"))
    assert f"{tokens['missed']:,}" in page.text("#sources .missed dd")
    assert page.text("#hit-share").endswith("%")
    told = page.served.client.post("/depcache/ui/watch", headers=ADMIN).json()["compared"]
    assert told["prompts"] == len(reports)
    plain, ours = page.all("#beside .measure")
    assert "estimated" in plain.text and f"{told['plain_computed']:,}" in plain.text
    assert "counted" in ours.text and f"{told['computed']:,}" in ours.text
    assert told["computed"] < told["plain_computed"]
    assert page.text("#gain").endswith("×")
    assert "device" in page.text("#tiers")


def test_a_prompt_is_trees_in_words_and_says_what_was_missed(page: Page) -> None:
    name = person()
    page.ask(about(name))
    page.wait(lambda: any("missed" in badges for _, badges in page.rows()))
    page.ask([*about(name), [name, "lives in", "Bergen"]])
    page.wait(lambda: any(words == "Bergen" for words, _ in page.rows()))
    rows = dict(page.rows())
    assert "missed" in rows["Bergen"]
    assert rows["Paris"].count("shared") == 1
    assert any("Tesla" in words and "shared" in badges for words, badges in rows.items())
    assert any("Who founded it?" in words and "computed" in rows[words] for words in rows)
    assert "Who founded it?" in page.text("#prompt-list")
    # A colour, a word and a mark.
    marks = {row.get_attribute("textContent")[0] for row in page.all("#prompt-detail .badge")}
    assert {"●", "○"} <= marks


def test_names_of_anyone_stay_text(page: Page) -> None:
    page.ask([[EVIL, "founded", "<script>document.title=2</script>"]])
    page.wait(lambda: any(EVIL in words for words, _ in page.rows()))
    page.one("#facts").send_keys(f"{EVIL} -> knows -> {EVIL}")
    page.one("#question").send_keys(f"Who is {EVIL}?")
    page.one("#try-form .main").click()
    page.wait(lambda: any(EVIL in words for words, _ in page.rows("#try-result")))
    assert page.driver.title == "DepCache"
    assert page.all("main img, main script") == []
    assert page.driver.execute_script("return document.querySelectorAll('[onerror]').length") == 0


def test_the_headers_forbid_scripts_of_others(page: Page) -> None:
    script = """
      const done = arguments[0];
      document.addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective));
      try { document.body.innerHTML += ''; } catch { done('trusted types'); }
    """
    assert page.driver.execute_async_script(script) in (
        "trusted types",
        "require-trusted-types-for",
    )
    page.driver.get_log("browser")


def test_facts_and_a_question_are_cut_as_a_client_sends_them(page: Page) -> None:
    paths = about(person())
    facts = "\n".join(" -> ".join(path) for path in [*paths, paths[0]])
    prompt = render(paths, "Who founded it?")
    script = """
      const [facts, done] = arguments;
      import('/depcache/ui/explain.js').then(({ makeBody, SYSTEM }) =>
        done(makeBody(facts, 'Who founded it?', SYSTEM, 'tree')));
    """
    body = page.driver.execute_async_script(script, facts)
    assert body["messages"] == prompt.messages
    rendered = {"messages": prompt.messages, "custom_params": prompt.extra_body["custom_params"]}
    as_client = page.served.post("/depcache/explain", rendered).json()
    assert page.served.post("/depcache/explain", body).json() == as_client

    page.ask(paths[:1])
    page.one("#facts").send_keys(facts)
    page.one("#question").send_keys("Who founded it?")
    page.one("#try-form .main").click()
    page.wait(lambda: page.rows("#try-result"))
    told = page.served.post("/depcache/explain", body).json()
    assert told["missed"] > 0 < told["shared"]
    result = page.text("#try-result")
    assert f"{told['shared']:,} of {told['context_tokens']:,} context tokens cached now" in result
    assert f"missed\ncomputed\n{told['missed']}" in result


def test_a_pasted_body_is_explained_and_a_wrong_one_gets_the_servers_sentence(page: Page) -> None:
    page.one("input[value=json]").click()
    page.one("#body").send_keys('{"messages": ')
    page.one("#try-form .main").click()
    page.wait(lambda: "the body is not JSON" in page.text("#try-error"))
    body = chat(about(person()))
    unread = "\n\n['Tarn', 'capital', 'Quill']\n['Tarn', 'near', 'Oriel']"
    user = body["messages"][-1]
    user["content"] = user["content"].replace("\n\nQuestion", f"{unread}\n\nQuestion")
    page.one("#body").clear()
    page.one("#body").send_keys(json.dumps(body))
    page.one("#try-form .main").click()
    page.wait(lambda: "look like facts" in page.text("#try-result"))
    assert "2 lines like ['A', 'relation', 'B']" in page.text("#try-result .unread")
    assert page.text("#try-error") == ""
    assert page.rows("#try-result")
    page.one("#body").clear()
    page.one("#body").send_keys('{"messages": [{"role": "user", "content": "hello"}]}')
    page.one("#try-form .main").click()
    page.wait(lambda: "no dependency data" in page.text("#try-error"))


def test_all_can_be_done_by_keys(page: Page) -> None:
    for _ in range(2):
        page.ask(about(person()))
    page.driver.execute_script("document.querySelector('.skip').focus()")
    stops = []
    while not stops or page.focused().get_attribute("role") != "treeitem":
        page.press("TAB")
        stops.append(page.focused().get_attribute("role") or page.focused().tag_name)
        shown = page.driver.execute_script(OUTLINES)
        assert "solid" in shown, stops
        assert len(stops) < 12
    # Stop, the list of prompts as one stop, the two buttons of the tree, the tree as one stop.
    assert stops == ["button", "option", "button", "button", "treeitem"]
    assert page.focused().get_attribute("class") == "system"
    page.press("ARROW_DOWN")
    assert page.focused().get_attribute("aria-level") == "2"
    assert page.focused().get_attribute("aria-expanded") == "true"
    shown = sum(row.is_displayed() for row in page.all("#prompt-detail .row"))
    page.press("ARROW_LEFT")
    assert page.focused().get_attribute("aria-expanded") == "false"
    assert sum(row.is_displayed() for row in page.all("#prompt-detail .row")) < shown
    page.press("ENTER")
    assert page.focused().get_attribute("aria-expanded") == "true"
    page.press("ARROW_RIGHT")
    assert page.focused().get_attribute("aria-level") == "3"
    page.press("ARROW_LEFT", "ARROW_LEFT", "ARROW_LEFT")
    assert page.focused().get_attribute("class") == "system"
    page.press("END")
    assert page.focused().get_attribute("class") == "task"
    row = page.one("#prompt-detail .task > .row")
    assert row.value_of_css_property("outline-style") == "solid"

    first, second = page.all("#prompt-list [role=option]")
    page.driver.execute_script("arguments[0].focus()", first)
    page.press("ARROW_DOWN")
    assert page.focused() == second
    assert second.get_attribute("aria-selected") == "true"
    # What comes meanwhile moves neither the choice nor the focus.
    chosen = second.get_attribute("data-number")
    page.ask(about(person()))
    assert page.focused().get_attribute("data-number") == chosen
    assert page.one("[aria-selected=true]").get_attribute("data-number") == chosen


def test_stop_and_forget_ends_the_watch(page: Page) -> None:
    page.ask(about(person()))
    page.one("#watch-button").click()
    page.wait(lambda: page.text("#watch-state") == "Not watching")
    assert page.num_prompts() == 0
    page.served.post("/v1/chat/completions", chat(about(person())))
    page.one("#watch-button").click()
    page.wait(lambda: page.text("#watch-state") == "Watching")
    told = page.served.client.post("/depcache/ui/watch", headers=ADMIN).json()
    assert told["prompts"] == [] and page.num_prompts() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_without_scrolling_sideways(page: Page, scheme: str) -> None:
    name = "Someone-with-a-very-long-name-" * 4 + str(next(_fresh))
    set_size(page.driver, 360, 740)
    set_scheme(page.driver, scheme)
    page.ask([*about(name), [name, *["knows", "a long way down"] * 8]])
    page.one("#example").click()
    page.one("#try-form .main").click()
    page.wait(lambda: page.rows("#try-result"))
    wide = """
      const out = [...document.querySelectorAll('body *')].filter((element) =>
        element.getBoundingClientRect().right > innerWidth + 1 && element.offsetParent);
      return [document.documentElement.scrollWidth, innerWidth, out.map((each) => each.outerHTML)];
    """
    width, window, out = page.driver.execute_script(wide)
    assert (width, out) == (window, [])
    background = page.one("body").value_of_css_property("background-color")
    assert ("13, 17, 23" in background) == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(page: Page, scheme: str) -> None:
    set_scheme(page.driver, scheme)
    page.ask(about(person()))
    page.one("#example").click()
    page.one("#try-form .main").click()
    page.wait(lambda: page.rows("#try-result"))
    script = """
      const light = (color) => {
        const parts = color.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
        const [r, g, b] = parts.map((c) => c <= 0.04 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const behind = (element) => {
        const color = getComputedStyle(element).backgroundColor;
        return /, 0\\)$/.test(color) ? behind(element.parentElement) : color;
      };
      const hasText = (element) => [...element.childNodes].some(
        (node) => node.nodeType === 3 && node.textContent.trim());
      return [...document.querySelectorAll('body *')]
        .filter((element) => element.offsetParent && hasText(element))
        .map((element) => {
          const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
          return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML];
        })
        .filter(([ratio]) => ratio < 4.5);
    """
    assert page.driver.execute_script(script) == []
