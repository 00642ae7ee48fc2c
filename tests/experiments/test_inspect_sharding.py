# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The table of leaves, and commands on a mesh: the same rows as on one device."""

import json

import pytest
import tiny_checkpoint

from experiments import decode, generate_data, inspect_sharding, train
from experiments.mesh_flags import MeshOptions


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return str(tiny_checkpoint.write(tmp_path_factory.mktemp("model"), num_layers=1))


@pytest.fixture
def run(model, capsys):
  def run(command, *arguments):
    code = command.main(["command", f"--model={model}", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err

  return run


def table(text):
  """The rows of the first table, by leaf: shape, dtype, spec, bytes a device, in all, share."""
  lines = text.split("\n\n")[0].splitlines()
  bars = lines[1].split("  ")
  rows, starts = {}, []
  at = 0
  for bar in bars:
    starts.append((at, at + len(bar)))
    at += len(bar) + 2
  for line in lines[2:]:
    leaf, *cells = (line[begin:end].strip() for begin, end in starts)
    rows[leaf] = cells
  return rows


def test_every_leaf_has_a_row_with_its_spec_and_bytes(run):
  code, out, err = run(
    inspect_sharding, "--mesh=data:2,model:4", "--method=draft_model", "--draft_layers=1",
    "--batch_size=4", "--capacity=128", "--dtype=float32",
  )  # fmt: skip
  assert code == 0, err
  rows = table(out)
  assert rows["params/layers/0/mlp/up/kernel"] == [
    "64x48", "float32", "-, model", "3,072", "12,288", "0.250"
  ]  # fmt: skip
  # 259 tokens and 2 key/value heads: 4 divides neither.
  assert rows["params/head/kernel"][2:] == ["-, -", "66,304", "66,304", "1.000"]
  assert rows["cache/keys/0"][0] == "4x2x128x8"
  assert rows["cache/keys/0"][2:] == ["data, -, -, -", "16,384", "32,768", "0.500"]
  assert rows["tokens"][2] == "data, -"
  assert rows["records/log_probs"][2] == "data, -"
  assert rows["drafter_params/layers/0/mlp/up/kernel"][2] == "-, model"
  assert rows["drafter_state/cache/values/0"][2] == "data, -, -, -"
  assert "target cache" in out.split("\n\n")[1]


@pytest.mark.parametrize("method", ["prompt_lookup", "blockwise", "pass", "pass_merged"])
def test_a_mesh_of_devices_that_are_not_here_can_be_inspected(method, run):
  code, out, err = run(
    inspect_sharding, "--mesh=data:32,model:2", "--abstract", f"--method={method}",
    "--batch_size=64", "--drafter_rules=replicated", "--capacity=128",
  )  # fmt: skip
  assert code == 0, err
  assert table(out)["cache/keys/0"][2] == "data, model, -, -"
  if method == "blockwise":
    assert table(out)["drafter_params/heads/hidden/kernel"][2] == "-, -"


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ([], "--mesh must be given"),
    (["--mesh=data:64"], "needs 64 devices, there are 8"),
    (["--mesh=rows:2"], "mesh axes are data, fsdp, model"),
    (["--mesh=data:8", "--batch_size=12"], "batch_size must be a multiple of 8"),
    (["--mesh=data:8", "--sharding_rules=rows:none"], "sharding rules are for"),
    (["--mesh=data:8", "--capacity=20"], "capacity must be at least"),
    (["--mesh=data:8", "--method=draft_model", "--draft_layers=9"], "draft_layers must be at most"),
    (["--mesh=data:8", "more"], "unexpected argument"),
  ],
)
def test_bad_input_is_one_line(arguments, words, run):
  code, out, err = run(inspect_sharding, *arguments)
  assert (code, out) == (2, "")
  assert words in err and err.count("\n") == 1


def test_a_command_on_a_mesh_decodes_what_one_device_does(run, tmp_path):
  rows = {}
  for name, arguments in (
    ("one", []),
    ("mesh", ["--mesh=data:2,model:4", "--drafter_rules=replicated"]),
  ):
    code, _, err = run(
      decode, "--prompt=abc", "--prompt=say it", "--prompt=xyz", "--batch_size=2",
      "--methods=prompt_lookup", "--max_new_tokens=12", "--compilation_cache_dir=",
      f"--output={tmp_path / name}", *arguments,
    )  # fmt: skip
    assert code == 0, err
    lines = (tmp_path / name / "results.jsonl").read_text().splitlines()
    rows[name] = [json.loads(line) for line in lines]
  assert len(rows["mesh"]) == 3
  assert [row["mesh"] for row in rows["mesh"]] == ["data:2,model:4"] * 3
  for ours, theirs in zip(rows["mesh"], rows["one"], strict=True):
    assert ours["token_ids"] == theirs["token_ids"] and theirs["mesh"] is None


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    (["--mesh=data:2"], "batch_size must be a multiple of 2"),
    (["--mesh=data:16"], "needs 16 devices"),
    (["--mesh=data"], "axis:size"),
    (["--sharding_rules=vocab:none"], "give --mesh too"),
    (["--mesh=model:2", "--drafter_rules=vocab"], "name:axis"),
  ],
)
def test_decode_refuses_a_mesh_that_does_not_fit(arguments, words, run):
  code, _, err = run(decode, "--prompt=a", "--compilation_cache_dir=", *arguments)
  assert code == 2 and words in err and err.count("\n") == 1


@pytest.mark.parametrize("command", [train, generate_data])
def test_the_other_commands_refuse_it_too(command, run, tmp_path):
  (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
  inputs = ["--data=none"] if command is train else [f"--prompts={tmp_path / 'prompts.jsonl'}"]
  inputs += [f"--output={tmp_path / 'out'}", "--batch_size=3"]
  for mesh, words in (("data:2", "multiple of 2"), ("data:9", "needs 9 devices")):
    code, _, err = run(command, *inputs, f"--mesh={mesh}")
    assert code == 2 and words in err and err.count("\n") == 1


def test_without_a_mesh_nothing_is_placed():
  assert MeshOptions().load_options(3) == {}
