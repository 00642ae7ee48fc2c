# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.export`: writes, loads back, compares, and refuses in one line."""

import json
import shutil

import pytest
import tiny_checkpoint

from experiments import export
from specjax.export import _checksum as checksum

pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"), num_layers=1)


def command(model, *arguments):
  return export.main(["export", f"--model={model}", *arguments])


@pytest.fixture(scope="module")
def program(model, tmp_path_factory):
  """A folder with the programs of two methods, one of them sampling."""
  output = tmp_path_factory.mktemp("output") / "programs"
  sizes = ["--prompt_tokens=30", "--max_new_tokens=6", "--batch_size=2", f"--output={output}"]
  assert command(model, "--methods=prompt_lookup", "--platforms=tpu,cuda,cpu", *sizes) == 0
  law = ["--temperature=0.8", "--top_p=0.9", "--config.draft_layers=1", "--config.draft_length=2"]
  assert command(model, "--method=draft_model", "--platforms=cpu", *sizes, *law) == 0
  return output


def test_an_artefact_of_each_method_loads_back_to_the_tokens_of_generate(model, program, capsys):
  assert sorted(path.name for path in program.iterdir()) == ["draft_model", "prompt_lookup"]
  manifest = json.loads((program / "draft_model" / "manifest.json").read_text())
  assert (manifest["batch_size"], manifest["prompt_tokens"]) == (2, 32)
  assert manifest["drafter"]["settings"]["draft_length"] == 2 and manifest["policy"]["sampled"]
  manifest = json.loads((program / "prompt_lookup" / "manifest.json").read_text())
  assert manifest["platforms"] == ["tpu", "cuda", "cpu"]
  assert command(model, f"--load={program / 'prompt_lookup'}") == 0
  assert "loaded back, it gives the 12 tokens of specjax.generate" in capsys.readouterr().out


def test_a_program_for_a_mesh_loads_back_onto_it(model, tmp_path, capsys):
  flags = ["--method=draft_model", "--config.draft_layers=1", "--platforms=cpu", "--batch_size=2"]
  sizes = ["--prompt_tokens=16", "--max_new_tokens=4", f"--output={tmp_path}"]
  assert command(model, *flags, *sizes, "--mesh=data:2,model:2", "--check") == 0
  assert command(model, f"--load={tmp_path / 'draft_model'}") == 0
  assert capsys.readouterr().out.count("it gives the 8 tokens of specjax.generate") == 2


def test_tokens_that_differ_are_told_by_the_exit_code(model, program, monkeypatch, capsys):
  import specjax

  class Other:
    def new_tokens(self):
      return [[1], [2]]

  monkeypatch.setattr(specjax, "generate", lambda *_, **__: Other())
  assert command(model, f"--load={program / 'prompt_lookup'}") == 1
  assert "the tokens of 2 of 2 rows differ" in capsys.readouterr().out


def refused(capsys, *arguments):
  """The one line on standard error."""
  assert export.main(["export", *arguments]) == 2
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1 and lines[0].startswith("error: ")
  return lines[0]


def test_weights_of_another_model_are_refused(program, tmp_path, capsys):
  other = tiny_checkpoint.write(tmp_path / "other", num_layers=1, seed=1)
  load = f"--load={program / 'prompt_lookup'}"
  assert "are not the weights" in refused(capsys, load, f"--model={other}")
  wider = tiny_checkpoint.write(tmp_path / "wider", num_layers=1, intermediate_size=64)
  assert "params must have layers/0/mlp/" in refused(capsys, load, f"--model={wider}")


def test_a_damaged_or_foreign_artefact_is_refused(model, program, tmp_path, capsys):
  copied = shutil.copytree(program / "prompt_lookup", tmp_path / "copied")
  path = copied / "generate.stablehlo"
  path.write_bytes(path.read_bytes()[:-100])
  assert "is damaged" in refused(capsys, f"--load={copied}")
  assert "holds no exported program" in refused(capsys, f"--load={tmp_path}")
  assert "holds no exported program" in refused(capsys, f"--load={tmp_path / 'nowhere'}")


def test_an_artefact_with_settings_of_another_version_is_refused(program, tmp_path, capsys):
  copied = shutil.copytree(program / "prompt_lookup", tmp_path / "copied")
  path = copied / "manifest.json"
  manifest = json.loads(path.read_text())
  del manifest["made_by"]["settings"]["max_ngram"]
  manifest["sha256"] = checksum(manifest)
  path.write_text(json.dumps(manifest))
  assert "with settings that this version does not have" in refused(capsys, f"--load={copied}")


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--platforms=tpu,vulkan"], "platforms must be of cpu, cuda, rocm, tpu, got 'vulkan'"),
    (["--platforms=tpu", "--check"], "check calls the program on cpu"),
    (["--methods=guessing"], "unknown name 'guessing'"),
    (["--prompt_tokens=0"], "prompt_tokens"),
    (["--batch_size=0"], "batch_size"),
    (["--temperature=-1"], "temperature must be a finite number >= 0"),
    (["--model=./nowhere"], "there is no such file or folder"),
    (["again"], "unexpected argument 'again'"),
    (["--no_such_flag=1"], "no_such_flag"),
  ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
  assert message in refused(capsys, *arguments)


def test_a_platform_that_was_not_lowered_for_is_refused(model, tmp_path, capsys):
  arguments = ["--method=autoregressive", "--platforms=tpu", f"--output={tmp_path / 'out'}"]
  assert command(model, *arguments, "--max_new_tokens=2") == 0
  line = refused(capsys, f"--load={tmp_path / 'out' / 'autoregressive'}")
  assert "was lowered for tpu, and JAX runs on cpu here" in line


def test_an_output_with_other_files_is_refused_before_a_model_is_loaded(tmp_path, capsys):
  (tmp_path / "prompt_lookup").mkdir()
  (tmp_path / "prompt_lookup" / "notes.txt").write_text("keep")
  flags = ["--methods=prompt_lookup", f"--output={tmp_path}", "--model=./nowhere"]
  assert "holds something else (notes.txt)" in refused(capsys, *flags)


def test_help_explains_every_flag(capsys):
  assert export.main(["export", "--help"]) == 0
  text = capsys.readouterr().out
  assert all(f"--{name}" in text for name in ("platforms", "methods", "output", "[no]check"))
