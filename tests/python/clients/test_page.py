"""The built-in page in headless Chromium, against Gemma 3 270M."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser import Browser
from quaver.bench.local_server import LocalServer
from quaver.bench.server_api import ServerApi

LAST = "document.querySelector('article:last-child')"


@pytest.fixture(scope="module")
def page(gemma_server: LocalServer) -> Iterator[Browser]:
    with Browser() as browser:
        browser.open(gemma_server.url)
        browser.wait_for("document.getElementById('model').textContent === 'gemma'")
        yield browser


def ask(page: Browser, text: str) -> str:
    """The answer's text, once it is complete."""
    page.type("#input", text)
    page.press_enter()
    page.wait_for(f"{LAST}?.className === 'assistant' && !{LAST}.hasAttribute('aria-busy')")
    return page.run(f"{LAST}.querySelector('p').textContent")


def set_most_tokens(page: Browser, count: int) -> None:
    page.run(f"document.getElementById('max-tokens').value = '{count}'")


def test_a_conversation(page: Browser, gemma_server: LocalServer) -> None:
    """The page shows what the API answers to the whole conversation."""
    set_most_tokens(page, 12)
    page.run("document.getElementById('temperature').value = '0'")
    conversation = []
    for question in ("What is the capital of France?", "And of <b>Italy</b>?"):
        conversation.append({"role": "user", "content": question})
        body = {"messages": conversation, "max_tokens": 12, "temperature": 0}
        answer = ServerApi(gemma_server.url, "").post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        assert answer and ask(page, question) == answer
        conversation.append({"role": "assistant", "content": answer})
    roles = page.run("[...document.querySelectorAll('article')].map((article) => article.className)")
    assert roles == ["user", "assistant", "user", "assistant"]
    assert page.run("document.querySelector('article b')") is None  # text is never taken for HTML
    figures = page.run(f"{LAST}.querySelector('.figures').textContent")
    assert "tokens (" in figures and "first after" in figures
    assert page.problems == []


def test_figures_while_it_runs(page: Browser) -> None:
    """On a question of its own, to which the model's answer has no end."""
    page.run("document.getElementById('clear').click()")
    set_most_tokens(page, 400)
    page.type("#input", "Tell me a long story about a fox and a river.")
    page.press_enter()
    page.wait_for("Number(document.getElementById('speed').textContent) > 0")
    page.wait_for("document.getElementById('running').textContent === '1'")
    page.wait_for("document.getElementById('cache-meter').value > 0")
    assert page.run("/^[0-9.]+ %$/.test(document.getElementById('cache').textContent)")
    page.run("document.getElementById('stop').click()")
    page.wait_for(f"{LAST}.querySelector('.figures')?.textContent.includes('stopped')")
    page.wait_for("document.getElementById('running').textContent === '0'")
    assert page.problems == []


def test_new_chat(page: Browser) -> None:
    assert page.run("messages.length") > 0
    page.run("document.getElementById('clear').click()")
    assert page.run("document.querySelectorAll('article').length") == 0
    set_most_tokens(page, 4)
    assert ask(page, "Hello")
    assert page.run("messages.length") == 2


def test_colours_names_and_sources(page: Browser) -> None:
    """Light and dark; every control has a name; nothing comes from elsewhere."""
    shades = {}
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        shades[scheme] = page.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert min(shades["light"]) > 200 and max(shades["dark"]) < 60
    controls = "[...document.querySelectorAll('button, input, textarea, meter, main')]"
    names = "(c) => c.labels?.[0]?.textContent || c.ariaLabel || c.getAttribute('aria-labelledby') || c.textContent"
    assert all(page.run(f"{controls}.map({names})"))
    sources = page.run("performance.getEntriesByType('resource').map((entry) => new URL(entry.name).origin)")
    assert set(sources) == {page.run("location.origin")}


def test_a_refusal_is_shown(page: Browser) -> None:
    set_most_tokens(page, 5000)
    page.type("#input", "Hello again")
    page.press_enter()
    page.wait_for(f"{LAST}.className === 'error'")
    assert "max_tokens 5000" in page.run(f"{LAST}.textContent")
    set_most_tokens(page, 4)
    assert ask(page, "Hello once more")
