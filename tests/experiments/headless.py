# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Opens a page from the disk in a real headless Chromium, without any extra Python package.

    with headless.open_page(path, width=390) as page:
      assert page.problems == []
      page.press("ArrowRight")
      assert page.evaluate("document.title") == "..."

It speaks the DevTools protocol over the browser's pipe (`--remote-debugging-pipe`: JSON messages
that end in a zero byte, on file descriptors 3 and 4). Tests are skipped where there is no browser.
"""

import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Seconds that one answer of the browser may take: a loaded machine starts it slowly.
PATIENCE = 60
KEY_CODES = {"End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
KEY_CODES |= {"ArrowDown": 40, "Tab": 9, " ": 32, "Enter": 13}


def find_browser():
  """The browser's path, or None; the environment's `CHROMIUM` comes first."""
  names = (os.environ.get("CHROMIUM") or "", *BROWSERS)
  return next(filter(None, map(shutil.which, names)), None)


requires_browser = pytest.mark.skipif(
  find_browser() is None,
  reason=f"needs a browser: none of {', '.join(BROWSERS)} is on PATH, and CHROMIUM is not set",
)


class Page:
  """An open page.

  Attributes:
    problems: console warnings and errors, uncaught exceptions and failed loads, as text.
    console: everything that the page wrote to the console, as `level: text`.
    requests: addresses that were asked for, the page's own first.
  """

  def __init__(self, connection, session):
    self._connection, self._session = connection, session
    self.problems, self.console, self.requests = [], [], []
    self._loaded = False

  def evaluate(self, expression):
    """The JSON value of a JavaScript expression; a promise is awaited."""
    answer = self.send(
      "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
    )
    if "exceptionDetails" in answer:
      raise AssertionError(f"{expression}: {_exception_text(answer['exceptionDetails'])}")
    return answer["result"].get("value")

  def press(self, key):
    """Presses and releases a key of `KEY_CODES`, or a letter."""
    code = KEY_CODES.get(key, ord(key[0].upper()))
    for kind in ("rawKeyDown", "keyUp"):
      self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

  def resize(self, width, height, scale=1):
    """The size of the viewport in CSS pixels, with the scale of a phone's screen."""
    self.send(
      "Emulation.setDeviceMetricsOverride",
      width=width,
      height=height,
      deviceScaleFactor=scale,
      mobile=width < 600,
    )

  def color_scheme(self, name):
    """What the page is told that the user prefers: "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": name}]
    self.send("Emulation.setEmulatedMedia", features=features)

  def screenshot(self, path, *, whole=False):
    """Writes a PNG of the viewport, or of the whole page."""
    answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
    pathlib.Path(path).write_bytes(base64.b64decode(answer["data"]))

  def overflows(self):
    """Whether the page is wider than the screen, so that it must be scrolled sideways."""
    return self.evaluate(
      "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    )

  def send(self, method, **params):
    """One DevTools command; returns its result."""
    return self._connection.send(method, params, self._session, self._on_event)

  def load(self, address):
    """Opens an address and waits until it is loaded."""
    for domain in ("Page", "Runtime", "Log", "Network"):
      self.send(f"{domain}.enable")
    answer = self.send("Page.navigate", url=address)
    if answer.get("errorText"):
      raise AssertionError(f"{address} cannot be opened: {answer['errorText']}")
    deadline = time.monotonic() + PATIENCE
    while not self._loaded:
      self._connection.receive(deadline, self._on_event)
    self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")

  def _on_event(self, event):
    name, params = event.get("method"), event.get("params", {})
    if name == "Page.loadEventFired":
      self._loaded = True
    elif name == "Network.requestWillBeSent":
      self.requests.append(params["request"]["url"])
    elif name == "Runtime.consoleAPICalled":
      text = " ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"])
      self.console.append(f"{params['type']}: {text}")
      if params["type"] in ("error", "warning", "assert"):
        self.problems.append(f"{params['type']}: {text}")
    elif name == "Runtime.exceptionThrown":
      self.problems.append(f"exception: {_exception_text(params['exceptionDetails'])}")
    elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
      entry = params["entry"]
      self.problems.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")


@contextlib.contextmanager
def open_page(path, *, width=1280, height=900, scale=1, dark=False):
  """Opens a file in a browser of its own; the value is a `Page`."""
  browser = find_browser()
  if browser is None:
    pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is on PATH")
  with (
    tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    _running(browser, profile) as connection,
  ):
    target = connection.send("Target.createTarget", {"url": "about:blank"})["targetId"]
    session = connection.send("Target.attachToTarget", {"targetId": target, "flatten": True})
    page = Page(connection, session["sessionId"])
    page.resize(width, height, scale)
    page.color_scheme("dark" if dark else "light")
    page.load(pathlib.Path(path).resolve().as_uri())
    yield page


# Puts the pipe's ends where the browser looks for them, descriptors 3 and 4. (A function that
# runs between fork and exec is unsafe in a process with JAX's threads.)
_EXEC_WITH_PIPE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


@contextlib.contextmanager
def _running(browser, profile):
  """A browser process that is ended with the context."""
  to_browser, ours_out = os.pipe()
  ours_in, from_browser = os.pipe()
  command = [
    *(sys.executable, "-I", "-S", "-c", _EXEC_WITH_PIPE, str(to_browser), str(from_browser)),
    browser,
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
  ]
  process = subprocess.Popen(
    command,
    pass_fds=(to_browser, from_browser),
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  os.close(to_browser)
  os.close(from_browser)
  connection = _Connection(ours_in, ours_out)
  try:
    yield connection
    with contextlib.suppress(OSError, AssertionError):
      connection.send("Browser.close", {})
      process.wait(timeout=10)
  except subprocess.TimeoutExpired:
    pass
  finally:
    os.close(ours_out)  # the browser ends when its pipe does
    os.close(ours_in)
    try:
      process.wait(timeout=10)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()


class _Connection:
  """The two ends of the browser's pipe."""

  def __init__(self, read_end, write_end):
    self._read_end, self._write_end = read_end, write_end
    self._buffer, self._number = b"", 0

  def send(self, method, params, session=None, on_event=None):
    """One command; events that come before its answer go to `on_event`."""
    self._number += 1
    message = {"id": self._number, "method": method, "params": params}
    if session is not None:
      message["sessionId"] = session
    os.write(self._write_end, json.dumps(message).encode() + b"\0")
    deadline = time.monotonic() + PATIENCE
    while True:
      answer = self.receive(deadline, on_event)
      if answer.get("id") == self._number:
        if "error" in answer:
          raise AssertionError(f"{method}: {answer['error']['message']}")
        return answer["result"]

  def receive(self, deadline, on_event=None):
    """The next message."""
    while b"\0" not in self._buffer:
      ready, _, _ = select.select([self._read_end], [], [], max(deadline - time.monotonic(), 0))
      if not ready:
        raise AssertionError(f"the browser did not answer within {PATIENCE} seconds")
      data = os.read(self._read_end, 1 << 16)
      if not data:
        raise AssertionError("the browser ended")
      self._buffer += data
    text, self._buffer = self._buffer.split(b"\0", 1)
    message = json.loads(text)
    if on_event is not None and "method" in message:
      on_event(message)
    return message


def _exception_text(details):
  return details.get("exception", {}).get("description") or details.get("text", "")
