# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Token data on the disk and its windows."""

import json

import numpy as np
import pytest

from specjax.training.joined_tokens import open_token_data
from specjax.training.packing import PackedData
from specjax.training.token_files import TokenFolder

MANIFEST = {"model": "toy", "vocab_size": 60}


def fill(folder, rows=30, seed=0, **manifest):
  """Rows of random ids; every fifth one is held out. Returns them."""
  data = TokenFolder(folder, MANIFEST | manifest)
  rng = np.random.default_rng(seed)
  made = []
  for index in range(rows):
    ids = rng.integers(0, data.manifest["vocab_size"], rng.integers(3, 15)).tolist()
    split = "validation" if index % 5 == 0 else "train"
    made.append((ids, int(rng.integers(1, len(ids))), split))
    data.append(ids, made[-1][1], {"prompt": str(index), "split": split})
  return made


def rows_of(batches):
  """The rows in batches: `(tokens, prompt length)` by what the arrays say."""
  for batch in batches:
    for b in range(batch.tokens.shape[0]):
      for segment in range(1, batch.segments[b].max() + 1):
        here = batch.segments[b] == segment
        assert batch.positions[b][here].tolist() == list(range(here.sum()))
        assert np.all(np.diff(np.flatnonzero(here)) == 1)
        yield batch.tokens[b][here].tolist(), int((~batch.answer[b][here]).sum())


@pytest.mark.parametrize("vocab_size", [60, 70_000])
def test_rows_come_back_as_they_were_written(tmp_path, vocab_size):
  made = fill(tmp_path, vocab_size=vocab_size)
  data = TokenFolder(tmp_path)
  tokens, offsets = data.tokens(), data.offsets()
  for index, (ids, prompt_length, _) in enumerate(made):
    assert tokens[offsets[index] : offsets[index + 1]].tolist() == ids
    assert data.rows[index]["prompt_length"] == prompt_length
  assert tokens.itemsize == (2 if vocab_size == 60 else 4)


@pytest.mark.parametrize("damage", ["line", "tokens"])
def test_a_row_that_was_cut_off_is_cut_away(tmp_path, damage):
  made = fill(tmp_path, rows=4)
  if damage == "line":
    with open(tmp_path / "rows.jsonl", "a") as file:
      file.write('{"prompt": "4", "spl')
  with open(tmp_path / "tokens.bin", "ab") as file:
    file.write(b"\1\2\3")
  data = TokenFolder(tmp_path, MANIFEST)
  data.append([7, 8, 9], 1, {"prompt": "5", "split": "train"})
  again = TokenFolder(tmp_path)
  assert len(again.rows) == 5
  assert again.tokens().tolist() == [i for ids, _, _ in made for i in ids] + [7, 8, 9]


def test_missing_tokens_are_an_error(tmp_path):
  fill(tmp_path, rows=4)
  path = tmp_path / "tokens.bin"
  path.write_bytes(path.read_bytes()[:-2])
  with pytest.raises(ValueError, match=r"tokens.bin is cut off: it has \d+ bytes"):
    TokenFolder(tmp_path)


def test_a_folder_is_not_continued_with_other_settings(tmp_path):
  fill(tmp_path, rows=1)
  with pytest.raises(ValueError, match="made with model 'toy', this run has 'other'"):
    TokenFolder(tmp_path, MANIFEST | {"model": "other"})


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (None, "has no manifest.json"),
    ("{", "is not JSON"),
    ("{}", "is not a manifest of token data"),
    ('{"format": "specjax token data", "version": 9}', "has format version 9, this takes 1"),
  ],
)
def test_what_is_no_token_data_is_refused(tmp_path, text, message):
  if text is not None:
    (tmp_path / "manifest.json").write_text(text)
  with pytest.raises(ValueError, match=message):
    TokenFolder(tmp_path)


def test_an_epoch_holds_every_row_once_and_the_split_is_kept(tmp_path):
  made = fill(tmp_path)
  data = PackedData(TokenFolder(tmp_path), window=16, batch_size=1, seed=3)
  expected = {
    split: sorted((ids, prompt) for ids, prompt, at in made if at == split)
    for split in ("train", "validation")
  }
  windows = 0
  found = []
  while len(found) < len(expected["train"]):
    found += rows_of([data.batch_at(windows)])
    windows += 1
  assert sorted(found) == expected["train"]
  assert sorted(rows_of(data.validation_batches())) == expected["validation"]
  second = list(rows_of(data.batch_at(windows + step) for step in range(windows)))
  assert sorted(second) == expected["train"] and second != found


def test_windows_waste_little(tmp_path):
  made = fill(tmp_path, rows=200)
  data = PackedData(TokenFolder(tmp_path), window=64, batch_size=1)
  tokens = sum(len(ids) for ids, _, split in made if split == "train")
  windows = 0
  found = 0
  while found < data.num_train_rows:
    found += data.batch_at(windows).segments.max()
    windows += 1
  assert tokens / (64 * windows) > 0.9


def test_a_batch_depends_on_seed_and_step_alone(tmp_path):
  fill(tmp_path)

  def make(seed):
    return PackedData(TokenFolder(tmp_path), window=20, batch_size=3, seed=seed)

  forward = [make(1).batch_at(step) for step in range(12)]
  data = make(1)
  for step in reversed(range(12)):
    np.testing.assert_array_equal(data.batch_at(step).tokens, forward[step].tokens)
  other = [make(2).batch_at(step).tokens.tolist() for step in range(12)]
  assert other != [batch.tokens.tolist() for batch in forward]


def test_a_row_longer_than_a_window_is_cut_at_its_end(tmp_path):
  data = TokenFolder(tmp_path, MANIFEST)
  data.append(list(range(10)), 4, {"prompt": "0", "split": "train"})
  batch = PackedData(data, window=6, batch_size=1).batch_at(0)
  assert list(rows_of([batch])) == [([0, 1, 2, 3, 4, 5], 4)]


def test_targets_stand_at_the_place_that_predicts_their_token(tmp_path):
  made = fill(tmp_path)
  data = TokenFolder(tmp_path)
  for ids, prompt_length, _ in made:
    answer = np.array(ids[prompt_length:])
    top = np.stack([answer, (answer + 1) % 60], axis=1)
    data.append_targets(top, np.log([[0.75, 0.25]] * len(answer)))
  for batch in PackedData(TokenFolder(tmp_path), window=20, batch_size=2).validation_batches():
    following, valid = batch.ahead(1)
    valid, following = np.asarray(valid), np.asarray(following)
    assert valid.any()
    np.testing.assert_array_equal(batch.top_ids[..., 0][valid], following[valid])
    np.testing.assert_allclose(np.exp(batch.top_log_probs[valid]).sum(-1), 1, atol=1e-3)
    assert np.all(np.isneginf(batch.top_log_probs[~valid]))


def test_targets_go_on_after_a_cut(tmp_path):
  made = fill(tmp_path, rows=3)

  def targets(index):
    ids, prompt_length, _ = made[index]
    answer = np.array(ids[prompt_length:])
    return answer[:, None], np.zeros((len(answer), 1))

  data = TokenFolder(tmp_path)
  data.append_targets(*targets(0))
  data.append_targets(*targets(1))
  with open(tmp_path / "top_ids.bin", "ab") as file:
    file.write(b"\1\2\3\4")
  again = TokenFolder(tmp_path)
  assert again.num_scored == 2 and again.top_targets() is None
  with pytest.raises(ValueError, match="targets of row 2 must have shape"):
    again.append_targets(np.zeros((1, 2)), np.zeros((1, 2)))
  again.append_targets(*targets(2))
  ids, _ = TokenFolder(tmp_path).top_targets()
  assert ids[:, 0].tolist() == [i for row, prompt, _ in made for i in row[prompt:]]


def test_answers_are_counted_for_the_draft_vocabulary(tmp_path):
  made = fill(tmp_path)
  counts = PackedData(TokenFolder(tmp_path), window=9, batch_size=1).token_counts()
  expected = np.zeros(60, int)
  for ids, prompt_length, split in made:
    if split == "train":
      np.add.at(expected, ids[prompt_length:], 1)
  assert counts.tolist() == expected.tolist()


def test_prompts_are_trained_on_in_place_of_answers_but_for_their_first_token(tmp_path):
  made = fill(tmp_path)
  data = PackedData(TokenFolder(tmp_path), window=16, batch_size=2, part="prompts")
  seen = []
  for batch in data.validation_batches():
    following, valid = map(np.asarray, batch.ahead(1))
    for b in range(batch.tokens.shape[0]):
      for segment in range(1, batch.segments[b].max() + 1):
        here = batch.segments[b] == segment
        ids, trained = batch.tokens[b][here].tolist(), batch.answer[b][here].tolist()
        count = sum(trained)
        assert trained == [False] + [True] * count + [False] * (len(ids) - 1 - count)
        seen.append((ids, 1 + count))
        # What is predicted is the prompt alone: its last token's successor is the answer's.
        assert following[b][here][valid[b][here]].tolist() == ids[1 : 1 + count]
  held_out = sorted((ids, prompt) for ids, prompt, split in made if split == "validation")
  assert sorted(seen) == held_out
  expected = np.zeros(60, int)
  for ids, prompt_length, split in made:
    if split == "train":
      np.add.at(expected, ids[1:prompt_length], 1)
  assert data.token_counts().tolist() == expected.tolist()


def test_prompts_have_no_stored_targets(tmp_path):
  made = fill(tmp_path)
  data = TokenFolder(tmp_path)
  for ids, prompt_length, _ in made:
    size = (len(ids) - prompt_length, 1)
    data.append_targets(np.zeros(size, int), np.zeros(size))

  def make(part):
    return PackedData(TokenFolder(tmp_path), window=16, batch_size=1, part=part)

  assert make("answers").batch_at(0).top_ids is not None
  assert make("prompts").batch_at(0).top_ids is None


def test_a_cut_prompt_is_trained_on_up_to_the_cut(tmp_path):
  data = TokenFolder(tmp_path, MANIFEST)
  data.append(list(range(10)), 8, {"prompt": "0", "split": "train"})
  batch = PackedData(data, window=6, batch_size=1, part="prompts").batch_at(0)
  assert batch.answer.tolist() == [[False] + [True] * 5]


def test_fewer_rows_can_be_held_out(tmp_path):
  made = fill(tmp_path)
  data = PackedData(TokenFolder(tmp_path), window=16, batch_size=1, max_validation_rows=2)
  held_out = [(ids, prompt) for ids, prompt, split in made if split == "validation"]
  assert sorted(rows_of(data.validation_batches())) == sorted(held_out[:2])


def test_data_without_a_training_row_is_refused(tmp_path):
  data = TokenFolder(tmp_path, MANIFEST)
  data.append([1, 2], 1, {"prompt": "0", "split": "validation"})
  with pytest.raises(ValueError, match="has no row to train on"):
    PackedData(data, window=8, batch_size=1)
  with pytest.raises(ValueError, match="window must be an integer >= 1, got 0"):
    PackedData(data, window=0, batch_size=1)
  with pytest.raises(ValueError, match="max_validation_rows must be an integer >= 1, got 0"):
    PackedData(data, window=8, batch_size=1, max_validation_rows=0)
  with pytest.raises(ValueError, match="must be one of answers, prompts, got 'both'"):
    PackedData(data, window=8, batch_size=1, part="both")


def test_rows_are_json_lines(tmp_path):
  fill(tmp_path, rows=2)
  rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
  assert [row["prompt"] for row in rows] == ["0", "1"]


def rows_by_name(data):
  """Prompt's name to its tokens."""
  tokens, offsets = data.tokens(), data.offsets()
  return [
    (row["prompt"], tokens[offsets[index] : offsets[index + 1]].tolist())
    for index, row in enumerate(data.rows)
  ]


def test_folders_join_into_their_rows_without_prompts_that_an_earlier_one_has(tmp_path):
  fill(tmp_path / "a", rows=5, seed=1)
  fill(tmp_path / "b", rows=8, seed=2)
  first, second = (rows_by_name(TokenFolder(tmp_path / name)) for name in "ab")
  joined = open_token_data(f"{tmp_path / 'a'}, {tmp_path / 'b'}")
  assert rows_by_name(joined) == first + second[5:]
  assert joined.top_targets() is None
  counts = PackedData(joined, window=16, batch_size=2).num_train_rows
  assert counts == sum(row["split"] == "train" for row in joined.rows)


def test_folders_join_with_their_targets_if_all_have_as_many(tmp_path):
  rng = np.random.default_rng(0)
  for name, rows, size in (("a", 2, 3), ("b", 4, 3), ("c", 5, 2)):
    fill(tmp_path / name, rows=rows)
    data = TokenFolder(tmp_path / name)
    for row in data.rows:
      shape = (row["length"] - row["prompt_length"], size)
      data.append_targets(rng.integers(0, 60, shape), rng.normal(size=shape))
  joined = open_token_data(f"{tmp_path / 'a'},{tmp_path / 'b'}")
  ids, log_probs = joined.top_targets()
  first, second = (TokenFolder(tmp_path / name).top_targets() for name in "ab")
  skipped = TokenFolder(tmp_path / "b").top_offsets()[2]
  np.testing.assert_array_equal(ids, np.concatenate([first[0], second[0][skipped:]]))
  np.testing.assert_array_equal(log_probs, np.concatenate([first[1], second[1][skipped:]]))
  assert len(ids) == joined.top_offsets()[-1]
  assert open_token_data(f"{tmp_path / 'a'},{tmp_path / 'c'}").top_targets() is None


def test_folders_of_other_vocabularies_do_not_join(tmp_path):
  fill(tmp_path / "a", rows=2)
  fill(tmp_path / "b", rows=2, vocab_size=61)
  with pytest.raises(ValueError, match=r"vocabularies of \[60, 61\] tokens do not fit together"):
    open_token_data(f"{tmp_path / 'a'},{tmp_path / 'b'}")
  with pytest.raises(ValueError, match="at least one folder"):
    open_token_data(" , ")
