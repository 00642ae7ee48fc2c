# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from experiments.results import ResultsFolder, fresh_folder

SETTINGS = {"model": "m", "stop": ("a",), "seed": 0}


def row(index, method="autoregressive", turn=0, **more):
  return {"method": method, "prompt_index": index, "turn": turn, "source": "s", **more}


def lines(folder):
  return (folder / "results.jsonl").read_bytes().splitlines()


def test_rows_are_kept_across_runs(tmp_path):
  first = ResultsFolder(tmp_path / "out", SETTINGS)
  first.append([row(0), row(1)])
  second = ResultsFolder(tmp_path / "out", SETTINGS)
  assert second.resumed == 2
  assert list(second.rows) == [("autoregressive", 0, 0), ("autoregressive", 1, 0)]
  second.append([row(1, text="again"), row(1, turn=1)])
  assert len(lines(tmp_path / "out")) == 3
  assert "text" not in second.rows["autoregressive", 1, 0]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_last_line_that_was_cut_off_is_dropped(tmp_path, cut):
  ResultsFolder(tmp_path, SETTINGS).append([row(0), row(1, text="é")])
  path = tmp_path / "results.jsonl"
  path.write_bytes(path.read_bytes()[:-cut])
  again = ResultsFolder(tmp_path, SETTINGS)
  assert list(again.rows) == [("autoregressive", 0, 0)]
  again.append([row(1)])
  assert [json.loads(line)["prompt_index"] for line in lines(tmp_path)] == [0, 1]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
  ResultsFolder(tmp_path, SETTINGS).append([row(0), row(1)])
  path = tmp_path / "results.jsonl"
  path.write_bytes(path.read_bytes().replace(b'"autoregressive"', b'"autoreg', 1))
  with pytest.raises(ValueError, match=r"results\.jsonl line 1 is damaged"):
    ResultsFolder(tmp_path, SETTINGS)
  path.write_bytes(b'{"a": 1}\n')
  with pytest.raises(ValueError, match=r"results\.jsonl line 1 is not a row"):
    ResultsFolder(tmp_path, SETTINGS)


def test_a_folder_is_made_with_its_first_row(tmp_path):
  folder = ResultsFolder(tmp_path / "out", SETTINGS)
  assert not (tmp_path / "out").exists()
  folder.append([row(0)])
  assert json.loads((tmp_path / "out" / "config.json").read_text()) == SETTINGS | {"stop": ["a"]}


def test_other_settings_in_the_same_folder_are_refused(tmp_path):
  ResultsFolder(tmp_path, SETTINGS).append([row(0)])
  with pytest.raises(ValueError, match=r"seed was 0, now it is 1; choose another --output"):
    ResultsFolder(tmp_path, SETTINGS | {"seed": 1})
  with pytest.raises(ValueError, match=r"new was null, now it is 3"):
    ResultsFolder(tmp_path, SETTINGS | {"new": 3})
  assert ResultsFolder(tmp_path, SETTINGS).resumed == 1


def test_other_weights_in_the_same_folder_are_refused(tmp_path):
  folder = ResultsFolder(tmp_path, SETTINGS)
  folder.append([row(0)])
  folder.check_source("s")
  with pytest.raises(ValueError, match=r"of the weights 's', this run has 'other'"):
    folder.check_source("other")


def test_another_trained_drafter_in_the_same_folder_is_refused(tmp_path):
  folder = ResultsFolder(tmp_path, SETTINGS)
  folder.append([row(0), row(0, "pass", drafter_file="a.safetensors", drafter_sha256="12")])
  folder.check_drafters({"autoregressive": None, "pass": "12"})
  with pytest.raises(
    ValueError, match=r"results of pass with another trained .* \(a\.safetensors\)"
  ):
    folder.check_drafters({"autoregressive": None, "pass": "34"})


def test_results_without_settings_and_damaged_settings_are_refused(tmp_path):
  (tmp_path / "results.jsonl").write_text("")
  with pytest.raises(ValueError, match=r"holds results but no config\.json"):
    ResultsFolder(tmp_path, SETTINGS)
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"config\.json is damaged"):
    ResultsFolder(tmp_path, SETTINGS)


def test_an_output_that_is_a_file_is_refused(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match=r"is not a folder"):
    ResultsFolder(tmp_path / "file", SETTINGS)


def test_a_fresh_folder_is_another_each_time(tmp_path):
  first = fresh_folder(tmp_path)
  first.mkdir()
  assert fresh_folder(tmp_path) != first
