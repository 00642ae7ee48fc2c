# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a sampling policy takes and what it refuses, with the message a user reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.sampling import SamplingPolicy

V = 10
NAN = float("nan")

REFUSED = {
  "temperature": [-1, -1e-9, NAN, float("inf"), 1e39, "hot", None, [0.5], [[1, 1]], [1, -1], True],
  "top_k": [-1, 2.0, 0.5, [1, 2, 3], [5, -1], [[1], [2, 3]], "5", True],
  "top_p": [0, -0.1, 1.1, NAN, [0.5, 0.0], [0.5], {}],
  "min_p": [-0.1, 1.01, NAN, [0.1, 2]],
  "repetition_penalty": [0, -1, NAN, float("inf"), [1, 0]],
  "presence_penalty": [NAN, float("inf"), [1, 2, 3]],
  "frequency_penalty": [NAN, float("-inf"), "much"],
  "min_new_tokens": [-1, 1.5, [1, -2], [1, 2, 3]],
  "forbidden_tokens": [V, [V], [-2], [0.5], [[1], [2], [3]], "abc", [[[1]]], [["a"], [1]]],
  "forced_tokens": [[V], [-2], [[1, 2], [3], [4]], 3],
  "logit_bias": [[1, 2], {V: 1.0}, {1: NAN}, {1: float("inf")}, {1: [1, 2, 3]}, {"a": 1.0}],
  "processor": ["greedy", 3],
}


@pytest.mark.parametrize(
  ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_a_value_out_of_range_is_refused_by_name(name, value):
  with pytest.raises(ValueError, match=f"^{name} must .*, got "):
    SamplingPolicy(**{name: value}).resolve(2, V, [9])


def test_the_message_names_what_it_got_and_what_it_takes():
  with pytest.raises(ValueError, match=r"temperature must be a finite number >= 0.*got -1$"):
    SamplingPolicy(temperature=-1).resolve(1, V, None)
  with pytest.raises(ValueError, match=r"top_p must be a number above 0 and up to 1.*got \[0.5, 7"):
    SamplingPolicy(top_p=[0.5, 7]).resolve(2, V, None)
  with pytest.raises(ValueError, match=r"forbidden_tokens must hold token ids from 0 to 9.*got 10"):
    SamplingPolicy(forbidden_tokens=[3, 10]).resolve(1, V, None)


@pytest.mark.parametrize("eos_ids", [[V], [-1, V + 5], [0.5], [[1], [2], [3]]])
def test_an_end_token_outside_the_vocabulary_is_refused(eos_ids):
  with pytest.raises(ValueError, match=r"^eos_ids must "):
    SamplingPolicy(min_new_tokens=1).resolve(2, V, eos_ids)


def test_a_policy_that_leaves_no_token_is_refused():
  with pytest.raises(ValueError, match="forbidden_tokens must leave a token to row 1, got all 10"):
    SamplingPolicy(forbidden_tokens=[[1], list(range(V))]).resolve(2, V, None)


def test_a_token_forced_and_forbidden_is_refused():
  policy = SamplingPolicy(forced_tokens=[[5], [7]], forbidden_tokens=[[7], [1, 7]])
  with pytest.raises(ValueError, match="must not be in forbidden_tokens too, got 7 in row 1"):
    policy.resolve(2, V, None)


def test_an_unhashable_processor_is_refused():
  class Unhashable:
    __hash__ = None

    def __call__(self, scores, context):
      return scores

  with pytest.raises(ValueError, match="processor must be hashable"):
    SamplingPolicy(processor=Unhashable()).resolve(1, V, None)


NEUTRAL = {
  "top_k": [0, V, 10**12, [0, V]],
  "top_p": [1, 1.0, [1, 1]],
  "min_p": [0, 0.0],
  "repetition_penalty": [1, [1.0, 1]],
  "presence_penalty": [0],
  "frequency_penalty": [0.0],
  "min_new_tokens": [0],
  "forbidden_tokens": [[], [-1], [[], []], np.full((2, 3), -1)],
  "forced_tokens": [[], [-1, -1], [[-1], []]],
  "logit_bias": [{}, {3: 0.0}],
}


@pytest.mark.parametrize(
  ("name", "value"), [(name, value) for name, values in NEUTRAL.items() for value in values]
)
def test_a_step_that_is_neutral_for_every_row_does_not_exist(name, value):
  policy = SamplingPolicy(1.0, **{name: value}).resolve(2, V, [9])
  assert jax.tree.structure(policy) == jax.tree.structure(SamplingPolicy(1.0).resolve(2, V, [9]))


@pytest.mark.parametrize("warper", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_what_cannot_change_the_best_token_does_not_exist_for_greedy_rows(warper):
  greedy = SamplingPolicy(**warper).resolve(2, V, None)
  assert jax.tree.structure(greedy) == jax.tree.structure(SamplingPolicy().resolve(2, V, None))
  (name,), (value,) = warper, warper.values()
  off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}[name]
  mixed = SamplingPolicy([0, 1], **{name: [value, off]}).resolve(2, V, None)
  assert getattr(mixed, name) is None


def test_only_a_temperature_above_zero_samples():
  assert not SamplingPolicy().resolve(2, V, None).sampled
  assert not SamplingPolicy([0, 0.0]).resolve(2, V, None).sampled
  assert SamplingPolicy([0, 0.1]).resolve(2, V, None).sampled


def test_resolved_numbers_are_one_a_row_of_one_dtype():
  values = {"temperature": 1, "top_k": np.int64(3), "min_p": jnp.bfloat16(0.5), "top_p": [1, 0.25]}
  policy = SamplingPolicy(**values).resolve(2, V, None)
  for name, dtype in (("temperature", "f4"), ("top_k", "i4"), ("min_p", "f4"), ("top_p", "f4")):
    assert getattr(policy, name).shape == (2,)
    assert getattr(policy, name).dtype == np.dtype(dtype)
  assert policy.tail.tolist() == [0, 0.75]


def test_id_lists_of_different_lengths_share_a_shape():
  shapes = {
    SamplingPolicy(forbidden_tokens=ids).resolve(2, V, None).forbidden_tokens.shape
    for ids in ([1], [1, 2], [[1, 2, 3], []], np.array([4, 5, 6, 7]))
  }
  assert shapes == {(2, 4)}


def test_resolving_twice_is_resolving_once():
  policy = SamplingPolicy(0.5, top_p=0.8, logit_bias={1: 2.0}, forced_tokens=[1]).resolve(2, V, [9])
  assert policy.resolve(2, V, [9]) is policy
  with pytest.raises(ValueError, match="batch must be 2, for which the policy was resolved, got 3"):
    policy.resolve(3, V, [9])


def test_traced_numbers_pass_and_their_shapes_are_checked():
  @jax.jit
  def resolve(number, count, ids):
    return SamplingPolicy(
      number,
      top_p=number,
      top_k=count,
      min_p=number,
      min_new_tokens=count,
      forbidden_tokens=ids,
      forced_tokens=ids,
      logit_bias={3: number, 4: 1.0},
    ).resolve(2, V, ids)

  policy = resolve(jnp.array([0.5, 1.0]), 3, jnp.array([1, 2, -1]))
  assert policy.sampled
  assert policy.forbidden_tokens.shape == policy.eos_ids.shape == (2, 3)
  np.testing.assert_allclose(policy.tail, [0.5, 0])
  np.testing.assert_allclose(policy.logit_bias[1][:, :2], [[0.5, 1], [1, 1]])
  with pytest.raises(ValueError, match=r"temperature must be .* got float32 of shape"):
    resolve(jnp.ones(3), 3, jnp.array([1]))
  with pytest.raises(ValueError, match=r"top_k must be .* got float32 of shape"):
    resolve(jnp.ones(2), 3.0, jnp.array([1]))
  with pytest.raises(ValueError, match=r"eos_ids must be .* got int32 of shape \(3, 1\)"):
    resolve(jnp.ones(2), 3, jnp.ones((3, 1), jnp.int32))
