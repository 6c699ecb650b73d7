"""Somebody with a browser that has no JavaScript: follows links, fills in forms and presses their buttons."""

from __future__ import annotations

import html
import re
import uuid
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener


@dataclass
class Form:
    """One form of a page."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str, str, str]] = field(default_factory=list)
    """Text, name, value and address of each."""


class Visitor:
    """
    Args:
        url: Of the site, without a slash at its end.
    """

    def __init__(self, url: str) -> None:
        self._site = url
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(CookieJar()))
        self.address = ""
        self.html = ""

    @property
    def text(self) -> str:
        """The page as it is read, on one line."""
        bare = re.sub(r"<(script|style)\b.*?</\1>", " ", self.html, flags=re.DOTALL)
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())

    def open(self, path: str) -> str:
        """Go to *path* of the site, and answer the page's text. An error's page is a page too."""
        return self._go(Request(urljoin(self._site + "/", path)))

    def follow(self, text: str) -> str:
        """Follow the link whose text contains *text*."""
        links = re.findall(r'<a [^>]*?href="([^"]*)"[^>]*>(.*?)</a>', self.html, flags=re.DOTALL)
        found = [href for href, inner in links if text in html.unescape(re.sub(r"<[^>]+>", "", inner))]
        assert found, f"no link {text!r} at {self.address}: {self.text[:2000]}"
        return self._go(Request(urljoin(self.address, html.unescape(found[0]))))

    def press(self, button: str, **filled: str) -> str:
        """Fill in the form that has *button* (its text or value), and press that."""
        for form in _Forms.of(self.html):
            for text, name, value, action in form.buttons:
                if button in (text, value):
                    fields = [pair for pair in form.fields if pair[0] not in filled]
                    fields += [*filled.items(), *([(name, value)] if name else [])]
                    return self._submit(form, action or form.action, fields)
        raise AssertionError(f"no button {button!r} at {self.address}: {self.text[:2000]}")

    def send_file(self, button: str, name: str, file: str, content: bytes) -> str:
        """Choose *file* in the field *name* of the form that has *button*, and press that."""
        for form in _Forms.of(self.html):
            if any(button == text for text, *_ in form.buttons):
                line = uuid.uuid4().hex
                parts = [f'name="{field}"\r\n\r\n{value}'.encode() for field, value in form.fields]
                parts.append(f'name="{name}"; filename="{file}"\r\n\r\n'.encode() + content)
                body = b"".join(
                    f"--{line}\r\nContent-Disposition: form-data; ".encode() + part + b"\r\n" for part in parts
                )
                headers = {"Content-Type": f"multipart/form-data; boundary={line}", "Referer": self.address}
                return self._go(Request(urljoin(self.address, form.action), body + f"--{line}--".encode(), headers))
        raise AssertionError(f"no button {button!r} at {self.address}: {self.text[:2000]}")

    def _submit(self, form: Form, action: str, fields: list[tuple[str, str]]) -> str:
        address, data = urljoin(self.address, action or self.address), urlencode(fields)
        if form.method == "get":
            return self._go(Request(f"{address.partition('?')[0]}?{data}"))
        return self._go(Request(address, data.encode(), {"Referer": self.address}))

    def _go(self, request: Request) -> str:
        try:
            answer = self._opener.open(request, timeout=60)
        except HTTPError as page:
            answer = page
        with answer:
            self.address, self.html = answer.url, answer.read().decode()
        return self.text


class _Forms(HTMLParser):
    """Reads the forms of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._open: Form | None = None
        self._select: str | None = None
        self._chosen: list[str] = []
        self._button: tuple[str, str, str] | None = None
        self._text = ""
        self._area: str | None = None

    @classmethod
    def of(cls, page: str) -> list[Form]:
        parser = cls()
        parser.feed(page)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = Form(said.get("action", ""), said.get("method", "get").lower())
            self.found.append(self._open)
        elif self._open is None:
            return
        elif tag == "input":
            self._input(said)
        elif tag == "button":
            self._button, self._text = (said.get("name", ""), said.get("value", ""), said.get("formaction", "")), ""
        elif tag == "select":
            self._select, self._chosen = said.get("name", ""), []
        elif tag == "option" and self._select is not None:
            if "selected" in said or not self._chosen:
                self._chosen = [said.get("value", "")]
        elif tag == "textarea":
            self._area, self._text = said.get("name", ""), ""

    def _input(self, said: dict[str, str]) -> None:
        assert self._open is not None
        kind, name, value = said.get("type", "text"), said.get("name", ""), said.get("value", "")
        if kind == "submit":
            self._open.buttons.append((value, name, value, said.get("formaction", "")))
        elif name and kind != "file" and (kind not in ("checkbox", "radio") or "checked" in said):
            self._open.fields.append((name, value))

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None
        elif self._open is None:
            return
        elif tag == "button" and self._button is not None:
            name, value, action = self._button
            self._open.buttons.append((" ".join(self._text.split()), name, value, action))
            self._button = None
        elif tag == "select" and self._select is not None:
            self._open.fields += [(self._select, value) for value in self._chosen]
            self._select = None
        elif tag == "textarea" and self._area is not None:
            self._open.fields.append((self._area, self._text.removeprefix("\n")))
            self._area = None
