# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import io
import json
import math
import re

import headless
import pytest
import tiny_checkpoint
from headless import requires_browser

from experiments import trace
from experiments.trace_page import trace_page
from experiments.trace_record import TraceRecord, token_text
from experiments.trace_terminal import STYLES, TraceTerminal
from specjax import drafters, tracing
from specjax.models import checkpoint
from specjax.models.tokenizer import Tokenizer
from specjax.models.truncation import truncate
from specjax.text import TextGenerator
from specjax.tracing import Node, OwnToken, Round, Step

pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"), hidden_size=32, num_layers=2)


@pytest.fixture
def command(model, tmp_path):
  """Runs the command in this process; returns exit code and folder."""

  def run(*arguments, output="out"):
    # An empty cache folder: the test must not write to the user's.
    common = [f"--model={model}", f"--output={tmp_path / output}", "--compilation_cache_dir="]
    method = ["--method=draft_model", "--config.draft_layers=1", "--prompt=hello"]
    given = [*common, *method, "--max_new_tokens=20", *arguments]
    return trace.main(["trace", *given]), tmp_path / output

  return run


def embedded(page):
  data = re.search(r'<script type="application/json" id="trace">(.*?)</script>', page, re.DOTALL)
  return json.loads(data[1])


# --- the command -------------------------------------------------------------------------------


def test_on_a_mesh_the_steps_are_the_same(command):
  traces = []
  for output, mesh in (("one", []), ("mesh", ["--mesh=data:2,model:2"])):
    code, folder = command("--temperature=1.5", "--max_new_tokens=12", *mesh, output=output)
    assert code == 0
    traces.append(json.loads((folder / "trace.json").read_text()))
  one, mesh = ([(step["committed"], step["own"]) for step in found["steps"]] for found in traces)
  for (ours, own), (theirs, other) in zip(mesh, one, strict=True):
    assert ours == theirs
    assert (own is None) == (other is None)
    if own is not None:
      assert own["target_probability"] == pytest.approx(other["target_probability"], abs=1e-4)


def test_the_trace_has_the_tokens_that_decoding_gives(command, model, capsys):
  code, folder = command()
  assert code == 0
  written = json.loads((folder / "trace.json").read_text())
  assert embedded((folder / "trace.html").read_text()) == written
  target = checkpoint.load(model)
  draft, params = truncate(target.model, target.params, 1)
  (answer,) = TextGenerator(
    target, drafter=drafters.DraftModel(draft), drafter_params=params
  ).generate(["hello"], max_new_tokens=20)
  committed = [token for step in written["steps"] for token in step["committed"]]
  assert [token["token"] for token in committed] == answer.token_ids
  assert "".join(token["piece"] for token in committed) == answer.text
  summary = written["summary"]
  for name in ("new_tokens", "target_calls", "drafted_tokens", "accepted_tokens"):
    assert summary[name] == getattr(answer, name), name
  assert summary["finish_reason"] == answer.finish_reason == "length"
  assert written["prompt"]["text"].endswith("hello<|im_end|>\n<|im_start|>assistant\n")
  output = capsys.readouterr()
  assert output.err == ""
  assert "\x1b" not in output.out
  assert answer.text in output.out
  lines = re.findall(r"^ +(\d+) +[\d.]+ ms  \+(\d+)  ", output.out, re.MULTILINE)
  expected = [(str(i + 1), str(len(s["committed"]))) for i, s in enumerate(written["steps"])]
  assert lines == expected


def test_ctrl_c_keeps_the_steps_so_far(command, monkeypatch, capsys):
  run_round, calls = tracing.TracedSession.run_round, []

  def stop_at_the_third(session):
    calls.append(0)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return run_round(session)

  monkeypatch.setattr(tracing.TracedSession, "run_round", stop_at_the_third)
  code, folder = command()
  assert code == 130
  written = json.loads((folder / "trace.json").read_text())
  assert [step["round"] for step in written["steps"]] == [0, 1]
  assert written["summary"]["finish_reason"] == "running"
  assert embedded((folder / "trace.html").read_text()) == written
  assert "the steps so far" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--method=medusa"], "methods: unknown name 'medusa'; the names are"),
    (["--prompt="], "prompt must hold some text"),
    (["--max_new_tokens=0"], "max_new_tokens must be an integer >= 1, got 0"),
    (["--temperature=-1"], "temperature must be a finite number >= 0, got -1"),
    (["--stop=x"], "Unknown command line flag 'stop'"),
    (["--methods=autoregressive"], "Unknown command line flag 'methods'"),
    (["hello"], "unexpected argument 'hello'"),
    (["--output=README.md"], "output must be a folder, README.md is a file"),
  ],
)
def test_bad_input_is_one_line_before_a_model_is_loaded(arguments, message, capsys, monkeypatch):
  monkeypatch.setattr(checkpoint, "read", lambda *_, **__: pytest.fail("a model was loaded"))
  assert trace.main(["trace", *arguments]) == 2
  output = capsys.readouterr()
  assert output.out == ""
  assert output.err.count("\n") == 1
  assert output.err.startswith("error: ") and message in output.err


def test_help_has_the_flags_that_the_command_takes(capsys):
  assert trace.main(["trace", "--help"]) == 0
  text = capsys.readouterr().out
  for name in ("method", "prompt", "max_new_tokens", "output", "config", "temperature"):
    assert f"  --{name}\n" in text
  for name in ("methods", "stop", "batch_size"):
    assert f"  --{name}\n" not in text


# --- records by hand: a tree and every outcome ----------------------------------------------------


def ids(text):
  return list(text.encode())


def node(text, parent, outcome, draft=0.5, target=0.25, **more):
  draft = None if draft is None else math.log(draft)
  return Node(ids(text)[0], parent, outcome, draft, math.log(target), **more)


def own(text, outcome):
  return OwnToken(ids(text)[0], outcome, math.log(0.75))


def rounds():
  """Four: a tree, a chain with a certain node, nothing drafted, and an end within a draft."""
  tree = (
    node("a", -1, "rejected", target=1e-9),
    node("b", -1, "accepted"),
    node("c", 0, "unreached"),
    node("\xe9", 1, "accepted", deviates=True),  # its first byte alone
    node("d", -1, "unreached"),
  )
  chain = (node("x", -1, "certain"), node("<", 0, "accepted"), node("z", 1, "rejected"))
  ended = (node("e", -1, "accepted", None), node("f", 0, "cut", None))
  steps = [
    (tree, OwnToken(0xA9, "bonus", math.log(0.75)), "running"),
    (chain, own("y", "corrected"), "running"),
    ((), own("\x1b", "undrafted"), "running"),
    (ended, None, "eos"),
  ]
  length = 20
  for index, (nodes, own_token, reason) in enumerate(steps):
    kept = [n.token for n in nodes if n.outcome in ("accepted", "certain")]
    tokens = (*kept, *([own_token.token] if own_token else []))
    yield Round(index, 0.01 * (index + 1), (Step(length, nodes, own_token, tokens, reason),))
    length += len(tokens)


@pytest.fixture
def record(model):
  tokenizer = Tokenizer.from_huggingface(model)
  facts = {"method": "by_hand", "model": "tiny", "source": "<b>here</b>", "greedy": False}
  facts |= {"lossless": True, "time": "now"}
  facts["settings"] = {"verifier": "rejection_sampling", "temperature": 0.5}
  record = TraceRecord(tokenizer, ids("</script><b>"), facts, certain_nodes=1)
  for one in rounds():
    record.add(one)
  return record


def test_pieces_join_to_the_text_though_a_token_ends_inside_a_character(record):
  first = record.steps[0]["committed"]
  assert [token["piece"] for token in first] == ["b", "", "\xe9"]
  assert record.steps[0]["nodes"][3]["text"] == "<0xC3>"
  text = "".join(token["piece"] for step in record.steps for token in step["committed"])
  assert text == "b\xe9x<y\x1be"
  assert [step["newest"]["text"] for step in record.steps] == [">", "<0xA9>", "y", "\x1b"]


def test_the_text_of_a_special_token_is_its_name(record, model):
  tokenizer = Tokenizer.from_huggingface(model)
  end = tokenizer.token_to_id("<|im_end|>")
  assert token_text(tokenizer, end) == "<|im_end|>"
  assert token_text(tokenizer, 10_000) == "<10000>"


def test_the_terminal_draws_a_tree_with_marks_and_shows_no_control_characters(record, monkeypatch):
  monkeypatch.delenv("NO_COLOR", raising=False)
  stream = io.StringIO()
  terminal = TraceTerminal(stream)
  terminal.legend()
  for step in record.steps:
    terminal.step(step)
  terminal.text(record.steps)
  text = stream.getvalue()
  assert "\x1b" not in text
  for mark, _, words in STYLES.values():
    assert f"  {mark} {words}\n" in text
  tree = text.index('x"a" 0.50/0.00')
  assert re.search(r'\n {8}  x"a".*\n {10}  \."c".*\n {8}  \+"b".*\n {10}  \+!"<0xC3>"', text)
  assert text.index('*"<0xA9>" 0.75') < tree
  assert '="x" 0.50/0.25  +"<" 0.50/0.25  x"z" 0.50/0.25  >"y" 0.75\n' in text
  assert 'nothing drafted:  -"\\u001b" 0.75\n' in text
  assert '+"e" 0.25  /"f" 0.25\n' in text
  assert text.endswith("b\xe9x<y\ufffde\n")


def test_a_terminal_gets_colours_unless_no_color_is_set(record, monkeypatch):
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  monkeypatch.setenv("TERM", "xterm-256color")
  monkeypatch.delenv("NO_COLOR", raising=False)
  colored, plain = Terminal(), Terminal()
  TraceTerminal(colored).step(record.steps[1])
  assert "\x1b[32m" in colored.getvalue()  # green: accepted
  monkeypatch.setenv("NO_COLOR", "1")
  TraceTerminal(plain).step(record.steps[1])
  assert "\x1b" not in plain.getvalue()
  assert re.sub(r"\x1b\[[0-9;]*m", "", colored.getvalue()) == plain.getvalue()


# --- the page ------------------------------------------------------------------------------------


def test_the_page_holds_the_trace_whatever_the_text_and_asks_for_nothing(record):
  page = trace_page(record.to_json())
  assert embedded(page) == record.to_json()
  links = re.findall(
    r"""(?:src|href)=["']?([^"'\s>]+)|url\(|@import|https?://(?!www\.w3\.org)""", page
  )
  assert links == ["data:,"]


@requires_browser
def test_the_page_goes_through_the_steps_in_a_browser(record, tmp_path):
  path = tmp_path / "trace.html"
  path.write_text(trace_page(record.to_json()), encoding="utf-8")
  with headless.open_page(path) as page:

    def boxes():
      found = page.evaluate(
        "[...document.querySelectorAll('#tree .node')].map(n => [n.getAttribute('class'),"
        " n.querySelector('.token')?.textContent])"
      )
      return [(name.removeprefix("node "), text) for name, text in found]

    def step():
      return page.evaluate("document.getElementById('step').textContent")

    assert page.requests == [path.resolve().as_uri()]
    assert page.evaluate("document.getElementById('prompt').textContent") == "</script><b>"
    assert step() == "Step 1 of 4 · 10.0 ms · 5 drafted, 2 accepted · 3 committed"
    expected = [
      *[("root", None), ("rejected", "a"), ("accepted", "b"), ("unreached", "c")],
      *[("accepted", "<0xC3>"), ("unreached", "d"), ("bonus own", "<0xA9>")],
    ]
    assert boxes() == expected
    # The committed path is bold, and the own token stands behind its last node.
    assert page.evaluate("document.querySelectorAll('#tree .edge.kept').length") == 3
    places = "[...document.querySelectorAll('#tree .node rect')].map(r => +r.getAttribute('x'))"
    root, a, b, c, e, d, own_token = page.evaluate(places)
    assert root < a == b == d < c == e < own_token
    legend = page.evaluate("document.getElementById('legend').textContent")
    assert all(words in legend for words in ("accepted", "rejected", "correction", "bonus"))
    page.press("ArrowRight")
    assert boxes()[1:] == [
      *[("certain", "x"), ("accepted", "<"), ("rejected", "z"), ("corrected own", "y")]
    ]
    page.press("End")
    assert step() == "Step 4 of 4 · 40.0 ms · 2 drafted, 1 accepted · 1 committed · ended by eos"
    assert boxes()[1:] == [("accepted", "e"), ("cut", "f")]
    page.press("ArrowRight")
    assert step().startswith("Step 4 of 4")
    page.press("ArrowLeft")
    assert step().startswith("Step 3 of 4") and boxes()[1:] == [("undrafted own", "\ufffd")]
    # The slider, by its own keys: it must not move twice.
    page.evaluate("document.getElementById('slider').focus()")
    page.press("ArrowLeft")
    assert step().startswith("Step 2 of 4")
    page.evaluate("[...document.querySelectorAll('#decoded span')].at(-1).click()")
    assert step().startswith("Step 4 of 4")
    assert page.evaluate("document.getElementById('decoded').textContent") == "b\xe9x<y\x1be"
    page.press("Home")
    assert page.problems == []


@requires_browser
def test_the_page_fits_a_phone_in_the_dark(record, tmp_path):
  path = tmp_path / "trace.html"
  path.write_text(trace_page(record.to_json()), encoding="utf-8")
  with headless.open_page(path, width=360, height=740, scale=2, dark=True) as page:
    for _ in rounds():
      assert not page.overflows()
      box = "document.getElementById('tree').getBoundingClientRect()"
      assert page.evaluate(f"{box}.right <= innerWidth")
      page.press("ArrowRight")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(13, 17, 23)"
    assert page.problems == []


@requires_browser
def test_the_browser_helper_tells_of_errors_and_requests(tmp_path):
  path = tmp_path / "bad.html"
  path.write_text(
    "<!doctype html><title>bad</title><script>console.error('first', 1); second()</script>"
    "<img src='not-there.png'>"
  )
  with headless.open_page(path) as page:
    problems = sorted(page.problems)
    assert len(problems) == 3
    assert problems[0].startswith("error: Failed to load resource")
    assert problems[1] == "error: first 1"
    assert problems[2].startswith("exception: ReferenceError: second is not defined")
    assert page.requests[1].endswith("/not-there.png")
